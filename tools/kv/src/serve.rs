//! `adit kv serve`: lets other processes of the machine use the store, through shared memory.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use adit_driver::Target;
use adit_kvshare::wire::Serving;
use adit_kvshare::{Event, Options, Server};
use adit_kvstore::shard::Stats;
use adit_kvstore::{Durability, OpenOptions, Store};
use clap::Args;
use serde_json::json;

use super::store::{self, NO_STORE};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::units;

const EXAMPLES: &str = "\
Examples:
  adit kv serve --store uring:kv.img --socket /run/adit/kv.sock
  One drive for eight processes, each with 32 GiB of its own memory shared:
    adit kv serve --store vfio:0000:01:00.0 --socket /run/adit/kv.sock --memory 32G
  For a program:
    adit kv serve --store uring:kv.img --socket kv.sock --json

Clients connect with adit_kvshare::Client (Rust) or adit.connect (Python). Their memory goes to the drive and back \
without a copy. Ctrl-C or SIGTERM ends it: requests in progress are finished, and everything is made durable. It \
ends by itself, with exit code 1, if a thread of the store dies.";

/// Lets several processes of this machine share a store, through shared memory
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// The store's device, as in uring:kv.img, vfio:0000:01:00.0 or soft:file=kv.img,size=4G
    #[arg(long, value_name = "TARGET")]
    store: Target,

    /// Another device of the store; in the order in which they were formatted or added
    #[arg(long, value_name = "TARGET")]
    with: Vec<Target>,

    /// Where clients connect: the path of a Unix socket, which is made with mode 0600
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// The most memory that each client may share, as in 32G
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes, default_value = "16G")]
    memory: u64,

    /// The most memory that all clients together may share
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes, default_value = "256G")]
    memory_all: u64,

    /// The most clients at a time; others get the answer that there are too many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024), default_value_t = 64)]
    clients: u64,

    /// The most layouts of KV blocks that each client may use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=255), default_value_t = 8)]
    layouts: u8,

    /// Clients bring new layouts into the store while fewer than N have objects or are in use; a store can have 255
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=255), default_value_t = 128)]
    layouts_all: u8,

    /// Clients bring new tenants into the store while fewer than N have objects or a quota; a store can have 255
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=255), default_value_t = 128)]
    tenants: u8,

    /// The share of the store, in percent, that each client may hold by leases and by objects that it writes in parts; all
    /// together may hold twice that
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100), default_value_t = 25)]
    hold_share: u64,

    /// The longest time that a client leases objects for, as in 10m; it renews a lease that it needs for longer
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1h")]
    lease_max: Duration,

    /// The most memory in which the store keeps hot objects, as in 8G; less while the machine or a control
    /// group has little left; none by default
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::bytes)]
    tier: u64,

    /// What an acknowledged put survives: volatile (nothing), restart (a crash of the process, but for the
    /// last 10 ms) or durable (a power cut)
    #[arg(long, value_name = "LEVEL", default_value = "restart")]
    durability: Durability,

    /// Keeps objects that damage to the journal may have made outdated, which are dropped otherwise: see 'adit kv
    /// check', before the first opening
    #[arg(long)]
    keep_outdated: bool,

    /// Prints JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl ServeArgs {
    fn open_options(&self) -> OpenOptions {
        let targets = [&self.store].into_iter().chain(&self.with).cloned();
        let (durability, tier_bytes) = (self.durability, self.tier);
        let keep_outdated = self.keep_outdated;
        OpenOptions { durability, tier_bytes, keep_outdated, ..OpenOptions::new(targets) }
    }

    fn serving(&self) -> Options {
        Options {
            clients_max: self.clients,
            client_bytes_max: self.memory,
            all_bytes_max: self.memory_all,
            client_layouts_max: self.layouts.into(),
            all_layouts_max: self.layouts_all.into(),
            tenants_max: self.tenants.into(),
            client_hold_percent: self.hold_share,
            lease_max: self.lease_max,
            ..Options::default()
        }
    }
}

/// Serves until interrupted.
///
/// # Errors
/// When the store cannot be opened or closed, or the socket cannot be served.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    serve(args, &args.open_options())
}

/// Serves the store that `options` open.
fn serve(args: &ServeArgs, options: &OpenOptions) -> Result<()> {
    store::check_there(&options.targets, NO_STORE)?;
    let interrupt = Interrupt::install()?;
    // First, as a store that was opened has to be closed.
    let server = Server::bind(&args.socket, args.serving())?;
    let store = Store::open(options)?;
    let mut output = Output::Standard;
    output.write(&ready(args))?;
    let (output, written) = (Mutex::new(output), Mutex::new(Ok(())));
    let tell = |event: &Event| {
        let told = output.lock().map(|mut output| output.write(&told(args, event)));
        if let (Ok(Err(why)), Ok(mut written)) = (told, written.lock()) {
            *written = Err(why);
            // The server ends without a reader of its output.
            interrupt.request();
        }
    };
    let served = server.run(&store, interrupt.flag(), &tell).map_err(Failure::from);
    let counts = server.counts();
    // From here on a client is refused, not kept waiting.
    drop(server);
    let stats = store.close().wait().map_err(adit_kvstore::Error::from)?;
    served?;
    written.into_inner().unwrap_or(Ok(()))?;
    Output::Standard.write(&ended(args, &stats, counts))
}

fn ready(args: &ServeArgs) -> String {
    let (store, socket) = (args.store.to_string(), args.socket.display().to_string());
    if args.json {
        return format!("{}\n", json!({"event": "ready", "store": store, "socket": socket}));
    }
    format!("serving {store} at {socket}\n")
}

fn told(args: &ServeArgs, event: &Event) -> String {
    if !args.json {
        return format!("{event}\n");
    }
    let told = match event {
        Event::ClientCame { client, process } => {
            json!({"event": "client_came", "client": client, "process": process})
        }
        Event::ClientGone { client, why, is_expelled } => {
            json!({"event": "client_gone", "client": client, "why": why, "expelled": is_expelled})
        }
        Event::TurnedAway { connections } => {
            json!({"event": "turned_away", "connections": connections})
        }
    };
    format!("{told}\n")
}

fn ended(args: &ServeArgs, stats: &Stats, counts: Serving) -> String {
    let Serving { clients, clients_expelled, clients_turned_away, requests, .. } = counts;
    if args.json {
        let told = json!({
            "event": "ended", "clients": clients, "clients_expelled": clients_expelled,
            "clients_turned_away": clients_turned_away, "requests": requests,
            "gets": stats.gets, "hits": stats.hits, "puts": stats.puts, "bytes_read": stats.bytes_read,
            "bytes_written": stats.bytes_written, "bytes_copied": stats.copied_bytes,
        });
        return format!("{told}\n");
    }
    format!(
        "ended: {requests} requests of {clients} clients; {} read, {} written; everything is durable\n",
        human::capacity(stats.bytes_read),
        human::capacity(stats.bytes_written)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_kvshare::{Client, ClientOptions, Error, KvStore, PendingAnswer};
    use adit_kvstore::evict::{Policy, PolicyMaker};
    use adit_kvstore::{FormatStore, Key, ObjectId};
    use clap::Parser;
    use std::sync::mpsc;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Parser)]
    struct ServeLine {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// Panics at the first object, which ends the store's thread.
    struct Fatal;

    impl Policy for Fatal {
        fn inserted(&mut self, _: ObjectId, _: u64) {
            panic!("as arranged");
        }
        fn touched(&mut self, _: ObjectId) {}
        fn removed(&mut self, _: ObjectId) {}
        fn evicted(&mut self, _: ObjectId, _: u64) {}
        fn victim(&mut self, _: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
            None
        }
        fn memory_bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_dead_thread_of_the_store_ends_it_with_an_error() {
        let folder = std::env::temp_dir().join(format!("adit-serve-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (file, socket) = (folder.join("kv.img"), folder.join("kv.sock"));
        let target = format!("uring:{}", file.display());
        let targets = vec![target.parse().expect("a target")];
        let format = FormatStore { targets, file_bytes: Some(64 << 20), ..FormatStore::default() };
        Store::format(&format).expect("formatted");
        let path = socket.to_str().expect("text");
        let line = ServeLine::parse_from(["serve", "--store", &target, "--socket", path, "--json"]);
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let custom_policy = Some(PolicyMaker::new(|_| Box::new(Fatal)));
            let options = OpenOptions { custom_policy, ..line.args.open_options() };
            sender.send(serve(&line.args, &options))
        });
        let begin = Instant::now();
        let options = ClientOptions { timeout: 2 * PATIENCE, ..ClientOptions::default() };
        let client = loop {
            match Client::connect(&socket, &options) {
                Ok(client) => break client,
                Err(why) => assert!(begin.elapsed() < PATIENCE, "{why}"),
            }
            std::thread::yield_now();
        };
        let put = client.put(Key::from(1u64), b"x").wait().expect_err("its thread died");
        assert!(matches!(*put.error, Error::Lost { .. }), "{put}");
        let failure = ended.recv_timeout(PATIENCE).expect("it ends").expect_err("its store died");
        assert_eq!(failure.code(), 1);
        let text = failure.to_string();
        assert!(text.contains("adit-kv-0 died (as arranged)"), "{text}");
        assert!(!socket.exists(), "no client finds it any more");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
