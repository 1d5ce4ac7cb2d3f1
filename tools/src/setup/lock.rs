//! One `adit setup` at a time.

use std::fs::{self, File, OpenOptions};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::root::Root;
use crate::failure::{Failure, Result};

/// The lock's file; the lock itself goes with the process.
const FILE: &str = "/run/adit-setup.lock";

/// The right to change the machine's set-up, until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl Lock {
    /// Takes the lock, or says who has it.
    ///
    /// # Errors
    /// When another `adit setup` is at work, or the file cannot be written.
    pub(crate) fn take(root: &Root) -> Result<Lock> {
        let path = root.path(FILE);
        let cannot =
            |why: &dyn std::fmt::Display| Failure::failed(format!("cannot lock {FILE}: {why}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|why| cannot(&why))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                // Who has it, for the next one's message; the lock holds without it.
                let _ = fs::write(&path, format!("{}\n", std::process::id()));
                Ok(Lock(lock))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                Err(Failure::failed(format!(
                    "another 'adit setup' (pid {}) is at work; wait for its end",
                    pid.trim()
                )))
            }
            Err((_, why)) => Err(cannot(&why)),
        }
    }
}
