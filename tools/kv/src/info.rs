//! `adit kv info`: describes a store or an object.

use std::fmt::Write;

use adit_kvshare::{Client, ClientOptions};
use adit_kvstore::survey::{DeviceFacts, Heads, ShardSurvey, SurveyedObject};
use adit_kvstore::{Key, KvStore, PendingAnswer, UNIT_BYTES};
use clap::Args;
use serde_json::{Value, json};

use super::any_store::connect;
use super::key::{self, hex};
use super::ls::{self, block_json, stored_unix_s};
use super::store_arg::StoreArg;
use super::survey::{IN_USE, Reader};
use crate::failure::Result;
use crate::human::{self, plural};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  adit kv info uring:kv.img
  adit kv info uring:kv.img greeting --json
  An object of a store that 'adit kv serve' has:
    adit kv info serve:kv.sock greeting

Writes nothing. The store may be open elsewhere; the report then shows one moment.";

/// Describes a store's format, or an object
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    store: StoreArg,

    /// An object: text, or 0x0123abcd for bytes
    #[arg(value_parser = key::key)]
    key: Option<Key>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the store or the object does not exist.
pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    let store = args.store.all();
    let found = match store.socket()? {
        Some(socket) => of_server(&connect(socket, &ClientOptions::default())?, args.key.as_ref())?,
        None => of_media(&mut store.reader(false)?, args.key.as_ref())?,
    };
    let missing = || store.no_objects(&args.key.iter().map(Key::to_string).collect::<Vec<_>>());
    let report = found.ok_or_else(missing)?;
    output::report(args.json, || &report, || lines(&report, &store.name()))
}

/// Returns what the media say of the store or of an object; `None` if there is no such object.
fn of_media(reader: &mut Reader, key: Option<&Key>) -> Result<Option<Value>> {
    let report = match key {
        None => Some(store_json(&reader.heads()?.0, &reader.facts())),
        Some(key) => find(reader, key)?,
    };
    Ok(report.map(|mut report| {
        report["in_use"] = reader.is_in_use.into();
        report
    }))
}

/// Returns what a server tells of its store or of an object; `None` if there is no such object.
fn of_server(client: &Client, key: Option<&Key>) -> Result<Option<Value>> {
    let report = match key {
        None => {
            let (stats, serving) = client.stats()?;
            Some(json!({
                "objects": stats.objects,
                "leased_objects": stats.leased,
                "used_bytes": stats.used_units * UNIT_BYTES,
                "data_bytes": stats.capacity_units * UNIT_BYTES,
                "memory_bytes": stats.memory_bytes,
                "tier_bytes": stats.tier_bytes,
                "clients": serving.clients_now,
                "mapped_bytes": serving.mapped_bytes_now,
            }))
        }
        Some(key) => client.info(key.clone()).wait()?.as_ref().map(ls::object_json),
    };
    Ok(report.map(|mut report| {
        report["in_use"] = true.into();
        report
    }))
}

/// Finds an object on the media by searching every shard, without computing the key's shard.
fn find(reader: &mut Reader, key: &Key) -> Result<Option<Value>> {
    let picture = reader.picture(|_, _, survey| {
        let at = survey.objects.binary_search_by(|found| found.key.cmp(key));
        Ok(at.ok().map(|at| object_json(&survey, &survey.objects[at])))
    })?;
    picture.warn_of_faults();
    let faults = picture.faults.len();
    let found = picture.shards.into_iter().flatten().next();
    Ok(found.map(|mut report: Value| {
        report["faults"] = faults.into();
        report
    }))
}

/// Returns the store's format.
pub(super) fn store_json(heads: &Heads, facts: &[DeviceFacts]) -> Value {
    let first = &heads.copies[0].superblock;
    let geometry = &heads.geometry;
    let id: String = first.store.iter().map(|byte| format!("{byte:02x}")).collect();
    let devices = (0..).zip(facts).zip(&heads.copies).map(|((index, facts), copies)| {
        let segments = geometry.chart().segments.iter().filter(|segment| segment.device == index);
        let bytes = segments.map(|segment| {
            json!([segment.units.start * UNIT_BYTES, segment.units.end * UNIT_BYTES,])
        });
        let shards = 0..geometry.shards();
        json!({
            "device": facts.device,
            "bytes": facts.bytes,
            "lba_bytes": facts.lba_bytes,
            "superblock_sequence": copies.superblock.sequence,
            "segments": bytes.collect::<Vec<_>>(),
            "home_of_shards": shards.filter(|shard| geometry.home(*shard) == index).count(),
            "superblock_copies_bad": copies.bad.iter().flatten().count(),
        })
    });
    json!({
        "store_id": id,
        "label": first.label,
        "shards": geometry.shards(),
        "objects_max": u64::from(first.objects_max) * u64::from(geometry.shards()),
        "key_bytes": geometry.key_bytes(first.objects_max),
        "data_bytes": geometry.data_units() * UNIT_BYTES,
        "journal_bytes": geometry.journal_units() * UNIT_BYTES * u64::from(geometry.shards()),
        "checkpoint_bytes": geometry.checkpoint_units() * UNIT_BYTES * 2 * u64::from(geometry.shards()),
        "epoch": heads.agreed.epoch,
        "changes_of_devices": heads.changes(),
        "opened_last_as": first.durability.to_string(),
        "devices": devices.collect::<Vec<_>>(),
    })
}

fn object_json(survey: &ShardSurvey, found: &SurveyedObject) -> Value {
    let object = &found.object;
    json!({
        "key": found.key.to_string(),
        "key_hex": hex(&found.key),
        "bytes": object.bytes,
        "device": object.place.device,
        "unit": object.place.unit,
        "tenant": survey.tenant_of(found),
        "block": survey.layout_of(found).map(|layout| block_json(layout.block())),
        "version": object.version.0,
        "stored_unix_s": stored_unix_s(object.version),
        "expires_unix_s": found.expires_s,
        "checksums": found.checksums.len(),
    })
}

/// Formats a report for people: a line for each member.
fn lines(report: &Value, title: &str) -> String {
    let mut out = format!("{title}\n");
    let mut add = |name: &str, value: &str| {
        writeln!(out, "  {name:<20}{value}").expect("a string takes everything");
    };
    for (member, value) in report.as_object().into_iter().flatten() {
        let words = member.replace('_', " ");
        match value {
            Value::Array(devices) => {
                devices.iter().for_each(|device| add("device", &device_line(device)));
            }
            Value::Bool(_) => {}
            Value::String(text) if text.is_empty() => add(&words, "none"),
            Value::Null => add(&words, "none"),
            value => add(&words, &told(member, value)),
        }
    }
    if report["in_use"] == true {
        out += &format!("  {IN_USE}\n");
    }
    out
}

fn told(member: &str, value: &Value) -> String {
    match (value.as_str(), value.as_u64()) {
        (Some(text), _) => human::printable(text),
        (_, Some(bytes)) if member.ends_with("bytes") && bytes >= 1024 => {
            format!("{} ({bytes} bytes)", human::capacity(bytes))
        }
        _ => value.to_string(),
    }
}

fn device_line(device: &Value) -> String {
    let bytes = device["bytes"].as_u64().unwrap_or_default();
    let bad = match device["superblock_copies_bad"].as_u64() {
        Some(0) | None => String::new(),
        Some(bad) => format!(", {bad} of 2 superblocks bad"),
    };
    let segments = device["segments"].as_array().map_or(0, Vec::len);
    let shards = device["home_of_shards"].as_u64().unwrap_or_default();
    format!(
        "{}, {}, LBA of {} bytes, {segments} segment{} of data, home of {shards} shard{}{bad}",
        human::printable(device["device"].as_str().unwrap_or_default()),
        human::capacity(bytes),
        device["lba_bytes"],
        plural(segments as u64),
        plural(shards),
    )
}
