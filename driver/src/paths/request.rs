//! What every path does: requests, and the queue that executes them.

use std::time::Duration;

use crate::Time;
use crate::error::Result;
use crate::memory::{Buffer, IoBuffer};
use crate::queue_pair::{Completion, Rejected, Stats};
use crate::spec::Lba;

/// An operation on a range of LBAs, with its memory.
#[derive(Debug)]
pub struct Request<B> {
    /// The operation.
    pub operation: Operation,
    /// The data of a read or write, which sets its length. [`Operation::Deallocate`] uses its first segment
    /// as scratch: 16 bytes for each range that the controller's limits require (4 KiB always suffice).
    /// [`Operation::Flush`] does not touch it.
    pub buffer: B,
}

/// The operation of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the buffer with the LBAs from this one.
    Read(Lba),
    /// Writes the buffer to the LBAs from this one.
    Write(Lba),
    /// Makes all completed writes durable.
    Flush,
    /// Deallocates this many LBAs from this one.
    Deallocate(Lba, u32),
}

impl Operation {
    /// Returns whether it moves data between the device and its buffer.
    #[inline]
    pub(super) fn moves(self) -> bool {
        matches!(self, Operation::Read(_) | Operation::Write(_))
    }
}

/// Executes requests: a queue pair with its namespace, or a path through the kernel.
///
/// `post` takes a request, `ring` submits everything posted, `poll` returns finished requests. One thread
/// owns a queue. The I/O path neither allocates nor locks; a kernel path makes its system calls, with
/// io_uring at most one for each `ring` and each empty `poll`. After an empty poll, poll again or call `wait`
/// to yield the CPU.
pub trait CommandQueue<B: IoBuffer>: Send {
    /// Takes a request; the device sees it after the next `ring`.
    ///
    /// # Errors
    /// Returns the request with the reason; [`crate::RejectReason::Full`] if polling helps.
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// Posts a request that failed before, counted in [`Stats::retries`].
    ///
    /// # Errors
    /// As [`CommandQueue::post`].
    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>>;

    /// Submits everything posted.
    fn ring(&mut self);

    /// Passes each finished request to `done`, without waiting; returns their number.
    fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize;

    /// Waits until a request finishes, at most `at_most` plus some microseconds. Returns `true` if it slept
    /// in the kernel, as io_uring's queues do with submitted requests in flight. All others return `false` at
    /// once and must be polled: queue pairs of the driver, io_uring with polled completions, and the paths
    /// that finish a request in `post`.
    fn wait(&mut self, at_most: Duration) -> bool {
        let _ = at_most;
        false
    }

    /// Prepares the region of `memory` for requests, on the thread that drives the queue: io_uring pins it once instead
    /// of for each request, until it is freed. Returns `false` if each request has to pin its pages, which works as
    /// well: the limit on locked memory, the kernel or the target's options allow no more. All other paths return
    /// `true`.
    fn register(&mut self, memory: &Buffer) -> bool {
        let _ = memory;
        true
    }

    /// Checks that the path still works.
    ///
    /// # Errors
    /// [`crate::Error::Failed`] with the first failure's reason.
    fn check(&self) -> Result<()>;

    /// Returns the queue's counters.
    fn stats(&self) -> Stats;
}

/// The losses that a completed write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The device's own guarantee; a power loss may lose data in a volatile cache.
    #[default]
    Cached,
    /// A power loss does not lose its data: Force Unit Access of an NVMe write, RWF_DSYNC of a file's, msync
    /// of a mapping.
    Data,
    /// Nor the file's metadata: RWF_SYNC; on a controller the same as [`Durability::Data`].
    All,
}

impl Durability {
    /// Returns the flags of a file's write (`pwritev2(2)`).
    #[inline]
    pub(super) fn write_flags(self) -> i32 {
        match self {
            Durability::Cached => 0,
            Durability::Data => libc::RWF_DSYNC,
            Durability::All => libc::RWF_SYNC,
        }
    }
}
