//! fio's logs of I/Os (`read_iolog`), versions 2 and 3: what a job replays.
//!
//! A log is text: a line with its version, then a line for each action. In version 3 a line begins with the microseconds
//! since the start.
//!
//! | line | meaning |
//! |---|---|
//! | `FILE add`, `FILE open`, `FILE close` | the log has this file |
//! | `FILE read OFFSET BYTES`, likewise `write` and `trim` | an I/O |
//! | `FILE sync OFFSET BYTES`, likewise `datasync` | a flush of the file |
//! | `FILE wait MS 0` | in version 2: nothing more before this many milliseconds after the start, as fio 3.33 takes it |
//!
//! Logs that were appended to each other are replayed one after the other. Traces of blktrace are refused by name.

use std::fs;
use std::io::Read;
use std::sync::Arc;

use super::grammar::{Parsed, word};
use super::job::{AmountOptions, JobOptions};
use super::replay::{LogAction, LogEntry};
use super::targets;
use super::values::{BlockSizes, Workload};
use crate::failure::{Failure, Result};
use crate::units::Size;
use crate::way::{PerWay, Way};

/// The first four bytes of a trace of blktrace, less the version in the lowest byte.
const BLKTRACE: u32 = 0x6561_7400;
/// Microseconds of the unit of `wait`.
const US_PER_MS: u64 = 1000;

/// Reads the logs of a job that replays some; they decide its files and its I/Os.
///
/// # Errors
/// A log cannot be read, is none, or does not go with the job's other options.
pub(crate) fn load(job: &mut JobOptions) -> Result<()> {
    if job.replay.logs.is_empty() || job.replay.read.is_some() {
        return Ok(());
    }
    let mut log = Log::default();
    let mut all = Vec::new();
    for name in &job.replay.logs {
        let entries = log.parse(&text(name)?).map_err(|why| refusal(name, &why))?;
        let entries = job.replay.changed(entries);
        if entries.is_empty() {
            return Err(refusal(name, "it has no I/O to replay"));
        }
        all.push(Arc::from(entries));
    }
    let redirect = job.replay.redirect.clone();
    let strange = job.files.filename.iter().find(|name| !log.files.contains(name));
    if let Some(name) = strange.filter(|_| redirect.is_none()) {
        return Err(Failure::usage(format!(
            "job '{}': filename={name} is no file of its log, which decides the files; give replay_redirect={name} to \
             replay all of it there",
            job.name
        )));
    }
    job.files.filename = match redirect {
        Some(target) => vec![target],
        None => log.files,
    };
    job.files.directory = None;
    shape(job, all.iter().flat_map(|log: &Arc<[LogEntry]>| log.iter()).filter_map(LogEntry::io));
    job.replay.read = Some(all.into());
    Ok(())
}

/// Sets the job's options to what its I/Os are.
fn shape(job: &mut JobOptions, ios: impl Iterator<Item = (Way, u64, u64)>) {
    let mut sizes: PerWay<Option<(u64, u64)>> = PerWay::all(None);
    for (way, _, bytes) in ios {
        let (least, most) = sizes[way].unwrap_or((bytes, bytes));
        sizes[way] = Some((least.min(bytes), most.max(bytes)));
    }
    let has = |way: Way| sizes[way].is_some();
    let (reads, writes, trims) = (has(Way::Read), has(Way::Write), has(Way::Trim));
    job.rw = Workload { random: false, reads, writes, trims, step: 0 };
    // A trim needs no buffer of its length.
    let moved = sizes[Way::Read].or(sizes[Way::Write]);
    for way in [Way::Read, Way::Write, Way::Trim] {
        let of_way = if way == Way::Trim { None } else { sizes[way] };
        job.bs[way] = match of_way.or(moved).unwrap_or((4096, 4096)) {
            (least, most) if least == most => BlockSizes::Fixed(least),
            (least, most) => BlockSizes::Range(least, most),
        };
    }
    if job.amount.loops > 1 || job.time.time_based {
        let name = if job.time.time_based { "time_based" } else { "loops" };
        job.unheeded.push((name, "a log is replayed once, as by fio; give it several times"));
    }
    job.time.time_based = false;
    job.amount = AmountOptions { number_ios: job.amount.number_ios, ..JobOptions::usual().amount };
    job.amount.offset = Size::Bytes(0);
}

fn text(name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = match name {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(drop),
        name => fs::read(name).map(|content| bytes = content),
    };
    read.map_err(|error| refusal(name, &error.to_string()))?;
    let magic = bytes.first_chunk().map(|first| u32::from_ne_bytes(*first)).unwrap_or(0);
    if [magic, magic.swap_bytes()].iter().any(|magic| magic & !0xff == BLKTRACE) {
        return Err(refusal(
            name,
            "it is a trace of blktrace, which is not replayed; record it with fio's write_iolog, or use fio",
        ));
    }
    String::from_utf8(bytes).map_err(|_| refusal(name, "it is no text, so no log of fio"))
}

fn refusal(name: &str, why: &str) -> Failure {
    Failure::usage(format!("read_iolog={name}: {why}"))
}

/// Logs that are being read, which share their files.
#[derive(Debug, Default)]
struct Log {
    files: Vec<String>,
}

/// The state of a log up to a line.
#[derive(Debug, Default)]
struct Clock {
    /// Since the last action, in microseconds.
    waited_us: u64,
    /// Nothing before this time after the start, in microseconds.
    at_us: u64,
    /// The time of the last line of version 3.
    last_us: u64,
}

impl Log {
    /// Parses a log.
    ///
    /// # Errors
    /// A sentence that names the line.
    fn parse(&mut self, text: &str) -> Parsed<Vec<LogEntry>> {
        let (mut version, mut clock) = (None, Clock::default());
        let mut entries = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let at = |why: String| format!("line {number}: {why}");
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["fio", "version", given, "iolog"] = words[..] {
                version = Some(match given {
                    "2" => 2,
                    "3" => 3,
                    _ => return Err(at(format!("version {given} is unknown; 2 and 3 are read"))),
                });
                // The times of an appended log begin again.
                clock.last_us = 0;
                continue;
            }
            let Some(version) = version else {
                return Err(at("a log begins with 'fio version 3 iolog' or 2".to_owned()));
            };
            if !words.is_empty() {
                entries.extend(self.entry(&words, version, &mut clock).map_err(at)?);
            }
        }
        match version {
            Some(_) => Ok(entries),
            None => Err("it is empty; a log begins with 'fio version 3 iolog'".to_owned()),
        }
    }

    /// Parses a line into an entry, unless it only names a file or waits.
    fn entry(
        &mut self,
        words: &[&str],
        version: u32,
        clock: &mut Clock,
    ) -> Parsed<Option<LogEntry>> {
        let words = match words {
            [time, rest @ ..] if version == 3 => {
                let us = number(time)?;
                clock.waited_us += us.saturating_sub(clock.last_us);
                clock.last_us = us;
                rest
            }
            all => all,
        };
        let (action, file) = match *words {
            [file, "add" | "open" | "close"] => {
                self.file(file);
                return Ok(None);
            }
            [_, "wait", ms, _] if version == 2 => {
                clock.at_us = number(ms)?.saturating_mul(US_PER_MS);
                return Ok(None);
            }
            [file, "sync" | "datasync", _, _] => (LogAction::Flush, file),
            [file, name, offset, bytes] => (io(name, number(offset)?, number(bytes)?)?, file),
            _ => return Err(format!("'{}' is no action of a log", words.join(" "))),
        };
        let (after_us, at_us) = (std::mem::take(&mut clock.waited_us), clock.at_us);
        Ok(Some(LogEntry { after_us, at_us, file: self.file(file), action }))
    }

    /// Returns the index of a file, which is new if it was not named before.
    fn file(&mut self, name: &str) -> u32 {
        let known = self.files.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.files.push(name.to_owned());
            self.files.len() - 1
        }) as u32
    }
}

fn io(name: &str, offset: u64, bytes: u64) -> Parsed<LogAction> {
    let way = match name {
        "read" => Way::Read,
        "write" => Way::Write,
        "trim" => Way::Trim,
        _ => return Err(format!("'{name}' is none of read, write, trim, sync, datasync")),
    };
    if bytes == 0 || offset.checked_add(bytes).is_none() {
        return Err(format!("an I/O of {bytes} bytes at {offset} is none"));
    }
    Ok(LogAction::Io { way, offset, bytes })
}

fn number(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

/// Parses `replay_skip`, as in `write,trim`.
pub(super) fn skip(text: &str) -> Parsed<[bool; 4]> {
    let mut skip = [false; 4];
    for name in text.split(',') {
        let words = [("read", 0), ("write", 1), ("trim", 2), ("sync", 3)];
        skip[word(name.trim(), &words)?] = true;
    }
    Ok(skip)
}

/// Splits `read_iolog` into the names of logs.
pub(super) fn names(text: &str) -> Parsed<Vec<String>> {
    let names = targets::pieces(text);
    match names.iter().any(String::is_empty) {
        true => Err(format!("'{text}' names no log somewhere; write it as in first:second")),
        false => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::replay::ReplayOptions;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Parsed<(Vec<String>, Vec<LogEntry>)> {
        let mut log = Log::default();
        log.parse(text).map(|entries| (log.files, entries))
    }

    fn entry(after_us: u64, at_us: u64, file: u32, action: LogAction) -> LogEntry {
        LogEntry { after_us, at_us, file, action }
    }

    fn io(way: Way, offset: u64, bytes: u64) -> LogAction {
        LogAction::Io { way, offset, bytes }
    }

    #[test]
    fn both_versions_say_what_was_done_and_when() {
        // As fio 3.33 wrote it, with two files.
        let three = "fio version 3 iolog\n14 a add\n18 b add\n110 a open\n115 a write 0 4096\n151 b open\n\
                     151 b trim 4096 512\n340 a datasync 0 0\n400 a close\n";
        let expected = vec![
            entry(115, 0, 0, io(Way::Write, 0, 4096)),
            entry(36, 0, 1, io(Way::Trim, 4096, 512)),
            entry(189, 0, 0, LogAction::Flush),
        ];
        let files = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(parsed(three), Ok((files, expected)));
        let two = "fio version 2 iolog\n/x add\n/x open\n/x read 0 512\n/x wait 30 0\n/x sync 0 0\n/x close\n";
        let expected =
            vec![entry(0, 0, 0, io(Way::Read, 0, 512)), entry(0, 30_000, 0, LogAction::Flush)];
        assert_eq!(parsed(two), Ok((vec!["/x".to_owned()], expected)));
    }

    #[test]
    fn appended_logs_follow_each_other() {
        let one = "fio version 3 iolog\n5 f add\n10 f read 0 512\n70 f close\n";
        let (files, entries) = parsed(&one.repeat(2)).expect("two logs");
        let after: Vec<u64> = entries.iter().map(|entry| entry.after_us).collect();
        assert_eq!((files.len(), after), (1, vec![10, 60 + 10]));
    }

    #[test]
    fn options_change_what_is_replayed() {
        let text = "fio version 3 iolog\n100 f read 10000 512\n300 f write 0 512\n700 f sync 0 0\n1500 f trim 0 512\n";
        let (_, entries) = parsed(text).expect("a log");
        let change = |options: ReplayOptions| {
            let entries = options.changed(entries.clone());
            entries.iter().map(|it| (it.after_us, it.io().map(|io| io.1))).collect::<Vec<_>>()
        };
        let usual = ReplayOptions::default;
        let all = [(100, Some(10_000)), (200, Some(0)), (400, None), (800, Some(0))];
        assert_eq!(change(usual()), all);
        let skip = skip("write,sync").expect("ways");
        assert_eq!(
            change(ReplayOptions { skip, ..usual() }),
            [(100, Some(10_000)), (1400, Some(0))]
        );
        let fast = change(ReplayOptions { time_scale: 200, scale: 2, align: 4096, ..usual() });
        assert_eq!(fast, [(50, Some(4096)), (100, Some(0)), (200, None), (400, Some(0))]);
        let at_once = change(ReplayOptions { no_stall: true, ..usual() });
        assert!(at_once.iter().all(|(after, _)| *after == 0));
    }

    #[test]
    fn what_is_no_log_is_refused_with_its_line() {
        for (text, said) in [
            ("", "is empty"),
            ("hello\n", "line 1: a log begins with"),
            ("fio version 1 iolog\n", "version 1 is unknown; 2 and 3"),
            ("fio version 3 iolog\n0 f add\n1 f wait 5 0\n", "line 3: 'wait' is none of"),
            ("fio version 3 iolog\nf read 0 512\n", "line 2: 'f' is no number"),
            ("fio version 2 iolog\nf read 0\n", "'f read 0' is no action"),
            ("fio version 2 iolog\nf read 0 0\n", "an I/O of 0 bytes"),
            ("fio version 2 iolog\nf read 18446744073709551615 1\n", "is none"),
            ("fio version 2 iolog\nf erase 0 1\n", "'erase' is none of"),
        ] {
            let why = parsed(text).expect_err(text);
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_log_or_refused(text in "(fio version [23] iolog\n)?([0-9a-z ]{0,30}\n){0,5}") {
            drop(parsed(&text));
        }
    }
}
