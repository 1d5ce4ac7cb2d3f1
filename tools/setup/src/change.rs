//! What `adit setup` does to a machine, one change at a time, and whose hands do it.
//!
//! A [`Change`] is a value: it can be printed, counted, carried out, or cut off before or after. [`Hands`] is who carries
//! it out: this machine's kernel and file system (`machine::Machine`), or a simulated one in the tests.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::human::shell_word;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub(crate) enum Change {
    /// A write to an attribute of sysfs.
    Write {
        /// The attribute.
        path: PathBuf,
        /// What is written; a line feed is added.
        value: String,
    },
    /// A file that is there as a whole and durable, or not at all.
    File {
        /// Its path; directories on the way are made.
        path: PathBuf,
        /// All of it.
        content: String,
        /// Its permissions.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Where it is.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A file or link that goes, with what a [`Change::File`] that was cut off has left beside it; that there is none is
    /// no failure.
    Remove {
        /// The file.
        path: PathBuf,
    },
    /// A file that gets another owner, and its group's and others' rights taken away.
    Owner {
        /// The file.
        path: PathBuf,
        /// The user's number.
        uid: u32,
    },
    /// A program that runs to its end.
    Run {
        /// Its name, looked up in the system's directories.
        program: String,
        /// Its words.
        arguments: Vec<String>,
    },
}

impl fmt::Display for Change {
    /// As a person would do it in a shell, where that is possible: one line, with words quoted where they have to be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |path: &Path| shell_word(&path.to_string_lossy());
        match self {
            Change::Write { path, value } if value.is_empty() => write!(f, "echo > {}", word(path)),
            Change::Write { path, value } => {
                write!(f, "echo {} > {}", shell_word(value), word(path))
            }
            Change::File { path, .. } => write!(f, "write {}", word(path)),
            Change::Link { path, target } => write!(f, "ln -s {} {}", word(target), word(path)),
            Change::Remove { path } => write!(f, "rm {}", word(path)),
            Change::Owner { path, uid } => write!(f, "chown {uid} {}", word(path)),
            Change::Run { program, arguments } => {
                let words = [program].into_iter().chain(arguments).map(|word| shell_word(word));
                f.write_str(&words.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// An exclusive claim on a block device: while it lives, nothing can mount it or a partition of it, swap to it or make it
/// part of an array. None where nothing is really claimed.
#[derive(Debug)]
pub(crate) struct Claim(
    #[expect(dead_code, reason = "held open, never read")] pub(super) Option<File>,
);

/// Who carries changes out.
pub(crate) trait Hands {
    /// Carries out one change.
    ///
    /// # Errors
    /// The system's reason, or that it took too long.
    fn apply(&mut self, change: &Change) -> io::Result<()>;

    /// Claims a block device (`/dev/nvme0n1`) for as long as the claim lives: opened with `O_EXCL`, read only.
    ///
    /// # Errors
    /// `EBUSY` where the kernel, or somebody, has it in use.
    fn claim(&mut self, device: &Path) -> io::Result<Claim>;

    /// Lets time pass.
    fn pause(&mut self, time: Duration);
}
