//! Changes `adit setup` makes to a machine, and the interface that carries them out.
//!
//! A [`Change`] is a value that can be printed, counted, carried out, or interrupted before or after. [`Hands`]
//! carries it out: on this machine (`machine::Machine`), or on a simulated one in tests.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::human::shell_word;

/// A single change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub(crate) enum Change {
    /// Writes a sysfs attribute.
    Write {
        /// The attribute.
        path: PathBuf,
        /// The value; a line feed is appended.
        value: String,
    },
    /// Writes a file atomically and durably.
    File {
        /// Its path; missing directories are created.
        path: PathBuf,
        content: String,
        /// Its permissions.
        mode: u32,
    },
    /// Removes a file or link, and the leftover of an interrupted [`Change::File`]; a missing file is no
    /// failure.
    Remove {
        /// The file.
        path: PathBuf,
    },
    /// Changes a file's owner, and removes the rights of its group and of others.
    Owner {
        /// The file.
        path: PathBuf,
        /// The new owner.
        uid: u32,
    },
    /// Runs a program to its end.
    Run {
        /// Its name, looked up in the system's directories.
        program: String,
        arguments: Vec<String>,
    },
}

impl Change {
    /// Writes a file that all may read.
    pub(crate) fn file(path: impl Into<PathBuf>, content: impl Into<String>) -> Change {
        Change::File { path: path.into(), content: content.into(), mode: 0o644 }
    }

    /// Removes a file or link.
    pub(crate) fn remove(path: impl Into<PathBuf>) -> Change {
        Change::Remove { path: path.into() }
    }

    /// Runs a program.
    pub(crate) fn run(program: &str, arguments: &[&str]) -> Change {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        Change::Run { program: program.to_owned(), arguments }
    }
}

impl fmt::Display for Change {
    /// Formats it as a shell command if possible, in one line with the necessary quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |path: &Path| shell_word(&path.to_string_lossy());
        match self {
            Change::Write { path, value } if value.is_empty() => write!(f, "echo > {}", word(path)),
            Change::Write { path, value } => {
                write!(f, "echo {} > {}", shell_word(value), word(path))
            }
            Change::File { path, .. } => write!(f, "write {}", word(path)),
            Change::Remove { path } => write!(f, "rm {}", word(path)),
            Change::Owner { path, uid } => write!(f, "chown {uid} {}", word(path)),
            Change::Run { program, arguments } => {
                let words = [program].into_iter().chain(arguments).map(|word| shell_word(word));
                f.write_str(&words.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// An exclusive claim on a block device: while it exists, the device and its partitions cannot be mounted, used
/// for swap or added to an array. Holds `None` if nothing was really claimed.
#[derive(Debug)]
pub(crate) struct Claim(
    #[expect(dead_code, reason = "held open, never read")] pub(super) Option<File>,
);

/// Carries out changes.
pub(crate) trait Hands {
    /// Carries out one change.
    ///
    /// # Errors
    /// The system's reason, or a timeout.
    fn apply(&mut self, change: &Change) -> io::Result<()>;

    /// Claims a block device such as `/dev/nvme0n1` while the claim exists, by opening it read-only with
    /// `O_EXCL`.
    ///
    /// # Errors
    /// `EBUSY` if it is in use.
    fn claim(&mut self, device: &Path) -> io::Result<Claim>;

    /// Waits.
    fn pause(&mut self, time: Duration);
}
