//! `adit kv touch`: sets when objects expire, and writes no data.

use std::time::Duration;

use adit_kvstore::{Key, KvStore};
use clap::Args;

use super::any_store::{AnyStore, on};
use super::each::{answers, each};
use super::key;
use super::store_arg::StoreArg;
use crate::failure::Result;

const EXAMPLES: &str = "\
Examples:
  Another hour, whatever they had before:
    adit kv touch uring:kv.img session/17 session/18 --ttl 3600
  For as long as there is room:
    adit kv touch uring:kv.img session/17 --persist

Fails if any of the objects does not exist. Their versions stay.";

/// Sets when objects expire
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The objects' keys: text, or 0x0123abcd for bytes
    #[arg(value_name = "KEY", required = true, value_parser = key::key)]
    keys: Vec<Key>,

    /// Seconds from now after which they expire
    #[arg(long, value_name = "SECONDS", required_unless_present = "persist", value_parser = clap::value_parser!(u64).range(1..))]
    ttl: Option<u64>,

    /// They never expire
    #[arg(long, conflicts_with = "ttl")]
    persist: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When an object does not exist, and as [`each`].
pub(crate) fn run(args: &TouchArgs) -> Result<()> {
    let call = |any: &AnyStore| on!(any, store => touch(store, args));
    each(&args.store.all(), &args.keys, call, "touched", args.json)
}

/// Sets the expiry of each object; returns whether there was one.
fn touch(store: &impl KvStore, args: &TouchArgs) -> Result<Vec<bool>> {
    let keys = args.keys.iter().cloned();
    match args.ttl {
        Some(ttl) => answers(store.touch_many(keys, Duration::from_secs(ttl))),
        None => answers(keys.map(|key| store.persist(key)).collect::<Vec<_>>()),
    }
}
