//! `adit softnvme`: serves the software controller to other programs.

pub(crate) mod options;
mod place;

use adit_driver::Error;
use adit_driver::serve::{Event, IdleGaps, Server};
use adit_driver::soft::{Controller, Options};
use serde_json::json;

use self::options::SoftnvmeArgs;
use self::place::Folder;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// The socket's name in its folder, as in SPDK.
const SOCKET: &str = "cntrl";

/// Serves until interrupted.
///
/// # Errors
/// When the controller cannot be created, the socket cannot be served, or the last flush fails.
pub(crate) fn run(args: &SoftnvmeArgs) -> Result<()> {
    let controller = args.controller()?;
    let interrupt = Interrupt::install()?;
    pin(args.core)?;
    let _folder = Folder::make(&args.socket)?;
    let (mut server, _media) = bind(args, controller)?;
    let mut output = Output::Standard;
    output.write(&ready(args, &mut server))?;
    let mut written = Ok(());
    let ended = server.run(interrupt.flag(), &mut |event| {
        if written.is_ok() {
            written = output.write(&told(args, event));
        }
    });
    ended?;
    written
}

/// Locks the file before the controller extends it, or afterwards if the controller created it.
fn bind(args: &SoftnvmeArgs, options: Options) -> Result<(Server, Option<std::fs::File>)> {
    let storage = options.storage.clone();
    let serving = args.serving(&storage);
    let before = place::claim(&storage)?;
    let controller = Controller::new(options).map_err(|why| explained(why.into()))?;
    let media = before.map_or_else(|| place::claim(&storage), |file| Ok(Some(file)))?;
    place::close_to_others(&storage, media.as_ref());
    place::check_room(&storage);
    let server = Server::bind(&args.socket.join(SOCKET), controller, serving)?;
    Ok((server, media))
}

/// Adapts a message to the command line: the library speaks of targets, here the storage is an option.
fn explained(error: Error) -> Failure {
    let is_usage = error.is_usage();
    let text = format!("--media: {error}");
    if is_usage { Failure::usage(text) } else { Failure::failed(text) }
}

fn pin(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    match cores.iter().find(|id| id.id == core) {
        Some(id) if core_affinity::set_for_current(*id) => Ok(()),
        Some(_) => Err(Failure::failed(format!("--core {core}: the system does not let us"))),
        None => {
            let have: Vec<String> = cores.iter().map(|id| id.id.to_string()).collect();
            Err(Failure::usage(format!("--core {core}: the cores are {}", have.join(", "))))
        }
    }
}

fn ready(args: &SoftnvmeArgs, server: &mut Server) -> String {
    let socket = server.socket().display().to_string();
    let media = server.controller().options().storage.to_string();
    if args.json {
        let target = format!("vfio-user:{socket}");
        let ready = json!({"event": "ready", "media": media, "socket": socket, "target": target});
        return format!("{ready}\n");
    }
    format!("serving soft:{media} at {socket}; attach with: adit identify vfio-user:{socket}\n")
}

fn told(args: &SoftnvmeArgs, event: &Event) -> String {
    if !args.json {
        return format!("{event}\n");
    }
    let told = match event {
        Event::ClientCame => json!({"event": "client_came"}),
        Event::Idled(gaps) => idled(gaps),
        Event::ClientGone { why } => json!({"event": "client_gone", "why": why}),
        Event::TurnedAway => json!({"event": "turned_away"}),
    };
    format!("{told}\n")
}

fn idled(gaps: &IdleGaps) -> serde_json::Value {
    json!({
        "event": "idle_gaps",
        "commands": gaps.commands,
        "gaps": gaps.gaps,
        "idle_ns": gaps.idle.as_nanos() as u64,
        "span_ns": gaps.span.as_nanos() as u64,
        "p50_ns": gaps.p50.as_nanos() as u64,
        "p99_ns": gaps.p99.as_nanos() as u64,
        "longest_ns": gaps.longest.as_nanos() as u64,
    })
}
