//! Keeping others off a file or block device: a lock that whoever else asks for it is refused.
//!
//! The lock is advisory (`flock`) and goes with the last copy of the open file, so also with the process, however it
//! ends. It holds off those who ask for it, as every exclusive open does. `/dev/nvme0n1` and `/dev/ng0n1` are two
//! files to the kernel, and so two locks.
//!
//! The lock is of a file of its own, opened anew: an io_uring gives the files that it was told of back some time after
//! its process has ended, and whoever comes next would be refused until then.

use std::fs::{File, TryLockError};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Takes the lock of `file`, which is kept for as long as what comes back.
///
/// # Errors
/// [`Error::Refused`] where somebody else has it, in this process or another, and where the file system has none.
pub(super) fn lock(file: &File, device: &str) -> Result<Arc<File>> {
    let what = "open it for itself alone";
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let again = again
        .map_err(|why| Error::refused(device, what, why, "mount /proc, and allow it to be read"))?;
    again.try_lock().map_err(|why| match why {
        TryLockError::WouldBlock => {
            let fix = "close it there first";
            Error::refused(device, what, "another process or handle has it open", fix)
        }
        TryLockError::Error(why) => {
            let fix = "use a file system that has locks (flock)";
            Error::refused(device, what, why, fix)
        }
    })?;
    Ok(Arc::new(again))
}

#[cfg(test)]
mod tests {
    use crate::memory::Buffer;
    use crate::{Device, DeviceOptions, Result, Target};

    fn open(target: &str, exclusive: bool) -> Result<Device> {
        let options =
            DeviceOptions { exclusive, file_bytes: Some(1 << 20), ..DeviceOptions::default() };
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
            format!("soft:file={path},size=1M"),
        ];
        for first in &targets {
            for second in &targets {
                let held = open(first, true).expect("nobody has it");
                assert!(is_refused(open(second, true)), "{second} after {first}");
                assert!(open(second, false).is_ok(), "who does not ask is not refused");
                drop(held);
                assert!(open(second, true).is_ok(), "{second} after {first} was closed");
            }
        }
        std::fs::remove_file(path.to_string()).expect("it was there");
    }

    #[test]
    fn a_queue_keeps_the_lock_of_its_device() {
        let path = std::env::temp_dir().join(format!("adit-queue-lock-{}", std::process::id()));
        let target = format!("psync:{},direct=off", path.display());
        let device = open(&target, true).expect("nobody has it");
        let options = crate::device::QueueOptions {
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
