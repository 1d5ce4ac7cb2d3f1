//! `adit kv ls`: which objects there are.

use adit_kvstore::shard::Info;
use clap::Args;
use serde_json::json;

use super::key::{PrefixArg, hex};
use super::session::Session;
use super::store::StoreArgs;
use crate::failure::Result;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  adit kv ls uring:kv.img
  adit kv ls uring:kv.img --prefix user/ --json
  The ten largest:
    adit kv ls uring:kv.img | sort -rn | head

Each line is an object's bytes and its key, in no particular order. Bytes of a key that are not printable ASCII are
written as \\x1f.";

/// Lines that are written at once.
const LINES: usize = 256;

/// Lists the objects of a store
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Only keys that begin so: text, or 0x0123 for bytes
    #[arg(long, value_name = "KEY", default_value = "")]
    prefix: PrefixArg,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// As [`Session::open`].
pub(crate) fn run(args: &LsArgs) -> Result<()> {
    let session = Session::open(args.store.targets.clone())?;
    let mut list = List { args, text: String::new(), lines: 0, count: 0 };
    if args.json {
        list.text.push('[');
    }
    session.scan(&mut |info| list.add(&info))?;
    if args.json {
        list.text.push_str(if list.count == 0 { "]\n" } else { "\n]\n" });
    }
    Output::Standard.write(&list.text)?;
    session.close()
}

/// What is not written yet.
struct List<'a> {
    args: &'a LsArgs,
    text: String,
    lines: usize,
    count: u64,
}

impl List<'_> {
    fn add(&mut self, info: &Info) -> Result<()> {
        if !info.key.as_bytes().starts_with(&self.args.prefix.0) {
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

/// What is told of an object.
pub(super) fn object_json(info: &Info) -> serde_json::Value {
    json!({
        "key": info.key.to_string(),
        "key_hex": hex(&info.key),
        "bytes": info.bytes,
        "device": info.device,
        "layout": info.layout.0,
        "tenant": info.tenant.0,
        "ttl_s": info.ttl_s,
    })
}
