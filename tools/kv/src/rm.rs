//! `adit kv rm`: removes objects.

use adit_kvstore::shard::Selection;
use adit_kvstore::{Key, KvStore, PendingAnswer, Version};
use clap::Args;
use serde_json::json;

use super::any_store::{AnyStore, on};
use super::each::{answers, each};
use super::key;
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::human::plural;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  adit kv rm uring:kv.img greeting 0x0123456789abcdef
  adit kv rm uring:kv.img --prefix user/
  adit kv rm uring:kv.img --tenant 'a team'
  Only the version that was read:
    adit kv rm uring:kv.img settings --if-version 1764272043123456

Removes the objects with these keys, and fails if any did not exist; or all objects of a tenant or with a prefix, \
and prints their number.";

/// Removes objects
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The objects' keys: text, or 0x0123abcd for bytes
    #[arg(value_name = "KEY", required_unless_present_any = ["prefix", "tenant"], value_parser = key::key)]
    keys: Vec<Key>,

    /// Removes all objects whose keys have this prefix: text, or 0x0123 for bytes
    // The full path makes clap take the bytes as one value.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["keys", "tenant"], value_parser = prefix)]
    prefix: Option<std::vec::Vec<u8>>,

    /// Removes all objects of this tenant
    #[arg(long, value_name = "NAME", conflicts_with = "keys")]
    tenant: Option<String>,

    /// Only this version of the object, and fails otherwise; with one key
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["prefix", "tenant"])]
    if_version: Option<Version>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Parses a prefix that does not select everything by mistake.
fn prefix(text: &str) -> std::result::Result<Vec<u8>, String> {
    match key::bytes(text)? {
        bytes if bytes.is_empty() => {
            Err("every key has it; to remove everything, format the store".to_owned())
        }
        bytes => Ok(bytes),
    }
}

/// Runs the command.
///
/// # Errors
/// When an object or the tenant does not exist, and as [`StoreArgs::on`](super::store_arg::StoreArgs::on).
pub(crate) fn run(args: &RmArgs) -> Result<()> {
    let of_tenant = || args.tenant.as_deref().map(|name| Selection::Tenant(name.into()));
    let prefixed = args.prefix.as_deref().map(|prefix| Selection::Prefix(prefix.into()));
    match prefixed.or_else(of_tenant) {
        Some(selection) => remove_all(args, &selection),
        None => remove_each(args),
    }
}

fn remove_all(args: &RmArgs, selection: &Selection) -> Result<()> {
    let store = args.store.all();
    let objects = store.on(|any| match (any, selection) {
        (AnyStore::Own(own), selection) => {
            if let Selection::Tenant(name) = selection
                && !own.tenants().wait()?.iter().any(|tenant| tenant.name == *name)
            {
                return Err(store.no_tenant(name));
            }
            Ok(own.delete_where(selection).wait()?)
        }
        (AnyStore::Served(client), Selection::Prefix(prefix)) => {
            Ok(client.delete_prefix(Key::new(prefix)?).wait()?)
        }
        (AnyStore::Served(_), _) => Err(Failure::usage(format!(
            "{}: --tenant needs the store's devices, which the server has; give keys or --prefix",
            store.name()
        ))),
    })?;
    let text = || format!("{objects} object{} removed\n", plural(objects));
    output::report(args.json, || json!({ "removed_objects": objects }), text)
}

fn remove_each(args: &RmArgs) -> Result<()> {
    if args.if_version.is_some() && args.keys.len() != 1 {
        return Err(Failure::usage("--if-version is the version of one object: give one key"));
    }
    let call = |any: &AnyStore| on!(any, store => delete(store, args));
    each(&args.store.all(), &args.keys, call, "removed", args.json)
}

/// Removes each object; returns whether there was one.
fn delete(store: &impl KvStore, args: &RmArgs) -> Result<Vec<bool>> {
    match args.if_version {
        Some(version) => answers(args.keys.iter().map(|key| store.delete_if(key.clone(), version))),
        None => answers(store.delete_many(args.keys.iter().cloned())),
    }
}
