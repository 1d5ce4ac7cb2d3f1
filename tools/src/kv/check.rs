//! `adit kv check`: verifies every structure of a store offline, and says what is lost.

use adit_kvstore::survey::{self, Fault, Heads, ShardSurvey};
use clap::Args;
use serde_json::{Value, json};

use super::meter::Meter;
use super::store::{StoreArgs, name};
use super::survey::Reader;
use crate::failure::{Failure, Result};
use crate::human;
use crate::output::Output;

const EXAMPLES: &str = "\
Example:
  adit kv check uring:kv.img

Superblocks, checkpoints, journals and every object's place are verified; nothing is written, and the store must not be
open elsewhere. The objects' data are not read: 'adit kv scrub' does that. A journal that ends in a torn block is what
a power cut leaves; what was written after it is lost, and the next opening goes on there.";

/// Verifies every structure of a store, and says what is lost
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When something is wrong, after the report; when there is no store.
pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let targets = &args.store.targets;
    let mut reader = Reader::open(targets, true)?;
    let facts = reader.facts();
    let heads = survey::heads(&mut reader, &facts)?;
    let mut faults = survey::of_heads(&heads, &facts);
    let (mut meter, mut shards) = (Meter::new(), Vec::new());
    let count = heads.geometry.shards();
    for shard in 0..count {
        meter.show(|_| format!("shard {shard} of {count}"));
        let mut found = survey::shard(&mut reader, &heads, shard)?;
        faults.append(&mut found.faults);
        shards.push(shard_json(shard, &found));
    }
    drop(meter);
    let text = match args.json {
        true => format!("{:#}\n", report(&heads, &shards, &faults)),
        false => table(&shards, &faults, &name(targets)),
    };
    Output::Standard.write(&text)?;
    match faults.len() {
        0 => Ok(()),
        1 => Err(Failure::failed(format!("{}: 1 fault", name(targets)))),
        count => Err(Failure::failed(format!("{}: {count} faults", name(targets)))),
    }
}

fn shard_json(shard: u16, found: &ShardSurvey) -> Value {
    let recovered = &found.recovered;
    json!({
        "shard": shard,
        "checkpoint": recovered.checkpoint.map(|chosen| chosen.number),
        "checkpoint_records": recovered.checkpoint_records,
        "journal_blocks": recovered.journal_blocks,
        "journal_records": recovered.journal_records,
        "objects": found.objects.len(),
        "tenants": found.tenants.len(),
        "layouts": found.layouts.len(),
        "used_bytes": found.space.used_units * adit_kvstore::UNIT_BYTES,
        "data_bytes": found.space.data_units * adit_kvstore::UNIT_BYTES,
    })
}

fn report(heads: &Heads, shards: &[Value], faults: &[Fault]) -> Value {
    let told = |fault: &Fault| json!({ "code": fault.code, "text": fault.text, "objects_lost": fault.objects_lost });
    json!({
        "devices": heads.copies.len(),
        "shards": shards,
        "objects_lost": lost(faults),
        "faults": faults.iter().map(told).collect::<Vec<_>>(),
    })
}

fn lost(faults: &[Fault]) -> u64 {
    faults.iter().map(|fault| fault.objects_lost).sum()
}

fn table(shards: &[Value], faults: &[Fault], name: &str) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let mut out = String::new();
    for shard in shards {
        let from = match shard["checkpoint"].as_u64() {
            Some(checkpoint) => format!("checkpoint {checkpoint}"),
            None => "no checkpoint".to_owned(),
        };
        out += &format!(
            "shard {}: {} objects in {} of {}, by {from} and {} journal blocks\n",
            shard["shard"],
            shard["objects"],
            human::capacity(number(&shard["used_bytes"])),
            human::capacity(number(&shard["data_bytes"])),
            shard["journal_blocks"],
        );
    }
    for fault in faults {
        out += &format!("  {}\n", human::printable(&fault.text));
    }
    match (faults.len(), lost(faults)) {
        (0, _) => out += &format!("{name}: nothing is wrong\n"),
        (_, 0) => out += "No object is known to be lost.\n",
        (_, lost) => out += &format!("{lost} objects are lost.\n"),
    }
    out
}
