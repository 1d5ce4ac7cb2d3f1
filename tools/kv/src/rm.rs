//! `adit kv rm`: removes objects.

use adit_kvstore::Key;
use adit_kvstore::shard::{Action, Outcome};
use clap::Args;
use serde_json::json;

use super::key;
use super::session::Session;
use super::store::{self, StoreArg};
use crate::failure::{Failure, Result};
use crate::output::Output;

const EXAMPLES: &str = "\
Example:
  adit kv rm uring:kv.img greeting 0x0123456789abcdef

Removes the objects that exist, and fails if any did not.";

/// Removes objects
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The objects' keys: text, or 0x0123abcd for bytes
    #[arg(value_name = "KEY", required = true, value_parser = key::key)]
    keys: Vec<Key>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When an object does not exist, and as [`Session::open`].
pub(crate) fn run(args: &RmArgs) -> Result<()> {
    let targets = args.store.targets();
    let mut session = Session::open(targets.clone())?;
    let (mut removed, mut missing) = (Vec::new(), Vec::new());
    for key in &args.keys {
        match session.call(Action::Delete(key.clone()))?.0 {
            Outcome::Deleted => removed.push(key.to_string()),
            _ => missing.push(key.to_string()),
        }
    }
    session.close()?;
    if args.json {
        let report = json!({ "removed": removed, "missing": missing });
        Output::Standard.write(&format!("{report:#}\n"))?;
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: there is no object '{}'",
            store::name(&targets),
            missing.join("', '")
        ))),
    }
}
