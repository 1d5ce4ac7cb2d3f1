//! `adit kv put`: stores an object.
//!
//! A file is put in parts, so it may be larger than memory. Standard input is read completely first, because its
//! length is unknown, and what is long of it goes to a temporary file ([`measured`]).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_kvstore::shard::{Condition, Outcome};
use adit_kvstore::store::{PutWith, measured};
use adit_kvstore::{Error, Key, KvStore, PendingAnswer, Version, piece_bytes};
use clap::Args;
use serde_json::json;

use super::any_store::{AnyStore, on, pool_bytes};
use super::key::{self, hex};
use super::passing::Passing;
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  adit kv put uring:kv.img greeting hello.txt
  echo hello | adit kv put uring:kv.img 0x0123456789abcdef -
  tar c models | TMPDIR=/data adit kv put uring:kv.img models.tar
  Once, by whoever is first:
    adit kv put uring:kv.img leader me.txt --if-absent
  Only over the version that was read ('adit kv info' and 'put --json' show it):
    adit kv put uring:kv.img settings new.toml --if-version 1764272043123456

A key is text, or bytes in hexadecimal after 0x or hex:. A condition that does not hold fails and changes nothing. \
More than 8 MiB of standard input are kept in TMPDIR (/tmp) first: the store needs to know the length.";

/// Stores an object, replacing one with the same key
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The object's key: text, or 0x0123abcd for bytes; up to 512 bytes
    #[arg(value_parser = key::key)]
    key: Key,

    /// Its content; standard input by default and for '-'
    file: Option<PathBuf>,

    /// Seconds after which it expires
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    ttl: Option<u64>,

    /// Only if there is no such object
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,

    /// Only over this version of the object
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,

    /// The tenant that it belongs to; created if it is new
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The data to put, with its length.
struct Source {
    name: String,
    bytes: u64,
    data: Box<dyn Read>,
}

/// Runs the command.
///
/// # Errors
/// Why it could not be read or stored.
pub(crate) fn run(args: &PutArgs) -> Result<()> {
    let mut source = Source::open(args.file.as_deref())?;
    let (tenant, pool_bytes) = (args.tenant.as_deref(), pool_bytes(piece_bytes(source.bytes)));
    let (stored, version) = args.store.all().on_with(tenant, pool_bytes, |any| {
        let with = PutWith {
            tenant: match (any, tenant) {
                (AnyStore::Own(own), Some(name)) => Some(own.tenant(name).wait()?),
                _ => None,
            },
            ttl: args.ttl.map(Duration::from_secs),
            condition: condition(args),
            ..PutWith::default()
        };
        on!(any, store => put(store, &args.key, &mut source, &with))
    })?;
    if let Outcome::Declined(why) = stored {
        return Err(Failure::failed(format!("object '{}' was declined: {why:?}", args.key)));
    }
    let report = || {
        json!({
            "key": args.key.to_string(),
            "key_hex": hex(&args.key),
            "bytes": source.bytes,
            "version": version,
        })
    };
    output::report(args.json, report, String::new)
}

impl Source {
    fn open(path: Option<&Path>) -> Result<Source> {
        match path {
            None => Source::standard_input(),
            Some(path) if path.as_os_str() == "-" => Source::standard_input(),
            Some(path) => Source::file(path),
        }
    }

    fn standard_input() -> Result<Source> {
        let name = "standard input".to_owned();
        let (bytes, data) = measured(io::stdin()).map_err(|why| {
            Failure::failed(format!(
                "{name}: {why}; give the name of a file, or set TMPDIR to a folder with room"
            ))
        })?;
        Ok(Source { name, bytes, data })
    }

    fn file(path: &Path) -> Result<Source> {
        let name = path.display().to_string();
        let failed = |why: io::Error| Failure::failed(format!("{name}: {why}"));
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(Failure::failed(format!(
                "{name}: it is not a regular file; pipe its contents to 'adit kv put … -'"
            )));
        }
        Ok(Source { bytes: about.len(), name, data: Box::new(file) })
    }
}

/// Returns what must hold of the object that is there.
fn condition(args: &PutArgs) -> Condition {
    match args.if_version {
        Some(version) => Condition::Version(version),
        None if args.if_absent => Condition::Absent,
        None => Condition::Always,
    }
}

/// Stores the object; returns what came of that, and the version that is there then.
fn put(
    store: &impl KvStore,
    key: &Key,
    source: &mut Source,
    with: &PutWith,
) -> Result<(Outcome, Option<u64>)> {
    let interrupt = Interrupt::install()?;
    let data = Passing::new(&mut source.data, Some(source.bytes), &interrupt);
    let stored = store.put_from(key.clone(), Some(source.bytes), data, with);
    let stored = stored.map_err(|why| match why {
        _ if interrupt.requested() => Failure::stopped("interrupted; nothing was stored"),
        Error::Source { why } => {
            let name = &source.name;
            Failure::failed(format!("{name}: {why}; is another process changing it?"))
        }
        why => why.into(),
    })?;
    let info = store.info(key.clone()).wait()?;
    Ok((stored, info.map(|info| info.version.0)))
}
