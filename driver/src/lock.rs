//! Locks that one process at a time has.
//!
//! They are advisory (`flock`) and end with the last handle, so also with the process. A forked process has a copy too,
//! until it executes another program or ends. Opening a file for reading is enough to lock it: so a file that is only a
//! lock can be opened by its owner alone ([`LockFile`]), and a file with data is closed to users who may only read it
//! ([`close_to_others`]). No kind of lock that the kernel has could do without: those of `fcntl` that a reader may take
//! keep a writer's away.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::unistd::geteuid;

/// How often a lock's file may be removed by the process that had it, before this one gives up.
const REMOVALS: u32 = 100;

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// It is taken.
    #[error("another process or handle has it open{}", .0.as_ref().map(|by| format!(" ({by})")).unwrap_or_default())]
    Held(Option<Holder>),
    /// What has the lock's name is not a lock of this user.
    #[error("{0}; remove it if it is not in use")]
    Unfit(String),
    /// The system's reason, such as a file system without locks.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A process that has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name; empty if it has ended, and left the lock to a process that it forked.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, ", {}", self.name) }
    }
}

/// Locks a file, of which any handle will do, without waiting.
///
/// # Errors
/// [`NotTaken::Held`] with the holder, if the system names it; [`NotTaken::System`].
pub fn take(file: &File) -> Result<(), NotTaken> {
    file.try_lock().map_err(|why| match why {
        TryLockError::WouldBlock => NotTaken::Held(holder(file)),
        TryLockError::Error(why) => NotTaken::System(why),
    })
}

/// Returns the process that has a file's lock. The kernel does not name those of other containers, nor does each file
/// system.
pub(crate) fn holder(file: &File) -> Option<Holder> {
    let about = file.metadata().ok()?;
    let device = about.dev();
    let id = format!("{:02x}:{:02x}:{}", major(device), minor(device), about.ino());
    let pid = holder_in(&fs::read_to_string("/proc/locks").ok()?, &id)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // Any process may give itself any name.
    Some(Holder { pid, name: name.trim_end().escape_default().to_string() })
}

/// Finds the process with a `flock` in lines such as `1: FLOCK  ADVISORY  WRITE 4711 fe:00:10011165 0 EOF`.
fn holder_in(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let (pid, file) = (words.nth(2)?, words.next()?);
        (is_flock && file == id).then(|| pid.parse().ok())?
    })
}

/// Keeps users who may only read a regular file from opening it, as they could lock it for good and read its bytes. Its
/// group may still. Says so in the log, as it says that this failed.
pub fn close_to_others(file: &File, path: &Path) {
    let Ok(about) = file.metadata() else { return };
    let mode = about.mode() & 0o7777;
    if !about.is_file() || mode & 0o006 != 0o004 {
        return;
    }
    let path = path.display();
    match file.set_permissions(Permissions::from_mode(mode & !0o004)) {
        Ok(()) => tracing::warn!(
            "{path}: any user could read it, and lock it; only its owner and group can now (chmod o-r)"
        ),
        Err(why) => tracing::warn!(
            "{path}: any user can read it, and lock it, which keeps others out ({why}); run 'chmod o-r {path}' as its \
             owner"
        ),
    }
}

/// A file that is a lock only. It is its owner's, as others could lock it, too, and is removed at the end.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Creates the file and locks it. A file that a killed process left is taken over.
    ///
    /// # Errors
    /// [`NotTaken`], at once if another process has it.
    pub fn take(path: &Path) -> Result<LockFile, NotTaken> {
        LockFile::take_by(path, take)
    }

    fn take_by(
        path: &Path,
        lock: impl Fn(&File) -> Result<(), NotTaken>,
    ) -> Result<LockFile, NotTaken> {
        for _ in 0..REMOVALS {
            let file = open(path)?;
            lock(&file).inspect_err(|why| {
                if matches!(why, NotTaken::System(_)) {
                    // It locks nothing.
                    let _ = fs::remove_file(path);
                }
            })?;
            // Its last holder may have removed it since it was opened.
            let is_there = fs::symlink_metadata(path).is_ok_and(|now| is_same(&file, &now));
            if is_there {
                return Ok(LockFile { file, path: path.to_owned() });
            }
        }
        Err(NotTaken::Held(None))
    }
}

impl NotTaken {
    /// Returns whether the file system has no locks.
    pub fn is_without_locks(&self) -> bool {
        let NotTaken::System(why) = self else { return false };
        matches!(why.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|now| is_same(&self.file, &now)) {
            // While it is locked, so that no other process has just locked it. One that cannot be removed is no lock.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_same(file: &File, other: &fs::Metadata) -> bool {
    file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == (other.dev(), other.ino()))
}

/// Opens a lock's file, which is then this user's and no other user's.
fn open(path: &Path) -> Result<File, NotTaken> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // A named pipe would keep it waiting, and a link would lead to another file.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let unfit = |what: &str| NotTaken::Unfit(format!("{} is {what}", path.display()));
    let file = options.open(path).map_err(|why| match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() => unfit("no regular file"),
        Ok(about) if about.uid() != geteuid().as_raw() => unfit(&of_user(about.uid())),
        _ => NotTaken::System(why),
    })?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(unfit("no regular file"));
    }
    if about.uid() != geteuid().as_raw() {
        return Err(unfit(&of_user(about.uid())));
    }
    if about.mode() & 0o077 != 0 {
        // An earlier version's. Processes that have it open keep it.
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn of_user(uid: u32) -> String {
    format!("the file of user {uid}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adit-lock-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    #[test]
    fn one_at_a_time_has_a_lock_that_no_other_user_can_open() {
        let path = scratch("one");
        let lock = LockFile::take(&path).expect("it is free");
        assert_eq!(mode(&path), 0o600);
        let why = LockFile::take(&path).expect_err("the first has it");
        assert!(matches!(why, NotTaken::Held(_)), "{why}");
        drop(lock);
        assert!(!path.exists(), "it was left behind");
        drop(LockFile::take(&path).expect("it is free again"));
    }

    #[test]
    fn a_file_system_without_locks_is_left_without_a_file() {
        let path = scratch("none");
        for code in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS] {
            let none = |_: &File| Err(io::Error::from_raw_os_error(code).into());
            let why = LockFile::take_by(&path, none).expect_err("there are none");
            assert!(why.is_without_locks() && !path.exists(), "{why}");
        }
        assert!(!NotTaken::Held(None).is_without_locks());
        assert!(!NotTaken::System(io::ErrorKind::PermissionDenied.into()).is_without_locks());
    }

    #[test]
    fn the_holder_is_named() {
        let path = scratch("holder");
        let file = File::create(&path).expect("a file");
        assert_eq!(holder(&file), None);
        take(&file).expect("it is free");
        let by = holder(&file).expect("the kernel names the holder");
        assert_eq!(by.pid, std::process::id());
        assert!(!by.name.is_empty());
        let other = File::open(&path).expect("a file");
        let why = take(&other).expect_err("the first has it").to_string();
        let (pid, name) = (by.pid, by.name);
        assert_eq!(why, format!("another process or handle has it open (process {pid}, {name})"));
        fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn other_locks_and_lines_that_mean_nothing_are_no_holder() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:5 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 fe:00:51 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 fe:00:5 0 EOF\n\
                     \n3: FLOCK\n4: FLOCK  ADVISORY  WRITE x fe:00:5 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 10 fe:00:5 0 EOF\n";
        let found = locks.lines().find_map(|line| holder_in(line, "fe:00:5"));
        assert_eq!(found, Some(10));
        assert_eq!(holder_in("", "fe:00:5"), None);
    }

    #[test]
    fn a_file_that_all_may_read_is_closed_when_it_becomes_a_lock() {
        let path = scratch("open");
        fs::write(&path, "4711\n").expect("a file of an earlier version");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("rights");
        let lock = LockFile::take(&path).expect("it is free");
        assert_eq!(mode(&path), 0o600);
        drop(lock);
    }

    #[test]
    fn what_is_no_lock_of_this_user_is_refused_and_stays() {
        let (path, other) = (scratch("unfit"), scratch("unfit-target"));
        fs::write(&other, "precious").expect("a file");
        symlink(&other, &path).expect("a link");
        let why = LockFile::take(&path).expect_err("a link").to_string();
        assert!(why.ends_with("is no regular file; remove it if it is not in use"), "{why}");
        fs::remove_file(&path).expect("it was there");
        fs::create_dir(&path).expect("a folder");
        let why = LockFile::take(&path).expect_err("a folder").to_string();
        assert!(why.contains("is no regular file"), "{why}");
        fs::remove_dir(&path).expect("it was there");
        // Only root may give a file away.
        if chown(&other, Some(4711), None).is_ok() {
            let why = LockFile::take(&other).expect_err("another user's").to_string();
            assert!(why.contains("is the file of user 4711"), "{why}");
        }
        assert_eq!(fs::read(&other).expect("it is there"), b"precious");
        fs::remove_file(&other).expect("it was there");
    }

    #[test]
    fn only_those_who_may_just_read_are_shut_out() {
        let path = scratch("others");
        let file = File::create(&path).expect("a file");
        for (before, after) in [(0o644, 0o640), (0o664, 0o660), (0o600, 0o600), (0o666, 0o666)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).expect("rights");
            close_to_others(&file, &path);
            assert_eq!(mode(&path), after, "{before:o}");
        }
        fs::remove_file(&path).expect("it was there");
    }
}
