//! A queue of any path, for code that is not generic over paths.

use std::os::fd::BorrowedFd;

use super::request::{CommandQueue, Durability, Request};
use super::{MmapQueue, NullQueue, NvmeQueue, PsyncQueue, UringCmdQueue, UringQueue};
use crate::ProtectionChecks;
use crate::Time;
use crate::error::Result;
use crate::memory::{Buffer, IoBuffer};
use crate::queue_pair::{Completion, Rejected, Stats};

/// A queue of a [`super::Device`]. The hottest loops should match on the queue inside.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one for each thread, and a box would cost each call a load"
)]
pub enum DeviceQueue<B: IoBuffer> {
    /// A queue pair of the driver.
    Nvme(NvmeQueue<B>),
    /// No I/O.
    Null(NullQueue<B>),
    /// io_uring on a file or block device.
    Uring(UringQueue<B>),
    /// NVMe commands through io_uring.
    UringCmd(UringCmdQueue<B>),
    /// pread and pwrite.
    Psync(PsyncQueue<B>),
    /// A mapping of a file.
    Mmap(MmapQueue<B>),
}

/// Forwards a call to the queue inside.
macro_rules! each {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            DeviceQueue::Nvme($queue) => $call,
            DeviceQueue::Null($queue) => $call,
            DeviceQueue::Uring($queue) => $call,
            DeviceQueue::UringCmd($queue) => $call,
            DeviceQueue::Psync($queue) => $call,
            DeviceQueue::Mmap($queue) => $call,
        }
    };
}

impl<B: IoBuffer> DeviceQueue<B> {
    /// Makes writes posted from now on survive a power loss once they complete. `null:` ignores it.
    pub fn set_durability(&mut self, durability: Durability) {
        match self {
            DeviceQueue::Nvme(queue) => queue.set_durability(durability),
            DeviceQueue::Uring(queue) => queue.encoding().set_durability(durability),
            DeviceQueue::UringCmd(queue) => queue.encoding().set_durability(durability),
            DeviceQueue::Psync(queue) => queue.carrier().set_durability(durability),
            DeviceQueue::Mmap(queue) => queue.carrier().set_durability(durability),
            DeviceQueue::Null(_) => {}
        }
    }

    /// Makes reads and writes posted from now on request these checks of the namespace's protection
    /// information. No effect if [`super::DeviceInfo::protection`] is `None`.
    pub fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        match self {
            DeviceQueue::Nvme(queue) => queue.set_protection_checks(checks),
            DeviceQueue::UringCmd(queue) => queue.encoding().set_protection_checks(checks),
            _ => {}
        }
    }

    /// Makes writes posted from now on go through these placement identifiers in turn, each one of
    /// [`super::Device::placement_handles`]; through none if there are none. No effect on paths without placement.
    pub fn set_placement(&mut self, identifiers: &[u16]) {
        if let DeviceQueue::Nvme(queue) = self {
            queue.set_placement(identifiers);
        }
    }

    /// Makes the kernel signal `event`, an eventfd, whenever a request finishes, so that one thread can sleep
    /// on several queues. Returns `false` if [`CommandQueue::wait`] would not sleep: such a queue must be
    /// polled.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] with the system's error.
    pub fn notify(&self, event: BorrowedFd<'_>) -> Result<bool> {
        match self {
            DeviceQueue::Uring(queue) => queue.notify(event),
            DeviceQueue::UringCmd(queue) => queue.notify(event),
            _ => Ok(false),
        }
    }
}

impl<B: IoBuffer> CommandQueue<B> for DeviceQueue<B> {
    #[inline]
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        each!(self, queue => queue.post(now, request))
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        each!(self, queue => queue.post_again(now, request))
    }

    #[inline]
    fn ring(&mut self) {
        each!(self, queue => queue.ring());
    }

    #[inline]
    fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize {
        each!(self, queue => queue.poll(now, done))
    }

    fn wait(&mut self, at_most: std::time::Duration) -> bool {
        each!(self, queue => queue.wait(at_most))
    }

    fn register(&mut self, memory: &Buffer) -> bool {
        each!(self, queue => queue.register(memory))
    }

    fn check(&self) -> Result<()> {
        each!(self, queue => queue.check())
    }

    fn stats(&self) -> Stats {
        each!(self, queue => queue.stats())
    }
}
