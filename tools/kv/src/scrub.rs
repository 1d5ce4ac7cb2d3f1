//! `adit kv scrub`: reads every object and verifies its checksums.

use adit_kvstore::Key;
use adit_kvstore::shard::Action;
use adit_kvstore::survey;
use clap::Args;
use serde_json::{Value, json};

use super::key::hex;
use super::store_arg::StoreArgs;
use super::survey::Reader;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output;
use adit_tools_common::meter::Meter;
use adit_tools_common::session::Session;

const EXAMPLES: &str = "\
Examples:
  adit kv scrub uring:kv.img
  adit kv scrub uring:kv.img --repair

The store must not be open elsewhere. Without --repair, changes nothing and fails if there are bad objects. A get of \
a bad object is a miss; --repair removes bad objects, which frees their space.";

/// Maximum number of bad objects that are named.
const NAMED_MAX: usize = 100;

/// Reads every object and verifies its checksums
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Removes bad objects
    #[arg(long)]
    repair: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The findings.
#[derive(Debug, Default)]
struct ScrubReport {
    objects: u64,
    bytes: u64,
    bad: Vec<Key>,
    removed: u64,
    interrupted: bool,
}

/// Runs the command.
///
/// # Errors
/// When bad objects remain, and as [`StoreArgs::with`].
pub(crate) fn run(args: &ScrubArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut found = scrub(&mut args.store.reader(true)?, &interrupt)?;
    if args.repair && !found.bad.is_empty() {
        args.store.with(|session| repair(session, &mut found))?;
    }
    output::report(args.json, || found.json(), || found.text())?;
    let left = found.bad.len() as u64 - found.removed;
    if found.interrupted {
        return Err(Failure::interrupted());
    }
    match left {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{}: {left} of {} objects differ from what was put; 'adit kv scrub --repair' removes them",
            args.store.name(),
            found.objects
        ))),
    }
}

/// Reads all objects in the order of their places on the devices.
fn scrub(reader: &mut Reader, interrupt: &Interrupt) -> Result<ScrubReport> {
    let facts = reader.facts();
    let heads = survey::heads(reader, &facts)?;
    let (mut found, mut meter) = (ScrubReport::default(), Meter::new());
    for shard in 0..heads.geometry.shards() {
        let mut surveyed = survey::shard(reader, &heads, shard)?;
        let mut objects = std::mem::take(&mut surveyed.objects);
        objects.sort_unstable_by_key(|one| one.object.place);
        let whole: u64 = objects.iter().map(|one| one.object.bytes).sum();
        let before = found.bytes;
        for one in objects {
            if interrupt.requested() {
                found.interrupted = true;
                return Ok(found);
            }
            let done = found.bytes - before;
            meter.show(|_| {
                let (done, whole) = (human::capacity(done), human::capacity(whole));
                format!("shard {shard}: {done} of {whole}, {} bad", found.bad.len())
            });
            found.objects += 1;
            found.bytes += one.object.bytes;
            if !surveyed.verify(reader, &one)? {
                found.bad.push(one.key);
            }
        }
    }
    Ok(found)
}

/// Removes the bad objects; those already gone count as removed.
fn repair(session: &mut Session, found: &mut ScrubReport) -> Result<()> {
    for key in &found.bad {
        session.call(Action::Delete(key.clone()))?;
        found.removed += 1;
    }
    Ok(())
}

impl ScrubReport {
    fn json(&self) -> Value {
        let named = |key: &Key| json!({ "key": key.to_string(), "key_hex": hex(key) });
        json!({
            "objects": self.objects,
            "bytes": self.bytes,
            "bad": self.bad.len(),
            "removed": self.removed,
            "bad_objects": self.bad.iter().take(NAMED_MAX).map(named).collect::<Vec<_>>(),
            "interrupted": self.interrupted,
        })
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} objects, {} read and verified: {} bad, {} removed\n",
            self.objects,
            human::capacity(self.bytes),
            self.bad.len(),
            self.removed
        );
        for key in self.bad.iter().take(NAMED_MAX) {
            text += &format!("  bad: {key}\n");
        }
        if self.bad.len() > NAMED_MAX {
            text += &format!("  and {} more\n", self.bad.len() - NAMED_MAX);
        }
        text
    }
}
