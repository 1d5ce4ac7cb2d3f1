//! `adit kv check`: verifies every structure of a store offline, and reports what is lost.

use adit_kvstore::survey::{Fault, ShardSurvey};
use clap::Args;
use serde_json::{Value, json};

use super::store_arg::StoreArgs;
use super::survey::{IN_USE, Picture, naming_read_only};
use crate::failure::{Failure, Result};
use crate::human::{self, plural};
use crate::output;
use adit_tools_common::meter::Meter;

const EXAMPLES: &str = "\
Examples:
  adit kv check uring:kv.img
  While a server has it open:
    adit kv check uring:kv.img --read-only

Verifies superblocks, checkpoints, journals and the place of every object; writes nothing. Without --read-only the \
store must not be open elsewhere. With it, places that another process is writing to are read again, and only \
persistent errors count as damage. Does not read the objects' data; 'adit kv scrub' does. A journal that ends in a \
torn block is normal after a power cut: records after that block are lost, and the next opening continues there.";

/// Verifies every structure of a store, and reports what is lost
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Reads a store that another process may have open
    #[arg(long)]
    read_only: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When there is damage, after the report; when there is no store.
pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let mut reader = args.store.reader(!args.read_only).map_err(naming_read_only)?;
    let mut meter = Meter::new();
    let picture = reader.picture(|heads, shard, found| {
        meter.show(|_| format!("shard {shard} of {} is verified", heads.geometry.shards()));
        Ok(shard_json(shard, &found))
    })?;
    drop(meter);
    let name = args.store.name();
    let report = || report(&picture, reader.is_in_use);
    output::report(args.json, report, || table(&picture, &name, reader.is_in_use))?;
    match picture.faults.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{name}: {count} fault{}", plural(count as u64)))),
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

fn report(picture: &Picture<Value>, is_in_use: bool) -> Value {
    let Picture { heads, faults, moving, shards } = picture;
    let told = |fault: &Fault| json!({ "code": fault.code, "text": fault.text, "objects_lost": fault.objects_lost });
    json!({
        "devices": heads.copies.len(),
        "shards": shards,
        "in_use": is_in_use,
        "moving": moving,
        "objects_lost": lost(faults),
        "faults": faults.iter().map(told).collect::<Vec<_>>(),
    })
}

fn lost(faults: &[Fault]) -> u64 {
    faults.iter().map(|fault| fault.objects_lost).sum()
}

fn table(picture: &Picture<Value>, name: &str, is_in_use: bool) -> String {
    let Picture { faults, moving, shards, .. } = picture;
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
    if is_in_use {
        out += &format!("{IN_USE}\n");
    }
    if *moving > 0 {
        out += &format!("Another process was writing to {moving} places; this is not a fault.\n");
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
