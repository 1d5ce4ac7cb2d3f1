//! The lock that allows one `adit setup` at a time.

use adit_driver::lock::{LockFile, NotTaken};

use crate::failure::{Failure, Result};
use adit_guard::root::Root;

/// The lock's file, which root alone may open.
const FILE: &str = "/run/adit-setup.lock";

/// The right to change the machine, until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, never read")] LockFile);

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another `adit setup` holds it, with its process, or the file cannot be written.
    pub(crate) fn take(root: &Root) -> Result<Lock> {
        LockFile::take(&root.path(FILE)).map(Lock).map_err(|why| {
            Failure::failed(match why {
                NotTaken::Held(by) => {
                    let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
                    format!("another 'adit setup'{by} is running; wait until it ends")
                }
                why => format!("cannot lock {FILE}: {why}"),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn there_is_one_at_a_time_and_the_second_is_told_who() {
        let root = Root::recorded("/run/").expect("a recording");
        let first = Lock::take(&root).expect("it is free");
        let why = Lock::take(&root).expect_err("the first has it").to_string();
        let by = format!("another 'adit setup' (process {}, ", std::process::id());
        assert!(why.starts_with(&by) && why.ends_with(") is running; wait until it ends"), "{why}");
        drop(first);
        Lock::take(&root).expect("it is free again");
    }

    #[test]
    fn a_lock_file_left_by_a_killed_process_is_no_lock() {
        let root = Root::recorded("/run/adit-setup.lock = 4711").expect("a recording");
        Lock::take(&root).expect("it is free");
    }

    #[test]
    fn only_its_owner_can_open_the_lock() {
        let root = Root::recorded("/run/adit-setup.lock = 4711").expect("a recording");
        let path = root.path(FILE);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("rights");
        let lock = Lock::take(&root).expect("it is free");
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);
        drop(lock);
    }

    #[test]
    fn a_link_is_no_lock() {
        let root = Root::recorded("/run/\n/etc/shadow = x").expect("a recording");
        symlink(root.path("/etc/shadow"), root.path(FILE)).expect("a link");
        let why = Lock::take(&root).expect_err("a link").to_string();
        assert!(why.starts_with("cannot lock /run/adit-setup.lock: "), "{why}");
        assert!(why.ends_with("is no regular file; remove it if it is not in use"), "{why}");
        assert!(root.path("/etc/shadow").exists());
    }

    #[test]
    fn without_its_directory_it_is_told_what_cannot_be_done() {
        let why = Lock::take(&Root::recorded("/etc/").expect("a recording"))
            .expect_err("no /run")
            .to_string();
        assert!(why.starts_with("cannot lock /run/adit-setup.lock: No such file"), "{why}");
    }
}
