//! The lock that allows one `adit setup` at a time.

use std::fs::{self, File, OpenOptions};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::root::Root;
use crate::failure::{Failure, Result};

/// The lock's file; the lock itself ends with the process.
const FILE: &str = "/run/adit-setup.lock";

/// The right to change the machine, until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another `adit setup` holds it, with its process, or the file cannot be written.
    pub(crate) fn take(root: &Root) -> Result<Lock> {
        let path = root.path(FILE);
        let cannot =
            |why: &dyn std::fmt::Display| Failure::failed(format!("cannot lock {FILE}: {why}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|why| cannot(&why))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                // The holder's id, for the message to the next process; the lock does not depend on it.
                let _ = fs::write(&path, format!("{}\n", std::process::id()));
                Ok(Lock(lock))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                Err(Failure::failed(format!(
                    "another 'adit setup' (pid {}) is running; wait until it ends",
                    pid.trim()
                )))
            }
            Err((_, why)) => Err(cannot(&why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time_and_the_second_is_told_who() {
        let root = Root::recorded("/run/");
        let first = Lock::take(&root).expect("it is free");
        let why = Lock::take(&root).expect_err("the first has it").to_string();
        let pid = std::process::id();
        assert_eq!(why, format!("another 'adit setup' (pid {pid}) is running; wait until it ends"));
        drop(first);
        Lock::take(&root).expect("it is free again");
    }

    #[test]
    fn a_lock_file_left_by_a_killed_process_is_no_lock() {
        let root = Root::recorded("/run/adit-setup.lock = 4711");
        Lock::take(&root).expect("it is free");
    }

    #[test]
    fn without_its_directory_it_is_told_what_cannot_be_done() {
        let why = Lock::take(&Root::recorded("/etc/")).expect_err("no /run").to_string();
        assert!(why.starts_with("cannot lock /run/adit-setup.lock: No such file"), "{why}");
    }
}
