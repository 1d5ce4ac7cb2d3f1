//! fio's log of the I/Os that a job issues (`write_iolog`), version 3, which fio and `read_iolog` replay.
//!
//! Rows are appended, as by fio: a log that is there stays, and both are replayed one after the other.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::file::LogFile;
use crate::failure::{Failure, Result};
use crate::way::Way;

/// The log of one thread.
#[derive(Debug)]
pub(crate) struct IoLog {
    file: LogFile,
    /// The names of the job's files.
    names: Vec<String>,
    /// What a flush is called.
    flush: &'static str,
}

impl IoLog {
    /// Begins a log of I/Os on files of these `names`. Flushes are those of `fdatasync`, if `is_data` is set.
    ///
    /// # Errors
    /// The file cannot be created, or a name has a blank, which ends a name in the log.
    pub(crate) fn open(path: &Path, names: Vec<String>, is_data: bool) -> Result<IoLog> {
        if let Some(name) = names.iter().find(|name| name.contains(char::is_whitespace)) {
            return Err(Failure::usage(format!(
                "write_iolog: a name in the log ends at a blank, and '{name}' has one; rename the file or link to it"
            )));
        }
        let mut file = LogFile::open(path.to_owned(), true)?;
        file.write(|text| writeln!(text, "fio version 3 iolog"));
        for action in ["add", "open"] {
            for name in &names {
                file.write(|text| writeln!(text, "0 {name} {action}"));
            }
        }
        let flush = if is_data { "datasync" } else { "sync" };
        Ok(IoLog { file, names, flush })
    }

    /// Records an I/O of `bytes` at `offset` of a file, or a flush, issued `at` after the start.
    pub(crate) fn record(
        &mut self,
        at: Duration,
        file: u32,
        way: Option<Way>,
        (offset, bytes): (u64, u64),
    ) {
        let action = way.map_or(self.flush, Way::name);
        let (us, name) = (at.as_micros(), &self.names[file as usize]);
        self.file.write(|text| writeln!(text, "{us} {name} {action} {offset} {bytes}"));
    }

    /// Ends the log.
    ///
    /// # Errors
    /// Something could not be written.
    pub(crate) fn finish(mut self, at: Duration) -> Result<()> {
        let us = at.as_micros();
        for name in &self.names {
            self.file.write(|text| writeln!(text, "{us} {name} close"));
        }
        self.file.finish().map_or(Ok(()), Err)
    }
}
