//! Paths through io_uring: one queue, whose entries are reads and writes (`uring:`) or NVMe commands
//! (`uring-cmd:`).
//!
//! A request becomes one or more entries and finishes with the last of them; it fails if one does. The kernel
//! driver sets command deadlines ([`QueueOptions::timeout`] matters only to NVMe commands).
//!
//! | module | job |
//! |---|---|
//! | `plain` | opening `uring:`; requests as reads and writes |
//! | `command`, `passthrough` | opening `uring-cmd:`; requests as NVMe commands |
//! | `pieces` | splitting requests into commands, joining their completions |
//! | `ring`, `late_memory` | the io_uring itself, with one file and memory registered |
#![allow(unsafe_code)]

pub(super) mod command;
mod late_memory;
mod passthrough;
mod pieces;
pub(super) mod plain;
mod ring;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use io_uring::{cqueue, squeue};

pub use self::command::UringCmdQueue;
pub(super) use self::pieces::Cutter;
pub use self::plain::UringQueue;

use self::pieces::Join;
use self::ring::{DEPTH_MAX, Registration, Ring, RingOptions};
use super::exclusive::Lock;
use super::extent::ByteRange;
use super::info::QueueOptions;
use super::request::{CommandQueue, Operation, Request};
use crate::Time;
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, RejectReason, Rejected, Slots, Stats};
use crate::spec::Cid;

/// Entries of a ring for each request in flight, if requests may become several.
const COMMANDS_PER_REQUEST: u32 = 4;
/// Least entries of such a ring.
const COMMANDS_MIN: u32 = 64;

/// How requests become entries of a ring.
pub trait Encoding: fmt::Debug + Send {
    /// An entry.
    type Entry: squeue::EntryMarker;
    /// An entry's completion.
    type Done: cqueue::EntryMarker;
    /// Whether an entry's result counts the bytes it moved.
    const COUNTS_BYTES: bool;

    /// Checks a request; returns its range and its number of entries.
    ///
    /// # Errors
    /// The reason why no queue takes it.
    fn check<B: IoBuffer>(
        &self,
        operation: Operation,
        buffer: &B,
    ) -> Result<(ByteRange, usize), RejectReason>;

    /// Makes room for what a request's entries point to, in `ring` if necessary; returns whether there is.
    #[inline]
    fn has_room(&mut self, ring: &mut Ring<Self::Entry, Self::Done>, segments: usize) -> bool {
        let _ = (ring, segments);
        true
    }

    /// Carries out an operation that must not or cannot go through the ring.
    fn at_once(&self, operation: Operation, run: ByteRange) -> Option<Result<u32, CommandError>>;

    /// Adds a checked request's entries to `ring`.
    ///
    /// # Safety
    /// The buffer stays in its place, without another user, until the last entry completes.
    unsafe fn push<B: IoBuffer>(
        &mut self,
        ring: &mut Ring<Self::Entry, Self::Done>,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
        user_data: u64,
    );

    /// Translates an entry's result; returns the bytes it moved if it counts them.
    ///
    /// # Errors
    /// The command's failure.
    fn outcome(result: i32) -> Result<u64, CommandError>;

    /// Returns the cause of a failure.
    fn explain(&self, error: CommandError) -> CommandError {
        error
    }
}

/// Returns the most requests in flight on a queue.
fn depth_max(splits: bool) -> u32 {
    if splits { DEPTH_MAX / COMMANDS_PER_REQUEST } else { DEPTH_MAX }
}

/// A queue through io_uring.
#[derive(Debug)]
pub struct KernelQueue<B: IoBuffer, E: Encoding> {
    ring: Ring<E::Entry, E::Done>,
    encoding: E,
    /// The requests' buffers; present until drop.
    slots: Option<Slots<B>>,
    /// By slot.
    joins: Box<[Join]>,
    /// Entries of the ring, in all and free.
    commands: usize,
    free_commands: usize,
    /// Requests that `post` carried out.
    done_at_once: Vec<Completion<B>>,
    lock: Option<Lock>,
    device: String,
    gone: Option<CommandError>,
    stats: Stats,
}

impl<B: IoBuffer, E: Encoding> KernelQueue<B, E> {
    /// Creates a queue over the file and memory of `shape`; `splits` if a request may become several entries.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    fn new(
        encoding: E,
        options: &QueueOptions,
        splits: bool,
        shape: RingOptions<'_>,
        lock: Option<Lock>,
    ) -> Result<KernelQueue<B, E>> {
        let depth = options.depth.clamp(1, depth_max(splits));
        let entries = if splits { (depth * COMMANDS_PER_REQUEST).max(COMMANDS_MIN) } else { depth };
        Ok(KernelQueue {
            ring: Ring::new(&shape, entries)?,
            encoding,
            slots: Some(Slots::new(depth as usize)),
            joins: vec![Join::default(); depth as usize].into(),
            commands: entries as usize,
            free_commands: entries as usize,
            done_at_once: Vec::with_capacity(depth as usize),
            lock,
            device: shape.device.to_owned(),
            gone: None,
            stats: Stats::default(),
        })
    }

    pub(super) fn encoding(&mut self) -> &mut E {
        &mut self.encoding
    }

    pub(super) fn notify(&self, event: BorrowedFd<'_>) -> Result<bool> {
        self.ring.notify(event, &self.device)
    }

    /// Returns a request's range and its number of entries.
    ///
    /// # Errors
    /// The reason for rejecting it, for now or for good.
    #[inline]
    fn admit(
        &mut self,
        operation: Operation,
        buffer: &B,
    ) -> Result<(ByteRange, usize), RejectReason> {
        let (run, needs) = self.encoding.check(operation, buffer)?;
        if needs > self.commands {
            return Err(RejectReason::TooLarge { what: "commands", needs, has: self.commands });
        }
        let slots = self.slots.as_ref().expect("slots are there until drop");
        let is_full = slots.in_flight() + self.done_at_once.len() >= self.joins.len();
        let segments = if operation.moves() { buffer.segment_count() } else { 0 };
        if is_full
            || needs > self.free_commands
            || !self.encoding.has_room(&mut self.ring, segments)
        {
            return Err(RejectReason::Full);
        }
        Ok((run, needs))
    }
}

impl<B: IoBuffer, E: Encoding> CommandQueue<B> for KernelQueue<B, E> {
    #[inline]
    fn post(&mut self, _now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let Request { operation, buffer } = request;
        let (run, commands) = match self.admit(operation, &buffer) {
            Ok(admitted) => admitted,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        if let Some(result) = self.encoding.at_once(operation, run) {
            self.stats.submitted += 1;
            self.done_at_once.push(Completion { buffer, result });
            return Ok(());
        }
        let slots = self.slots.as_mut().expect("slots are there until drop");
        let (slot, cid) = slots.occupy(Some(buffer), Time::NEVER, 0, false);
        let bytes = if operation.moves() { run.bytes } else { 0 };
        self.joins[slot] = Join::of(commands, if E::COUNTS_BYTES { bytes } else { 0 });
        self.free_commands -= commands;
        self.stats.submitted += commands as u64;
        self.stats.bytes += bytes;
        let buffer = slots.get(slot).buffer.as_ref().expect("a request owns its buffer");
        // SAFETY: the buffer is in its slot, and stays there until its last entry completes; when the queue is dropped,
        // it is freed only once the kernel has nothing left (law 3).
        unsafe { self.encoding.push(&mut self.ring, operation, run, buffer, cid.0.into()) };
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.stats.submission_rings += u64::from(self.ring.pushed() > 0);
        self.ring.submit();
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let mut count = self.done_at_once.len();
        self.stats.completed += count as u64;
        self.done_at_once.drain(..).for_each(&mut done);
        let slots = self.slots.as_mut().expect("slots are there until drop");
        let mut freed = 0;
        self.ring.reap(|user_data, result| {
            let cid = Cid(user_data as u16);
            let Some(slot) = slots.find(cid) else {
                self.stats.unknown_cids += 1;
                return;
            };
            freed += 1;
            let Some(result) = self.joins[slot].end(E::outcome(result)) else { return };
            let result = result.map_err(|error| self.encoding.explain(error));
            if let Err(error) = result
                && error.is_gone()
            {
                self.gone.get_or_insert(error);
            }
            let buffer = slots.end_plain(cid).expect("a request in flight owns its buffer");
            count += 1;
            done(Completion { buffer, result });
        });
        self.free_commands += freed;
        debug_assert!(self.free_commands <= self.commands, "an entry is freed once");
        self.stats.completed += freed as u64;
        count
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.ring.wait(at_most)
    }

    fn register(&mut self, memory: &Buffer) -> bool {
        self.ring.register(memory, &self.device)
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = &self.gone {
            let (device, reason) = (self.device.clone(), error.to_string());
            return Err(Error::Failed { device, reason });
        }
        self.ring.check(&self.device)
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl<B: IoBuffer, E: Encoding> Drop for KernelQueue<B, E> {
    fn drop(&mut self) {
        let left = self.ring.drain();
        if left > 0 {
            tracing::error!(
                "{}: leaking the memory of {left} commands that the kernel has not ended",
                self.device
            );
            std::mem::forget(self.slots.take());
            self.ring.leak_memory();
            // The file is not free for others either.
            std::mem::forget(self.lock.take());
        }
    }
}
