//! `adit kv ls`: lists objects.

use std::time::{SystemTime, UNIX_EPOCH};

use adit_kvstore::layout::BlockShape;
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::survey::ShardSurvey;
use adit_kvstore::{KvStore, PendingAnswer, Version};
use clap::Args;
use serde_json::{Value, json};

use super::any_store::on;
use super::key::{self, hex};
use super::store_arg::StoreArgs;
use super::survey::naming_read_only;
use crate::failure::Result;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit kv ls uring:kv.img
  adit kv ls uring:kv.img --prefix user/ --json
  The ten largest:
    adit kv ls uring:kv.img | sort -rn | head
  While a server has it:
    adit kv ls serve:kv.sock
    adit kv ls uring:kv.img --read-only

Each line is an object's bytes and its key, in no particular order. A prefix makes it no faster: the store has no \
order of keys and looks at all. Bytes of a key that are not printable ASCII are written as \\x1f.";

/// Objects asked for at once.
const PAGE: usize = 1024;
/// Lines written at once.
const LINES: usize = 256;

/// Lists the objects of a store
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Only keys with this prefix: text, or 0x0123 for bytes
    // The full path makes clap take the bytes as one value.
    #[arg(long, value_name = "KEY", default_value = "", value_parser = key::bytes)]
    prefix: std::vec::Vec<u8>,

    /// Reads a store that another process may have open, as it is at one moment
    #[arg(long)]
    read_only: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// As [`StoreArgs::on`].
pub(crate) fn run(args: &LsArgs) -> Result<()> {
    if args.read_only {
        return look(args);
    }
    let listed = args.store.on(|any| on!(any, store => list(store, args)));
    listed.map_err(naming_read_only)
}

fn list(store: &impl KvStore, args: &LsArgs) -> Result<()> {
    let (mut list, mut from) = (List::new(args), Some(0));
    while let Some(cursor) = from {
        let (page, next) = store.scan_prefix(&args.prefix, cursor, PAGE).wait()?;
        page.iter().try_for_each(|info| list.add(info))?;
        from = next;
    }
    list.end()
}

/// Lists the objects on the media, by key in each shard.
fn look(args: &LsArgs) -> Result<()> {
    let mut reader = args.store.reader(false)?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let picture = reader.picture(|_, _, survey| Ok(live(&survey, now_s)))?;
    reader.warn_of_use();
    picture.warn_of_faults();
    let mut list = List::new(args);
    picture.shards.iter().flatten().try_for_each(|info| list.add(info))?;
    list.end()
}

/// Returns a shard's objects that have not expired.
fn live(survey: &ShardSurvey, now_s: u64) -> Vec<ObjectInfo> {
    let live = survey.objects.iter().filter(|found| found.expires_s.is_none_or(|at| at > now_s));
    let info = live.map(|found| ObjectInfo {
        key: found.key.clone(),
        bytes: found.object.bytes,
        tenant: survey.tenant_of(found).into(),
        layout: survey.layout_of(found).copied(),
        version: found.object.version,
        ttl_s: found.expires_s.map(|at| at - now_s),
        device: found.object.place.device,
    });
    info.collect()
}

/// Lines that are not written yet.
struct List<'a> {
    args: &'a LsArgs,
    text: String,
    lines: usize,
    count: u64,
}

impl List<'_> {
    fn new(args: &LsArgs) -> List<'_> {
        let text = if args.json { "[" } else { "" };
        List { args, text: text.to_owned(), lines: 0, count: 0 }
    }

    fn end(mut self) -> Result<()> {
        if self.args.json {
            self.text.push_str(if self.count == 0 { "]\n" } else { "\n]\n" });
        }
        Output::Standard.write(&self.text)
    }

    fn add(&mut self, info: &ObjectInfo) -> Result<()> {
        if !info.key.as_bytes().starts_with(&self.args.prefix) {
            return Ok(());
        }
        match self.args.json {
            true => {
                self.text.push_str(if self.count == 0 { "\n  " } else { ",\n  " });
                self.text.push_str(&object_json(info).to_string());
            }
            false => self.text.push_str(&format!("{:>12}  {}\n", info.bytes, info.key)),
        }
        (self.count, self.lines) = (self.count + 1, self.lines + 1);
        if self.lines >= LINES {
            self.lines = 0;
            return Output::Standard.write(&std::mem::take(&mut self.text));
        }
        Ok(())
    }
}

/// Returns an object's entry.
pub(super) fn object_json(info: &ObjectInfo) -> Value {
    json!({
        "key": info.key.to_string(),
        "key_hex": hex(&info.key),
        "bytes": info.bytes,
        "device": info.device,
        "tenant": info.tenant,
        "block": info.layout.map(|layout| block_json(layout.block())),
        "version": info.version.0,
        "stored_unix_s": stored_unix_s(info.version),
        "ttl_s": info.ttl_s,
    })
}

/// Returns when an object of this version was stored; `None` if that is not known.
pub(super) fn stored_unix_s(version: Version) -> Option<u64> {
    let stored = version.time()?.duration_since(UNIX_EPOCH).ok()?;
    Some(stored.as_secs())
}

/// Describes a KV block.
pub(super) fn block_json(block: &BlockShape) -> Value {
    json!({
        "layers": block.layers,
        "tensors_per_layer": block.tensors_per_layer,
        "kv_heads": block.kv_heads,
        "head_dim": block.head_dim,
        "dtype": format!("{:?}", block.dtype).to_lowercase(),
        "tokens": block.tokens,
    })
}
