//! `adit kv scrub`: reads every object and verifies its checksums.

use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Action, GetItem, Info, Outcome, Part};
use adit_kvstore::{Key, piece_bytes};
use clap::Args;
use serde_json::{Value, json};

use super::key::hex;
use super::meter::Meter;
use super::session::{Session, one};
use super::store::{self, StoreArgs};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit kv scrub uring:kv.img
  adit kv scrub uring:kv.img --repair

Without --repair nothing is changed, and bad objects make it fail. They are misses to whoever asks for them; --repair
removes them, so that their room is used again.";

/// What is read at once at least.
const PART_BYTES: u64 = 8 << 20;
/// Bad objects that are named.
const NAMED_MAX: usize = 100;

/// Reads every object and verifies its checksums
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Removes the bad ones
    #[arg(long)]
    repair: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    objects: u64,
    bytes: u64,
    bad: Vec<Key>,
    bad_count: u64,
    removed: u64,
    interrupted: bool,
}

/// Runs the command.
///
/// # Errors
/// When objects are bad and were not removed, and as [`Session::open`].
pub(crate) fn run(args: &ScrubArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut session = Session::open(args.store.targets.clone())?;
    let found = scrub(&mut session, args.repair, &interrupt)?;
    session.close()?;
    let text = if args.json { format!("{:#}\n", found.json()) } else { found.text() };
    Output::Standard.write(&text)?;
    let left = found.bad_count - found.removed;
    if found.interrupted {
        return Err(Failure::interrupted());
    }
    match left {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{}: {left} of {} objects are not what was put; 'adit kv scrub --repair' removes them",
            store::name(&args.store.targets),
            found.objects
        ))),
    }
}

fn scrub(session: &mut Session, repair: bool, interrupt: &Interrupt) -> Result<Found> {
    let (mut objects, mut whole) = (Vec::new(), 0);
    session.scan(&mut |info| {
        whole += info.bytes;
        objects.push(info);
        Ok(())
    })?;
    // In the order in which a device has them as far as that can be told: the reads follow each other.
    objects.sort_unstable_by_key(|info| info.device);
    let (mut found, mut meter) = (Found::default(), Meter::new());
    for info in objects {
        if interrupt.requested() {
            found.interrupted = true;
            break;
        }
        meter.show(|_| format!("{} of {}", human::capacity(found.bytes), human::capacity(whole)));
        found.objects += 1;
        found.bytes += info.bytes;
        if is_good(session, &info)? {
            continue;
        }
        found.bad_count += 1;
        if repair {
            session.call(Action::Delete(info.key.clone()))?;
            found.removed += 1;
        }
        if found.bad.len() < NAMED_MAX {
            found.bad.push(info.key);
        }
    }
    Ok(found)
}

/// Reads all of an object; the store verifies what it reads.
fn is_good(session: &mut Session, info: &Info) -> Result<bool> {
    let part_bytes = PART_BYTES.max(piece_bytes(info.bytes));
    if info.layout != adit_kvstore::LayoutId::PLAIN || info.bytes <= part_bytes {
        return reads(session, info, Part::All, info.bytes);
    }
    let mut at = 0;
    while at < info.bytes {
        let end = info.bytes.min(at + part_bytes);
        if !reads(session, info, Part::Bytes(at..end), end - at)? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

fn reads(session: &mut Session, info: &Info, part: Part, bytes: u64) -> Result<bool> {
    let into = AnyBuffer::One(session.allocate(info.device, bytes)?);
    let item = GetItem { key: info.key.clone(), part, into };
    let (outcome, memory) = session.call(Action::Get(item))?;
    drop(one(memory));
    Ok(matches!(outcome, Outcome::Hit { .. }))
}

impl Found {
    fn json(&self) -> Value {
        let named = |key: &Key| json!({ "key": key.to_string(), "key_hex": hex(key) });
        json!({
            "objects": self.objects,
            "bytes": self.bytes,
            "bad": self.bad_count,
            "removed": self.removed,
            "bad_objects": self.bad.iter().map(named).collect::<Vec<_>>(),
            "interrupted": self.interrupted,
        })
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} objects, {} read and verified: {} bad, {} removed\n",
            self.objects,
            human::capacity(self.bytes),
            self.bad_count,
            self.removed
        );
        for key in &self.bad {
            text += &format!("  bad: {key}\n");
        }
        if self.bad_count > self.bad.len() as u64 {
            text += &format!("  and {} more\n", self.bad_count - self.bad.len() as u64);
        }
        text
    }
}
