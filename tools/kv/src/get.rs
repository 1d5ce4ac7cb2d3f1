//! `adit kv get`: reads an object.
//!
//! Every byte is verified before it is written anywhere. An output file appears complete or not at all
//! ([`WholeFile`]).

use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use adit_kvstore::store::{ObjectInfo, Pieces, Reader};
use adit_kvstore::{Error, Key, KvStore, PendingAnswer, Version};
use clap::Args;
use serde_json::json;

use super::any_store::{self, AnyStore, POOL_BYTES, on};
use super::key::{self, hex};
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output;
use crate::whole_file::WholeFile;
use adit_tools_common::meter::Meter;

const EXAMPLES: &str = "\
Examples:
  adit kv get uring:kv.img greeting
  adit kv get uring:kv.img 0x0123456789abcdef -o block.bin
  Its first 4 KiB:
    adit kv get uring:kv.img greeting --range 0-4095";

/// Bytes that are passed on at once.
const PASSED_BYTES: usize = 1 << 20;

/// Reads an object to standard output or into a file
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The object's key: text, or 0x0123abcd for bytes
    #[arg(value_parser = key::key)]
    key: Key,

    /// Writes to FILE, which appears once it is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The first and the last byte, from 0; without the last, up to the end
    #[arg(long, value_name = "A-B")]
    range: Option<Bytes>,

    /// Only if the object has this version, so that a range that is read later is of the same object
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,

    /// Prints JSON about what was written, with --output
    #[arg(long, requires = "output")]
    json: bool,
}

/// A byte range of an object: the first and the last byte, or up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    first: u64,
    last: Option<u64>,
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Bytes, String> {
        let refused = || format!("'{text}' is no range; write it as 0-4095 or as 4096-");
        let (first, last) = text.split_once('-').ok_or_else(refused)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| refused());
        let first = number(first)?;
        let last = if last.is_empty() { None } else { Some(number(last)?) };
        match last {
            Some(last) if last < first || last == u64::MAX => Err(refused()),
            _ => Ok(Bytes { first, last }),
        }
    }
}

impl Bytes {
    /// Returns the range within an object of `bytes`.
    fn of(self, bytes: u64) -> Option<Range<u64>> {
        let end = self.last.map_or(bytes, |last| bytes.min(last + 1));
        (self.first < bytes).then_some(self.first..end)
    }
}

/// Runs the command.
///
/// # Errors
/// When the object does not exist, or it cannot be read or written.
pub(crate) fn run(args: &GetArgs) -> Result<()> {
    let mut pool_bytes = POOL_BYTES;
    let (info, range) = loop {
        match read(args, pool_bytes)? {
            Ok(done) => break done,
            Err(needed) => pool_bytes = needed,
        }
    };
    let report = || {
        json!({
            "key": args.key.to_string(),
            "key_hex": hex(&args.key),
            "object_bytes": info.read_bytes(),
            "version": info.version.0,
            "bytes": range.end - range.start,
        })
    };
    output::report(args.json, report, String::new)
}

/// Reads the object through a pool of `pool_bytes`, or returns how many its pieces need if those are too few.
fn read(
    args: &GetArgs,
    pool_bytes: usize,
) -> Result<std::result::Result<(ObjectInfo, Range<u64>), usize>> {
    let store = args.store.all();
    store.on_with(None, pool_bytes, |any| {
        let found = on!(any, store => store.info(args.key.clone()).wait()?);
        let info = found.ok_or_else(|| store.no_objects(&[args.key.to_string()]))?;
        check_version(args, &info)?;
        let range = range_of(args, info.read_bytes())?;
        let needed = any_store::pool_bytes(info.piece_bytes());
        if needed > pool_bytes {
            return Ok(Err(needed));
        }
        let of = (&info, range.clone());
        match any {
            AnyStore::Own(own) => pass(args, own.reader(args.key.clone()).wait()?, of),
            AnyStore::Served(client) => pass(args, client.reader(args.key.clone())?, of),
        }?;
        Ok(Ok((info, range)))
    })
}

/// Returns the range to read of an object of `bytes`.
fn range_of(args: &GetArgs, bytes: u64) -> Result<Range<u64>> {
    Ok(match args.range {
        None => 0..bytes,
        Some(range) => range.of(bytes).ok_or_else(|| {
            Failure::failed(format!(
                "object '{}' has {} bytes; --range starts after its end",
                args.key, bytes
            ))
        })?,
    })
}

fn check_version(args: &GetArgs, info: &ObjectInfo) -> Result<()> {
    match args.if_version {
        Some(version) if version != info.version => Err(Failure::failed(format!(
            "object '{}' has version {}, not {version}: what was read of it before is of another \
             object; read it from its beginning",
            args.key, info.version
        ))),
        _ => Ok(()),
    }
}

/// Receives bytes; returns false once no more are wanted.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<bool>;

fn to_standard_output(bytes: &[u8]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // A closed pipe is no failure.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Passes a range of an object on to where the user wants it.
fn pass<P: Pieces>(
    args: &GetArgs,
    reader: Option<Reader<P>>,
    (info, range): (&ObjectInfo, Range<u64>),
) -> Result<()> {
    let mut reader =
        reader.filter(|reader| reader.version() == info.version).ok_or_else(|| gone(info))?;
    reader.set_range(range.clone());
    match &args.output {
        None => {
            // No line of progress between the object's own lines.
            let meter = (!io::stdout().is_terminal()).then(Meter::of_long_work);
            copy(reader, (info, range), meter, &mut to_standard_output)
        }
        Some(path) => into_file(reader, (info, range), path),
    }
}

/// Returns the failure for an object that is not there as its metadata say.
fn gone(info: &ObjectInfo) -> Failure {
    Failure::failed(format!(
        "object '{}' cannot be read: its data differ from what was put, and it counts as missing; or another client of \
         the store's server has replaced or removed it",
        info.key
    ))
}

/// Reads the reader's range piece by piece, each verified before any of it is passed on.
fn copy<P: Pieces>(
    mut reader: Reader<P>,
    (info, range): (&ObjectInfo, Range<u64>),
    mut meter: Option<Meter>,
    sink: Sink<'_>,
) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut passed = vec![0; PASSED_BYTES];
    loop {
        if interrupt.requested() {
            return Err(Failure::interrupted());
        }
        if let Some(meter) = &mut meter {
            meter.show_bytes(reader.position() - range.start, range.end - range.start);
        }
        let read = reader.read_into(passed.as_mut_slice().into());
        let read = read.map_err(|why| match why {
            Error::Gone { .. } => gone(info),
            why => why.into(),
        })?;
        let goes_on = if read == 0 { Ok(false) } else { sink(&passed[..read]) };
        match goes_on {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(why) => return Err(Failure::failed(format!("writing the object failed: {why}"))),
        }
    }
}

fn into_file<P: Pieces>(
    reader: Reader<P>,
    of: (&ObjectInfo, Range<u64>),
    path: &Path,
) -> Result<()> {
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    let mut file = WholeFile::create(path).map_err(failed)?;
    let meter = Some(Meter::of_long_work());
    copy(reader, of, meter, &mut |bytes| file.write_all(bytes).map(|()| true))
        .map_err(|failure| failure.and(format_args!("{} was not written", path.display())))?;
    file.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_first_and_its_last_byte() {
        let of = |text: &str, bytes| text.parse::<Bytes>().expect(text).of(bytes);
        assert_eq!(of("0-4095", 10_000), Some(0..4096));
        assert_eq!(of("5-5", 10_000), Some(5..6));
        assert_eq!(of("9000-", 10_000), Some(9000..10_000));
        assert_eq!(of("9000-20000", 10_000), Some(9000..10_000));
        assert_eq!(of("10000-", 10_000), None);
        for text in ["", "-", "5", "6-5", "-5", "a-b", "0-18446744073709551615"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
