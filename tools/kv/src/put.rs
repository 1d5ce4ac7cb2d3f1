//! `adit kv put`: stores an object.
//!
//! A file is put in parts, so it may be larger than memory. Standard input is read completely first, because its
//! length is unknown, and what is long of it goes to a temporary file ([`measured`]).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{
    Action, Condition, FillItem, Outcome, Part, PutItem, PutOptions, ReserveItem, WriterId,
};
use adit_kvstore::store::measured;
use adit_kvstore::{Key, Version, piece_bytes};
use clap::Args;
use serde_json::json;

use super::key::{self, hex};
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output;
use adit_tools_common::meter::Meter;
use adit_tools_common::session::{Session, one};

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

/// Minimum bytes per put; longer objects are put in parts.
const PART_BYTES: u64 = 8 << 20;

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
    let (stored, version) = args.store.all().with(|session| {
        let stored = put(session, args, &mut source)?;
        Ok((stored, session.info(&args.key).map(|info| info.version.0)))
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

    /// Fills `into` with the next bytes.
    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let read = self.data.read_exact(into);
        read.map_err(|why| {
            Failure::failed(format!("{}: {why}; is another process changing it?", self.name))
        })
    }
}

fn put(session: &mut Session, args: &PutArgs, source: &mut Source) -> Result<Outcome> {
    let tenant = args.tenant.as_deref().map(|name| session.tenant(name)).transpose()?;
    let tenant = tenant.unwrap_or_default();
    let condition = match args.if_version {
        Some(version) => Condition::Version(version),
        None if args.if_absent => Condition::Absent,
        None => Condition::Always,
    };
    let options = PutOptions { tenant, ttl_s: args.ttl, condition, ..PutOptions::default() };
    let bytes = source.bytes;
    let key = args.key.clone();
    if bytes > PART_BYTES {
        let item = ReserveItem { key, bytes, options };
        return in_parts(session, item, source);
    }
    let mut data = session.allocate(0, bytes)?;
    source.read(&mut data[..bytes as usize])?;
    let item = PutItem { key, bytes, data: AnyBuffer::One(data), options };
    Ok(session.call(Action::Put(item))?.0)
}

fn in_parts(session: &mut Session, item: ReserveItem, source: &mut Source) -> Result<Outcome> {
    let bytes = item.bytes;
    let (writer, device) = match session.call(Action::Reserve(item))?.0 {
        Outcome::Reserved { writer, device } => (writer, device),
        other => return Ok(other),
    };
    let filled = fill(session, (writer, device), bytes, source);
    match filled {
        Ok(()) => Ok(session.call(Action::Seal(writer))?.0),
        Err(failure) => {
            session.local_mut().abandon(writer);
            Err(failure)
        }
    }
}

fn fill(
    session: &mut Session,
    (writer, device): (WriterId, u8),
    bytes: u64,
    source: &mut Source,
) -> Result<()> {
    let part_bytes = PART_BYTES.max(piece_bytes(bytes));
    let interrupt = Interrupt::install()?;
    let mut meter = Meter::of_long_work();
    let mut memory = session.allocate(device, part_bytes)?;
    let mut at = 0;
    while at < bytes {
        if interrupt.requested() {
            return Err(Failure::stopped("interrupted; nothing was stored"));
        }
        meter.show_bytes(at, bytes);
        let end = bytes.min(at + part_bytes);
        source.read(&mut memory[..(end - at) as usize])?;
        let item = FillItem { writer, part: Part::Bytes(at..end), data: AnyBuffer::One(memory) };
        let (_, back) = session.call(Action::Fill(item))?;
        memory = one(back);
        at = end;
    }
    Ok(())
}
