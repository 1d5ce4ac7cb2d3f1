//! `adit kv get`: reads an object.
//!
//! Every byte is verified before it is written anywhere. An output file appears complete or not at all
//! ([`WholeFile`]).

use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Action, GetItem, Outcome, Part};
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Key, Version};
use clap::Args;
use serde_json::json;

use super::key::{self, hex};
use super::store_arg::StoreArg;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output;
use crate::whole_file::WholeFile;
use adit_tools_common::meter::Meter;
use adit_tools_common::session::{Session, one};

const EXAMPLES: &str = "\
Examples:
  adit kv get uring:kv.img greeting
  adit kv get uring:kv.img 0x0123456789abcdef -o block.bin
  Its first 4 KiB:
    adit kv get uring:kv.img greeting --range 0-4095";

/// Minimum bytes per read; longer objects are read in parts.
const PART_BYTES: u64 = 8 << 20;

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
    let store = args.store.all();
    let (info, range) = store.with(|session| {
        let found = session.info(&args.key);
        let info = found.ok_or_else(|| store.no_objects(&[args.key.to_string()]))?;
        check_version(args, &info)?;
        let range = range_of(args, info.read_bytes())?;
        match &args.output {
            None => {
                // No line of progress between the object's own lines.
                let meter = (!io::stdout().is_terminal()).then(Meter::of_long_work);
                copy(session, (&info, range.clone()), meter, &mut to_standard_output)?;
            }
            Some(path) => into_file(session, &info, range.clone(), path)?,
        }
        Ok((info, range))
    })?;
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

/// Reads a range of an object in parts, each verified before any of it is passed on.
fn copy(
    session: &mut Session,
    (info, range): (&ObjectInfo, Range<u64>),
    mut meter: Option<Meter>,
    sink: Sink<'_>,
) -> Result<()> {
    // Parts consist of whole pieces with checksums.
    let (bytes, piece) = (info.read_bytes(), info.piece_bytes());
    let part_bytes = (PART_BYTES / piece * piece).max(piece);
    let mut memory = session.allocate(info.device, part_bytes.min(bytes))?;
    let interrupt = Interrupt::install()?;
    let mut at = range.start - range.start % piece;
    while at < range.end {
        if interrupt.requested() {
            return Err(Failure::interrupted());
        }
        if let Some(meter) = &mut meter {
            meter.show_bytes(at.saturating_sub(range.start), range.end - range.start);
        }
        let end = (at + part_bytes).min(range.end.next_multiple_of(piece)).min(bytes);
        let part = if at == 0 && end == bytes { Part::All } else { Part::Bytes(at..end) };
        let item = GetItem {
            key: info.key.clone(),
            part,
            into: AnyBuffer::One(memory),
            version: Some(info.version),
        };
        let (outcome, back) = session.call(Action::Get(item))?;
        memory = one(back);
        if !matches!(outcome, Outcome::Hit { bytes } if bytes == end - at) {
            return Err(Failure::failed(format!(
                "object '{}' cannot be read: its data differ from what was put; it counts as missing",
                info.key
            )));
        }
        let wanted = range.start.max(at) - at..range.end.min(end) - at;
        let wanted = wanted.start as usize..wanted.end as usize;
        match sink(&memory[wanted]) {
            Ok(true) => at = end,
            Ok(false) => return Ok(()),
            Err(why) => return Err(Failure::failed(format!("writing the object failed: {why}"))),
        }
    }
    Ok(())
}

fn into_file(
    session: &mut Session,
    info: &ObjectInfo,
    range: Range<u64>,
    path: &Path,
) -> Result<()> {
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    let mut file = WholeFile::create(path).map_err(failed)?;
    let meter = Some(Meter::of_long_work());
    copy(session, (info, range), meter, &mut |bytes| file.write_all(bytes).map(|()| true))
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
