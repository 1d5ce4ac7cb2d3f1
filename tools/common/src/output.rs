//! Output of reports, to standard output or a file, and of remarks, to standard error.
//!
//! All output passes through [`printable_lines`], so that text from a drive, another user or a server cannot
//! control a terminal. [`printable`](crate::human::printable) keeps such text on its line where the line is
//! composed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::human::{printable, printable_lines};

/// A warning of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A word for programs, such as `data-destroyed`.
    pub code: &'static str,
    /// A sentence for people.
    pub text: String,
}

/// The destination of a report.
///
/// A closed pipe (`adit identify … | head -1`) is no failure: the rest is dropped.
#[derive(Debug)]
pub enum Output {
    /// Standard output.
    Standard,
    /// A file, with its path for messages.
    File(File, PathBuf),
}

impl Output {
    /// Creates or truncates the file at `path`, or uses standard output without a path.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn open(path: Option<&Path>) -> Result<Output> {
        let Some(path) = path else { return Ok(Output::Standard) };
        let created = File::create(path);
        let file =
            created.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Output::File(file, path.to_owned()))
    }

    /// Appends `text`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let text = printable_lines(text);
        let (written, name) = match self {
            Output::Standard => (to_standard_output(&text), "standard output".to_owned()),
            Output::File(file, path) => {
                (file.write_all(text.as_bytes()), path.display().to_string())
            }
        };
        written.map_err(|error| Failure::failed(format!("{name}: {error}")))
    }

    /// Appends `report` as indented JSON and a line feed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&mut self, report: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
        self.write(&(text + "\n"))
    }
}

/// Prints a report to standard output: as JSON for programs, or as text for people.
///
/// # Errors
/// When it cannot be written.
pub fn report<T: Serialize>(
    is_json: bool,
    json: impl FnOnce() -> T,
    text: impl FnOnce() -> String,
) -> Result<()> {
    if is_json { Output::Standard.json(&json()) } else { Output::Standard.write(&text()) }
}

/// Returns the word that JSON has for a variant without fields, so that text has the same.
///
/// # Panics
/// For any other value.
pub fn word(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(serde_json::Value::String(word)) => word,
        other => panic!("a variant without fields is a word, not {other:?}"),
    }
}

fn to_standard_output(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes `text` and a line feed to standard error. If that fails, the exit code still reports the error.
pub fn remark(text: &str) {
    drop(writeln!(io::stderr(), "{}", printable_lines(text)));
}

/// Standard error for a log whose events are one line each.
#[derive(Debug)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = printable(text.strip_suffix('\n').unwrap_or(&text));
        writeln!(io::stderr(), "{line}").map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
