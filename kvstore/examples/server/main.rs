//! Objects over HTTP: a server that embeds the store.
//!
//! | request | does |
//! |---|---|
//! | `PUT /objects/{key}` | stores the body; `X-Ttl-Seconds` says how long |
//! | `GET /objects/{key}` | gives it back, or the part that `Range` names |
//! | `HEAD /objects/{key}` | says how long it is |
//! | `DELETE /objects/{key}` | removes it |
//! | `POST /commit` | answers when all that was stored before survives a power cut |
//! | `GET /metrics` | what the store counted, for Prometheus |
//! | `GET /healthz` | whether it answers |
//!
//! Bodies go from the socket into the store's registered memory and back from there: nothing is copied in between.
//! Ctrl-C ends it: what was acknowledged is made durable first.

mod http;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_driver::Target;
use adit_kvstore::{Durability, FormatStore, OpenOptions, Result, Store};
use clap::Parser;

/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Serves the objects of a store over HTTP.
#[derive(Parser)]
#[command(
    after_help = "Example:\n  server --format --size-bytes 1073741824 uring:/var/tmp/objects.img\n  \
                        curl -T file http://127.0.0.1:8080/objects/a-key"
)]
struct Arguments {
    /// The store's devices, as 'vfio:0000:01:00.0' or 'uring:PATH'.
    #[arg(required = true)]
    targets: Vec<Target>,
    /// Where to listen; port 0 takes any.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Make a new store of the devices first. Refused where there is something on them.
    #[arg(long)]
    format: bool,
    /// With --format: files are created, so many bytes long.
    #[arg(long, requires = "format")]
    size_bytes: Option<u64>,
    /// What an answer promises: volatile, restart or durable.
    #[arg(long, default_value = "restart")]
    durability: Durability,
    /// Threads that answer requests.
    #[arg(long, default_value_t = 4)]
    threads: usize,
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
    let server = tiny_http::Server::http(arguments.listen).map_err(|why| {
        format!("cannot listen on {}: {why}; choose another address (--listen)", arguments.listen)
    })?;
    println!("listening on http://{}", server.server_addr());
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| serve(&server, &store, &stops));
        }
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

/// Answers requests until it is told to stop.
fn serve(server: &tiny_http::Server, store: &Store, stops: &AtomicBool) {
    while !stops.load(Ordering::Relaxed) {
        match server.recv_timeout(LOOK) {
            Ok(Some(request)) => http::answer(store, request),
            Ok(None) => {}
            Err(why) => eprintln!("server: a connection failed: {why}"),
        }
    }
}
