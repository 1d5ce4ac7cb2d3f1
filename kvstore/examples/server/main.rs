//! An HTTP object server that embeds the store.
//!
//! | request | does |
//! |---|---|
//! | `PUT /objects/{key}` | stores the body, for `X-Ttl-Seconds` if given |
//! | `GET /objects/{key}` | returns the object, or the part in `Range` |
//! | `HEAD /objects/{key}` | returns its length |
//! | `DELETE /objects/{key}` | removes it |
//! | `POST /commit` | answers when everything stored before survives a power cut |
//! | `GET /metrics` | returns the store's counters for Prometheus |
//! | `GET /healthz` | returns whether the server responds |
//!
//! Bodies go from the socket into the store's registered memory and back, without a copy in between. Ctrl-C stops the
//! server after making acknowledged data durable.
//!
//! Each connection has a thread of its own, up to a limit. A stalled client delays no other, and is disconnected at
//! its deadline.

mod connection;
mod http;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use adit_driver::Target;
use adit_kvstore::{Durability, FormatStore, OpenOptions, Result, Store};
use clap::Parser;
use connection::{Connection, Limits};

/// How often the server checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Serves the objects of a store over HTTP.
#[derive(Parser)]
#[command(
    after_help = "Example:\n  server --format --size-bytes 1073741824 uring:/var/tmp/objects.img\n  \
                        curl -T file http://127.0.0.1:8080/objects/a-key"
)]
struct Arguments {
    /// The store's devices, such as 'vfio:0000:01:00.0' or 'uring:PATH'.
    #[arg(required = true)]
    targets: Vec<Target>,
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Format the devices first. Refused if they hold data.
    #[arg(long)]
    format: bool,
    /// With --format: create files of this many bytes.
    #[arg(long, requires = "format")]
    size_bytes: Option<u64>,
    /// What an answer promises: volatile, restart or durable.
    #[arg(long, default_value = "restart")]
    durability: Durability,
    /// Maximum concurrent connections; further ones are closed.
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Seconds that a client may take for a request, and again for each 16 MiB of it or of the answer.
    #[arg(long, default_value_t = 30)]
    timeout_s: u32,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let store = open(arguments)?;
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stops))?;
    }
    let listener = TcpListener::bind(arguments.listen).map_err(|why| {
        format!("cannot listen on {}: {why}; choose another address (--listen)", arguments.listen)
    })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    std::thread::scope(|scope| {
        scope.spawn(|| accept(scope, &listener, &store, arguments, &stops));
        while !stops.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        // Wake the accepting thread.
        drop(TcpStream::connect(address));
    });
    let stats = store.close()?;
    println!("closed with {} objects", stats.objects);
    Ok(())
}

fn open(arguments: &Arguments) -> Result<Store> {
    if arguments.format {
        let file_bytes = arguments.size_bytes;
        let targets = arguments.targets.clone();
        Store::format(&FormatStore { file_bytes, ..FormatStore::new(targets) })?;
    }
    let options = OpenOptions::new(arguments.targets.clone());
    Store::open(&OpenOptions { durability: arguments.durability, ..options })
}

/// Accepts connections until told to stop, each on a thread of its own.
fn accept<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    listener: &TcpListener,
    store: &'a Store,
    arguments: &Arguments,
    stops: &'a AtomicBool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    let limits = Limits { timeout: Duration::from_secs(arguments.timeout_s.into()), stops };
    while !stops.load(Ordering::Relaxed) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(why) => {
                eprintln!("server: a connection failed: {why}");
                // Out of file descriptors: wait for other connections to close.
                std::thread::sleep(LOOK);
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= arguments.connections {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let open = Arc::clone(&open);
        scope.spawn(move || {
            serve(stream, limits, store);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Answers the requests of one connection. A client that disconnects or times out is not an error of the server.
fn serve(stream: TcpStream, limits: Limits<'_>, store: &Store) {
    let connection = Connection::new(stream, limits);
    let _ = connection.and_then(|it| it.serve(|head, body| http::answer(store, head, body)));
}
