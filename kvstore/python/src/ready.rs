//! The ended jobs of a queue, and the eventfd that signals them.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::lock::lock;

/// Jobs to check.
pub(crate) struct Ready {
    numbers: Mutex<Vec<u64>>,
    event: EventFd,
}

impl Ready {
    /// # Errors
    /// The system's error, if it has no eventfd left.
    pub(crate) fn new() -> nix::Result<Ready> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_value_and_flags(0, flags)?;
        Ok(Ready { numbers: Mutex::default(), event })
    }

    /// Names a job.
    pub(crate) fn push(&self, number: u64) {
        let mut numbers = lock(&self.numbers);
        let is_first = numbers.is_empty();
        numbers.push(number);
        if is_first {
            self.raise();
        }
    }

    /// Takes at most `most` named jobs. The eventfd stays readable for the others.
    pub(crate) fn take(&self, most: usize) -> Vec<u64> {
        let mut numbers = lock(&self.numbers);
        // The user may have read the eventfd already, so an error is ignored.
        let _ = self.event.read();
        let most = most.min(numbers.len());
        let rest = numbers.split_off(most);
        let taken = std::mem::replace(&mut *numbers, rest);
        if !numbers.is_empty() {
            self.raise();
        }
        taken
    }

    /// Makes the eventfd readable, for a taken job that continues.
    pub(crate) fn raise(&self) {
        // This fails only if the counter is full, and then the eventfd is readable.
        let _ = self.event.write(1);
    }

    /// Returns the eventfd, which is readable while jobs are named.
    pub(crate) fn event_fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }
}
