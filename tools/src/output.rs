//! Where reports go: standard output or a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// A place for a report.
///
/// A reader that went away (`adit identify … | head -1`) is no failure: the rest is dropped.
#[derive(Debug)]
pub(crate) enum Output {
    /// Standard output.
    Standard,
    /// A file, with its path for messages.
    File(File, PathBuf),
}

impl Output {
    /// Creates or empties the file at `path`, or takes standard output where there is none.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub(crate) fn open(path: Option<&Path>) -> Result<Output> {
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
    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        let (written, name) = match self {
            Output::Standard => (to_standard_output(text), "standard output".to_owned()),
            Output::File(file, path) => {
                (file.write_all(text.as_bytes()), path.display().to_string())
            }
        };
        written.map_err(|error| Failure::failed(format!("{name}: {error}")))
    }
}

fn to_standard_output(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
