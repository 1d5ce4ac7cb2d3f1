//! How requests end: completed, failed, or rejected before they begin.

use std::fmt;

use crate::namespace::OverLimit;
use crate::spec::Status;
use crate::transfer::Unplannable;

/// A completed command, whose buffer is the caller's again.
#[derive(Debug)]
pub struct Completion<B> {
    /// The command's buffer.
    pub buffer: B,
    /// Command-specific result (completion queue entry DW0), or the failure.
    pub result: Result<u32, CommandError>,
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The controller reports a failure. A request of several commands has the first failure's status; its
    /// other commands may have been carried out.
    #[error("{0}")]
    Status(Status),
    /// It missed its deadline and an Abort command ended it.
    #[error("it missed its deadline and was aborted; {}", written(*.may_have_written))]
    TimedOut {
        /// Whether some or all data may have reached the medium.
        may_have_written: bool,
    },
    /// Its queue was recreated or the controller reset before it completed. The device can no longer access
    /// its memory.
    #[error("the controller was reset before it completed the command; {}", written(*.may_have_written))]
    Reset {
        /// Whether some or all data may have reached the medium. False for commands that write nothing or
        /// were never announced to the device.
        may_have_written: bool,
    },
    /// The system refused or abandoned it; only on the kernel's paths ([`crate::paths`]). A write may have
    /// been carried out in part.
    #[error("{0}")]
    System(Errno),
    /// The system transferred less than requested: the file ends there, or the disk is full. Only on the
    /// kernel's paths.
    #[error(
        "only {moved} of {asked} bytes were transferred: does the file end there, or is the disk full?"
    )]
    Short {
        /// Bytes read or written.
        moved: u64,
        /// Bytes requested.
        asked: u64,
    },
}

/// A system error number; prints as the system's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the number in a standard library error, or EIO.
    pub(crate) fn of(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Returns the system's description, for example `No space left on device`.
    pub fn name(self) -> &'static str {
        nix::errno::Errno::from_raw(self.0).desc()
    }

    /// Returns whether the device is gone for good.
    fn is_gone(self) -> bool {
        matches!(self.0, libc::ENODEV | libc::ENXIO)
    }

    fn is_passing(self) -> bool {
        matches!(self.0, libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::EBUSY | libc::ETIMEDOUT)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CommandError {
    /// Returns whether the system reports that the device is gone for good.
    pub(crate) fn is_gone(self) -> bool {
        matches!(self, CommandError::System(errno) if errno.is_gone())
    }

    /// Returns whether space ran out: the disk is full, or the user's quota, or the namespace's capacity.
    pub fn is_no_space(&self) -> bool {
        match self {
            CommandError::Status(status) => *status == Status::CAPACITY_EXCEEDED,
            CommandError::System(errno) => matches!(errno.0, libc::ENOSPC | libc::EDQUOT),
            CommandError::Short { .. } => true,
            CommandError::TimedOut { .. } | CommandError::Reset { .. } => false,
        }
    }

    /// Returns whether the same request may succeed if sent again: at once after [`CommandError::TimedOut`],
    /// after [`crate::Controller::recover`] if the controller is out of service, per [`Status::is_retryable`]
    /// for a status, and after a temporary shortage in the system.
    pub fn is_retryable(&self) -> bool {
        debug_assert!(!self.is_gone() || !self.is_no_space(), "a device that is gone is not full");
        match self {
            CommandError::Status(status) => status.is_retryable(),
            CommandError::TimedOut { .. } | CommandError::Reset { .. } => true,
            CommandError::System(errno) => errno.is_passing(),
            CommandError::Short { .. } => false,
        }
    }
}

fn written(may_have_written: bool) -> &'static str {
    if may_have_written { "data may have been written" } else { "nothing was written" }
}

/// A request that a queue did not take, returned whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected<B> {
    /// The request's buffer.
    pub buffer: B,
    /// The reason.
    pub reason: RejectReason,
}

/// Why a queue did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// Too much is in flight; poll and submit again.
    #[error("the queue is full: poll for completions and submit again")]
    Full,
    /// The request alone needs more than the queue has.
    #[error(
        "the request needs {needs} {what} and the queue has {has}: split it, or open a larger queue"
    )]
    TooLarge {
        /// Commands, list pages or bounce pages.
        what: &'static str,
        /// Number needed.
        needs: usize,
        /// Number in the queue.
        has: usize,
    },
    /// The LBAs do not exist.
    #[error("LBAs {lba}..{end} reach beyond the namespace's {lbas}")]
    OutOfRange {
        /// First LBA.
        lba: u64,
        /// One past the last.
        end: u64,
        /// LBAs of the namespace.
        lbas: u64,
    },
    /// The request is malformed.
    #[error("{0}")]
    Unplannable(#[from] Unplannable),
    /// A buffer belongs to another controller.
    #[error("the buffer or namespace belongs to another controller: use this one's")]
    Foreign,
    /// The buffer is shorter than the command's data.
    #[error("the command's data is {needs} bytes and its buffer holds {has}")]
    ShortBuffer {
        /// Bytes of the command's data.
        needs: u64,
        /// Bytes of the buffer.
        has: u64,
    },
    /// A Compare on a protected namespace, whose protection information the host does not have.
    #[error(
        "the namespace is protected, so the host has no protection information to compare: read it instead"
    )]
    Protected,
    /// The command exceeds a limit of the controller other than that of a transfer.
    #[error("{0}")]
    OverLimit(#[from] OverLimit),
    /// The data of a raw command cannot be expressed as PRPs.
    #[error("the data of a raw command must be contiguous, or pieces of whole 4 KiB pages")]
    Scattered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_disk_says_is_told_from_what_may_pass() {
        let of = |errno| CommandError::System(Errno(errno));
        for full in [of(libc::ENOSPC), of(libc::EDQUOT), CommandError::Short { moved: 1, asked: 2 }]
        {
            assert!(full.is_no_space() && !full.is_retryable() && !full.is_gone(), "{full}");
        }
        for passing in [of(libc::EAGAIN), of(libc::EINTR), of(libc::ENOMEM), of(libc::EBUSY)] {
            assert!(passing.is_retryable() && !passing.is_no_space(), "{passing}");
        }
        for gone in [of(libc::ENODEV), of(libc::ENXIO)] {
            assert!(gone.is_gone() && !gone.is_retryable(), "{gone}");
        }
        assert!(!of(libc::EIO).is_retryable() && !of(libc::EIO).is_gone());
    }
}
