//! `adit kv touch`: sets when objects expire, and writes no data.

use adit_kvstore::Key;
use adit_kvstore::shard::{Action, Outcome, TouchItem};
use clap::Args;
use serde_json::json;

use super::key;
use super::session::Session;
use super::store::{self, StoreArg};
use crate::failure::Result;
use crate::output::Output;

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
/// When an object does not exist, and as [`Session::open`].
pub(crate) fn run(args: &TouchArgs) -> Result<()> {
    let targets = args.store.targets();
    let mut session = Session::open(targets.clone())?;
    let touch = |key: &Key| Action::Touch(TouchItem { key: key.clone(), ttl_s: args.ttl });
    let outcomes = session.batch(args.keys.iter().map(touch).collect())?;
    session.close()?;
    let (mut touched, mut missing) = (Vec::new(), Vec::new());
    for (key, (outcome, _)) in args.keys.iter().zip(outcomes) {
        let list = if outcome == Outcome::Touched { &mut touched } else { &mut missing };
        list.push(key.to_string());
    }
    if args.json {
        let report = json!({ "touched": touched, "missing": missing });
        Output::Standard.write(&format!("{report:#}\n"))?;
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(store::no_objects(&targets, &missing)),
    }
}
