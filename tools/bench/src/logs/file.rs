//! A log's file: buffers rows of text and writes them in large pieces.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::failure::{Failure, Result};
use crate::way::Way;

/// The buffer is flushed when it has less room than the longest row needs (a histogram of 1856 counts).
const CAPACITY: usize = 256 << 10;
const ROOM: usize = 64 << 10;

/// A file with buffered text.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Never exceeds [`CAPACITY`], so it never reallocates.
    text: Vec<u8>,
    /// The first failure; later writes are skipped.
    failure: Option<io::Error>,
}

/// The fields of a row besides its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRow {
    /// Time in milliseconds.
    pub(super) at_ms: u64,
    /// The second value of a window, if logged.
    pub(super) most: Option<u64>,
    pub(super) way: Way,
    /// The length of the I/O; 0 for a window.
    pub(super) bytes: u64,
    /// The I/O's offset, if there is a column for it.
    pub(super) offset: Option<u64>,
    /// Whether its priority is printed in hexadecimal.
    pub(super) shows_prio: bool,
    /// The issue time, if there is a column for it.
    pub(super) issued_ns: Option<u64>,
}

impl LogFile {
    /// Creates or truncates the file; a `shared` file is appended to, so that several writers can use it.
    pub(super) fn open(path: PathBuf, shared: bool) -> Result<LogFile> {
        let mut how = OpenOptions::new();
        if shared {
            how.append(true).create(true);
        } else {
            how.write(true).create(true).truncate(true);
        }
        let file = how.open(&path).map_err(|error| {
            let path = path.display();
            Failure::failed(format!(
                "the log {path} cannot be created: {error}; name another place"
            ))
        })?;
        Ok(LogFile { path, file, text: Vec::with_capacity(CAPACITY), failure: None })
    }

    /// Appends a row with a value.
    pub(super) fn add(&mut self, row: LogRow, value: u64) {
        let LogRow { at_ms, most, way, bytes, offset, shows_prio, issued_ns } = row;
        let way = way as u64;
        self.write(|text| {
            write!(text, "{at_ms}, {value}")?;
            let columns = most.into_iter().chain([way, bytes]).chain(offset);
            columns.into_iter().try_for_each(|column| write!(text, ", {column}"))?;
            text.write_all(if shows_prio { b", 0x0000" } else { b", 0" })?;
            issued_ns.into_iter().try_for_each(|ns| write!(text, ", {ns}"))?;
            writeln!(text)
        });
    }

    /// Appends a histogram.
    pub(super) fn add_counts(
        &mut self,
        (at_ms, way, bytes): (u64, Way, u64),
        counts: impl Iterator<Item = u64>,
    ) {
        let way = way as usize;
        self.write(|text| {
            write!(text, "{at_ms}, {way}, {bytes}")?;
            for count in counts {
                write!(text, ", {count}")?;
            }
            writeln!(text)
        });
    }

    pub(super) fn write(&mut self, row: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
        row(&mut self.text).expect("memory takes everything");
        if self.text.len() > CAPACITY - ROOM {
            self.drain();
        }
    }

    /// Writes whole rows in one call, so that rows of shared files stay intact.
    fn drain(&mut self) {
        if self.failure.is_none() {
            self.failure = self.file.write_all(&self.text).err();
        }
        self.text.clear();
    }

    /// Flushes the buffer and returns the first failure since the file was opened.
    pub(super) fn finish(&mut self) -> Option<Failure> {
        self.drain();
        let (error, path) = (self.failure.take()?, self.path.display());
        Some(Failure::failed(format!(
            "the log {path} is incomplete: {error}; make room, or log less with log_avg_msec"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_never_grows_whatever_is_written() {
        let mut file = LogFile::open("/dev/null".into(), false).expect("opened");
        let (capacity, row) = (
            file.text.capacity(),
            LogRow {
                at_ms: u64::MAX,
                most: Some(u64::MAX),
                way: Way::Trim,
                bytes: u64::MAX,
                offset: Some(u64::MAX),
                shows_prio: true,
                issued_ns: Some(u64::MAX),
            },
        );
        for _ in 0..50 {
            file.add_counts((u64::MAX, Way::Trim, u64::MAX), std::iter::repeat_n(u64::MAX, 1856));
            (0..100).for_each(|value| file.add(row, value));
        }
        assert_eq!(file.text.capacity(), capacity);
        assert!(file.finish().is_none());
    }
}
