//! Exclusive use of a file or block device, by a lock.
//!
//! The lock ends with the last copy of the [`Lock`]. It only excludes others that ask for it, as every exclusive open
//! does ([`crate::lock`]). `/dev/nvme0n1` and `/dev/ng0n1` are two files to the kernel, and so two locks.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::info::DeviceOptions;
use crate::error::{Error, Result};
use crate::lock::{self, NotTaken};

/// Holds the lock while it or a copy exists.
///
/// Opens the file a second time: the kernel releases what a ring has registered some time after the ring is
/// closed, and a lock with it.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    file: Arc<File>,
    /// The file's path, if it is this handle's alone to write.
    own: Option<Arc<Path>>,
}

impl Lock {
    /// Takes the lock of the file or device at `path`.
    ///
    /// # Errors
    /// [`Error::Refused`] if another handle holds it, in this process or another; if the kernel itself uses
    /// the block device, for example for a mounted file system; or if the file system has no locks.
    fn take(path: &Path, device: &str) -> Result<Lock> {
        let what = "open it exclusively";
        // On a block device: fail while the kernel itself uses it. No effect on a file.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
        let file = file.map_err(|why| {
            let fix = match why.raw_os_error() {
                Some(libc::EBUSY) => {
                    "close its other users first, such as a mounted file system or another store"
                }
                _ => "run as a user who may open it",
            };
            Error::refused(device, what, why, fix)
        })?;
        lock::take(&file).map_err(|why| {
            let fix = match why {
                NotTaken::System(_) => "use a file system that has locks (flock)",
                _ => "close it there first",
            };
            Error::refused(device, what, why, fix)
        })?;
        Ok(Lock { file: Arc::new(file), own: None })
    }

    /// Takes what handles that write need, so that none has the file or device at `path` for itself meanwhile. Any
    /// number may have it. None is needed where there are no locks.
    ///
    /// # Errors
    /// [`Error::Refused`] if another handle has it exclusively.
    fn share(path: &Path, device: &str) -> Result<Option<Lock>> {
        let Ok(file) = OpenOptions::new().read(true).open(path) else { return Ok(None) };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Lock { file: Arc::new(file), own: None })),
            Err(TryLockError::WouldBlock) => {
                let by = lock::holder(&file).map(|by| format!(" ({by})")).unwrap_or_default();
                let why = format!("another process has it for itself, such as an open store{by}");
                Err(Error::refused(device, "write to it", why, "close it there first"))
            }
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }

    /// Opens the file or device at `path`, which `open` may create or lengthen, under the lock that these options ask
    /// for. What exists is locked first: its length, too, belongs to the handle that has it.
    ///
    /// # Errors
    /// As [`Lock::take`] and [`Lock::share`], and those of `open`.
    pub(super) fn around<T>(
        options: &DeviceOptions,
        path: &Path,
        device: &str,
        open: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<Lock>)> {
        let first = if path.exists() { Lock::of(options, path, device)? } else { None };
        let opened = open()?;
        let lock = match first {
            Some(lock) => Some(lock),
            None => Lock::of(options, path, device)?,
        };
        Ok((opened, lock))
    }

    /// Closes a file that is this handle's alone to write to users who may only read it: they could lock it too.
    pub(super) fn close_to_others(&self) {
        self.own.iter().for_each(|path| lock::close_to_others(&self.file, path));
    }

    /// Takes the lock that these options ask for.
    ///
    /// # Errors
    /// As [`Lock::take`] and [`Lock::share`].
    pub(super) fn of(options: &DeviceOptions, path: &Path, device: &str) -> Result<Option<Lock>> {
        match options {
            DeviceOptions { exclusive: true, writes, .. } => {
                let lock = Lock::take(path, device)?;
                Ok(Some(Lock { own: writes.then(|| path.into()), ..lock }))
            }
            DeviceOptions { respects_exclusive: true, .. } => Lock::share(path, device),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use crate::memory::Buffer;
    use crate::{Device, DeviceOptions, Result, Target};

    fn open(target: &str, exclusive: bool) -> Result<Device> {
        open_as(target, exclusive, 1 << 20)
    }

    fn open_as(target: &str, exclusive: bool, bytes: u64) -> Result<Device> {
        let options =
            DeviceOptions { exclusive, file_bytes: Some(bytes), ..DeviceOptions::default() };
        Device::open(&target.parse::<Target>()?, &options)
    }

    fn is_refused(opened: Result<Device>) -> bool {
        let message = opened.err().map(|error| error.to_string());
        message.is_some_and(|message| message.contains("another process or handle has it open"))
    }

    #[test]
    fn what_is_open_for_one_alone_is_refused_to_the_next_until_it_is_closed() {
        let name = format!("adit-exclusive-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let path = path.display();
        let targets = [
            format!("psync:{path},direct=off"),
            format!("mmap:{path}"),
            format!("uring:{path},direct=off"),
            format!("soft:file={path},size=1M"),
        ];
        for first in &targets {
            for second in &targets {
                let held = open(first, true).expect("it is free");
                assert!(is_refused(open(second, true)), "{second} after {first}");
                let longer = second.replace("size=1M", "size=2M");
                assert!(is_refused(open_as(&longer, true, 2 << 20)), "{longer} after {first}");
                let bytes = std::fs::metadata(path.to_string()).expect("it is there").len();
                assert_eq!(bytes, 1 << 20, "{longer} was refused, and lengthened the file");
                assert!(open(second, false).is_ok(), "a shared opening is not refused");
                drop(held);
                assert!(open(second, true).is_ok(), "{second} after {first} was closed");
            }
        }
        std::fs::remove_file(path.to_string()).expect("it was there");
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").mode() & 0o777
    }

    #[test]
    fn those_who_may_only_read_can_neither_read_nor_lock_what_one_alone_writes() {
        let path = std::env::temp_dir().join(format!("adit-readers-{}", std::process::id()));
        let file = path.display();
        let targets = [
            format!("psync:{file},direct=off"),
            format!("uring:{file},direct=off"),
            format!("soft:file={file},size=1M"),
        ];
        for target in &targets {
            let _ = std::fs::remove_file(&path);
            drop(open(target, false).expect("it is made"));
            assert_eq!(mode(&path), 0o600, "{target}");
            let others_read = Permissions::from_mode(0o644);
            std::fs::set_permissions(&path, others_read).expect("rights");
            open(target, false).expect("it is free").close_to_others();
            assert_eq!(mode(&path), 0o644, "{target}: it is not for one alone");
            let (writes, exclusive) = (false, true);
            let options = DeviceOptions { writes, exclusive, ..DeviceOptions::default() };
            let device = Device::open(&target.parse().expect("a target"), &options);
            device.expect("it is free").close_to_others();
            assert_eq!(mode(&path), 0o644, "{target}: a reader changes nothing");
            let device = open(target, true).expect("it is free");
            assert_eq!(mode(&path), 0o644, "{target}: it may turn out to be another's");
            device.close_to_others();
            assert_eq!(mode(&path), 0o640, "{target}");
        }
        std::fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn a_queue_keeps_the_lock_of_its_device() {
        let path = std::env::temp_dir().join(format!("adit-queue-lock-{}", std::process::id()));
        let target = format!("psync:{},direct=off", path.display());
        let device = open(&target, true).expect("it is free");
        let options = crate::paths::QueueOptions {
            depth: 1,
            timeout: std::time::Duration::from_secs(1),
            abort_timeout: std::time::Duration::from_secs(1),
        };
        let queue = device.create_queue::<Buffer>(&options, &[]).expect("queue");
        drop(device);
        assert!(is_refused(open(&target, true)));
        drop(queue);
        assert!(open(&target, true).is_ok());
        std::fs::remove_file(path).expect("it was there");
    }
}
