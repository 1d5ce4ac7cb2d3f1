//! An HTTP object server that embeds the store.
//!
//! | request | does |
//! |---|---|
//! | `PUT /objects/{key}` | stores the body, for `X-Ttl-Seconds` if given; as a KV block of the layout `X-Layout`; with `If-None-Match: *` if there is no object, with `If-Match` over that version |
//! | `GET /objects/{key}` | returns the object, or the part in `Range`, which `If-Range` makes one of that version |
//! | `HEAD /objects/{key}` | returns its length |
//! | `DELETE /objects/{key}` | removes it, with `If-Match` that version |
//! | `POST /commit` | answers when everything stored before survives a power cut |
//! | `GET /metrics` | returns the store's counters for Prometheus |
//! | `GET /healthz` | returns whether the server responds |
//!
//! An object's `ETag` is its version in the store. A condition that does not hold is answered with 412.
//!
//! Settings come from a TOML file (`--config`) and from flags; `server.toml` shows all of them.
//!
//! Bodies go from the socket into the store's registered memory and back, without a copy in between. Ctrl-C stops the
//! server after making acknowledged data durable.
//!
//! Each connection has a thread of its own, up to a limit. A stalled client delays no other, and is disconnected at
//! its deadline.

mod config;
mod connection;
mod http;

use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use adit_kvstore::Store;
use clap::Parser;
use config::{Arguments, Config};
use connection::{Connection, Limits};
use http::{Layouts, Service};

/// How often the server checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

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
    let config = arguments.config()?;
    if arguments.format {
        Store::format(&config.store.format_options())?;
    }
    let store = Store::open(&config.store.open_options())?;
    let layouts = Layouts::define(&store, &config.layouts)?;
    let service = Service { store, layouts };
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stops))?;
    }
    let listener = TcpListener::bind(config.listen).map_err(|why| {
        format!("cannot listen on {}: {why}; choose another address (--listen)", config.listen)
    })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    std::thread::scope(|scope| {
        scope.spawn(|| accept(scope, &listener, &service, &config, &stops));
        // A store of which a thread has died is closed, which tells why.
        while !stops.load(Ordering::Relaxed) && service.store.check().is_ok() {
            std::thread::sleep(LOOK);
        }
        stops.store(true, Ordering::Relaxed);
        // Wake the accepting thread.
        drop(TcpStream::connect(address));
    });
    let stats = service.store.close().wait()?;
    println!("closed with {} objects", stats.objects);
    Ok(())
}

/// Accepts connections until told to stop, each on a thread of its own.
fn accept<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    listener: &TcpListener,
    service: &'a Service,
    config: &Config,
    stops: &'a AtomicBool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    let limits = Limits { timeout: Duration::from_secs(config.timeout_s.into()), stops };
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
        if open.load(Ordering::Relaxed) >= config.connections {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let open = Arc::clone(&open);
        scope.spawn(move || {
            serve(stream, limits, service);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Answers the requests of one connection. A client that disconnects or times out is not an error of the server.
fn serve(stream: TcpStream, limits: Limits<'_>, service: &Service) {
    let connection = Connection::new(stream, limits);
    let _ = connection.and_then(|it| it.serve(|head, body| service.answer(head, body)));
}
