//! Serves OpenAI completions by llama.cpp, with the KV of prompts in an Adit store.
//!
//! A prompt whose beginning was served before is not computed again, also after a restart: the longest stored beginning
//! comes from the store, and llama.cpp computes the rest.
//!
//! | request | does |
//! |---|---|
//! | `POST /v1/completions` | continues `prompt`, a text or a list of tokens, by up to `max_tokens`; `temperature` and `seed` |
//! | `GET /v1/models` | names the model |
//!
//! The answer's `usage.prompt_tokens_details.cached_tokens` says how many tokens came from the store, and `timings` how long
//! everything took, in milliseconds. One request is served at a time. Ctrl-C makes what was stored durable and ends.

mod cache;
mod engine;
mod http;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_driver::Target;
use adit_kvstore::{FormatStore, OpenOptions, Store};
use anyhow::{Context, Result, anyhow};
use clap::Parser;

use cache::PromptCache;
use engine::{Engine, Model};

/// How often the server checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Completions by llama.cpp, with the KV of prompts in an Adit store.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  adit-llama --model tiny.gguf --store uring:kv.img --format 256M"
)]
struct Arguments {
    /// The model, a GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// The store's device or file, such as uring:kv.img or vfio:0000:01:00.0
    #[arg(long, value_name = "TARGET")]
    store: Target,

    /// Formats the store first, which loses what it has; a file gets this size
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    format: Option<u64>,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Tokens of a prompt and its continuation at most
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    context: u32,

    /// Threads of llama.cpp; by default as many as there are cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
}

/// Parses a size such as 64M.
fn bytes(text: &str) -> Result<u64, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[unit..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        other => return Err(format!("no unit {other}: give a number and K, M or G")),
    };
    let number: u64 = text[..unit].parse().map_err(|why| format!("{why}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "more than 2^64 bytes".to_owned())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("adit-llama: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stops))?;
    }
    let model = Model::load(&arguments.model)?;
    let store = open(arguments)?;
    let cache = PromptCache::new(store.clone(), model.fingerprint());
    let mut engine = Engine::new(&model, (arguments.context, arguments.threads), cache)?;
    let server = tiny_http::Server::http(arguments.listen).map_err(|why| {
        anyhow!("cannot listen on {}: {why}; choose another address (--listen)", arguments.listen)
    })?;
    println!("listening on http://{}", server.server_addr());
    while !stops.load(Ordering::Relaxed) {
        if let Some(request) = server.recv_timeout(LOOK)? {
            http::serve(&mut engine, request);
        }
    }
    drop(engine);
    let stats = store.close().wait()?;
    println!("closed with the KV of {} beginnings of prompts", stats.objects);
    Ok(())
}

fn open(arguments: &Arguments) -> Result<Store> {
    let targets = [arguments.store.clone()];
    if let Some(bytes) = arguments.format {
        let format = FormatStore { file_bytes: Some(bytes), ..FormatStore::new(targets.clone()) };
        Store::format(&format).context("formatting the store")?;
    }
    Store::open(&OpenOptions::new(targets)).context("opening the store (--format SIZE makes one)")
}
