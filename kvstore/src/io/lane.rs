//! A lane: the queue of one device, its waiting commands, and memory for metadata.
//!
//! Every pushed command comes back exactly once as [`Finished`], with its memory. Retryable failures are sent again
//! first, up to [`ATTEMPTS`] times in all. Once the device is out of service, nothing more is sent and everything
//! that waits comes back failed. Finished commands stay here until they are taken: taking them may cost time, and the
//! queue is refilled before, so that the device need not wait for it.

use std::collections::VecDeque;

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, Operation, Request, Split};
use adit_driver::{CommandError, Protection, RejectReason, Time};

use crate::io::figures::DeviceFigures;
use crate::io::schedule::{Class, Limits, Schedule};
use crate::model::place::UNIT_BYTES;

/// Bytes of memory that a lane uses for metadata, in buffers of [`LANE_BUFFER_BYTES`].
pub const LANE_MEMORY_BYTES: usize = 4 << 20;
/// The minimum of that memory, with which a lane reads and writes less at a time.
pub const LANE_MEMORY_MIN_BYTES: usize = 2 * LANE_BUFFER_BYTES;
/// Bytes of each buffer of a lane's memory.
pub const LANE_BUFFER_BYTES: usize = 256 << 10;
/// The minimum depth that the schedule divides; a shorter queue is filled as far as it goes.
const DEPTH_MIN: u32 = 4;
/// The most often that a command is sent.
const ATTEMPTS: u8 = 4;

/// A command's property while it is in flight: memory, and the destination of its answer.
pub type Load = (AnyBuffer, Tag);

/// Identifies a command, and holds what is needed to send it again.
#[derive(Clone, Copy, Debug)]
pub struct Tag {
    purpose: Purpose,
    operation: Operation,
    class: Class,
    bytes: u64,
    attempts: u8,
    /// Time of the last attempt.
    sent_at: Time,
}

impl Tag {
    fn finished(self, memory: AnyBuffer, result: Result<(), Fault>) -> Finished {
        debug_assert!(self.attempts <= ATTEMPTS, "a command is sent so often at most");
        Finished { purpose: self.purpose, memory, bytes: self.bytes, result }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Command `command` of a request's batch.
    Batch { batch: u32, command: u32 },
    /// Journal blocks up to `end`.
    Journal { end: u64 },
    /// Flush `number` of all devices.
    Flush { number: u64 },
    /// A part of a checkpoint's body.
    Body,
    /// A checkpoint's header.
    Header,
    /// Deallocation of units.
    Discard { unit: u64, units: u64 },
    /// A read or write of opening, which waits for it.
    Opening { index: u32 },
}

#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) purpose: Purpose,
    pub(crate) operation: Operation,
    pub(crate) class: Class,
    pub(crate) memory: AnyBuffer,
    pub(crate) bytes: u64,
    /// Time after which it is too late to send.
    pub(crate) deadline: Time,
}

impl Command {
    /// Finishes a command that was never sent.
    fn finished(self, fault: Fault) -> Finished {
        debug_assert!(
            matches!(fault, Fault::Expired | Fault::Gone),
            "no device answers a command that was not sent"
        );
        let Command { purpose, memory, bytes, .. } = self;
        Finished { purpose, memory, bytes, result: Err(fault) }
    }
}

/// Why a command failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Its deadline passed before it was sent.
    #[error("its deadline passed before it was sent")]
    Expired,
    /// The device failed it.
    #[error("{0}")]
    Command(#[from] CommandError),
    /// No queue accepts it.
    #[error("{0}")]
    Rejected(RejectReason),
    /// The device is out of service.
    #[error("the device is out of service")]
    Gone,
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) purpose: Purpose,
    pub(crate) memory: AnyBuffer,
    /// The bytes to move.
    pub(crate) bytes: u64,
    pub(crate) result: Result<(), Fault>,
}

/// The properties of a device that a shard needs.
pub struct LaneInfo {
    /// Its name, for messages.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// LBA size in bytes, 512 to 4096.
    pub lba_bytes: u32,
    /// Maximum bytes of one command.
    pub command_bytes_max: u64,
    /// A command must not cross a multiple of this many bytes: whole units; 0 for no boundary.
    pub boundary_bytes: u64,
    /// Maximum commands in flight.
    pub depth: u32,
    /// Whether it supports deallocation.
    pub deallocates: bool,
    /// Maximum LBAs per deallocation.
    pub deallocate_lbas_max: u64,
    /// Whether a write may find no space, as in a sparse file.
    pub may_lack_space: bool,
    /// Its own protection of data, if any.
    pub protection: Option<Protection>,
    /// Returns whether its queue can use this memory.
    pub accepts: Box<dyn Fn(&Buffer) -> bool + Send>,
}

impl LaneInfo {
    /// Returns how runs of units are split, so that each request is one command, which every queue takes.
    pub(crate) fn split(&self) -> Split {
        debug_assert!(self.boundary_bytes.is_multiple_of(UNIT_BYTES), "boundaries are whole units");
        Split {
            command_bytes_max: (self.command_bytes_max / UNIT_BYTES).max(1) * UNIT_BYTES,
            boundary_bytes: self.boundary_bytes,
            commands: 1,
        }
    }
}

/// The connection to one device.
pub struct Lane<Q> {
    pub(crate) queue: Q,
    pub(crate) info: LaneInfo,
    /// Idle memory for metadata.
    pub(crate) memory: Vec<Buffer>,
    /// Parts of buffers whose other parts are in flight.
    pieces: Vec<Buffer>,
    /// Begin of the memory; `buffers` is the number of its buffers.
    base: u64,
    buffers: usize,
    waiting: Schedule<Command>,
    /// Commands for which the schedule has no room.
    overflow: VecDeque<Command>,
    /// Commands to send again.
    again: VecDeque<Load>,
    /// Finished commands to be taken.
    finished: VecDeque<Finished>,
    in_flight: usize,
    /// Counters; [`Lane::figures`] adds the current sizes.
    done: DeviceFigures,
    /// Why it is out of service.
    failure: Option<String>,
    /// Whether it has data that no later flush covers.
    pub(crate) is_dirty: bool,
    /// Whether the shard has handled the failure.
    pub(crate) is_failure_noted: bool,
    /// Number of earlier failures after which the device was reattached; it may have lost everything sent before.
    pub(crate) attachment: u32,
    /// Whether the end of each command wakes the thread.
    pub(crate) notifies: bool,
}

impl<Q: CommandQueue<Load>> Lane<Q> {
    /// Creates a lane over `queue`. `memory` is [`LANE_MEMORY_BYTES`] that the device can use, in one piece; the lane
    /// ignores any excess, and of less it uses whole buffers.
    ///
    /// # Panics
    /// If there is less than [`LANE_MEMORY_MIN_BYTES`].
    pub fn new(queue: Q, info: LaneInfo, mut memory: Buffer) -> Lane<Q> {
        assert!(memory.len() >= LANE_MEMORY_MIN_BYTES, "a lane has memory for metadata");
        let base = memory.iova().0;
        let count = memory.len().min(LANE_MEMORY_BYTES) / LANE_BUFFER_BYTES;
        drop(memory.split_off(count * LANE_BUFFER_BYTES));
        let cut = |index| memory.split_off(index * LANE_BUFFER_BYTES);
        let limits = Limits { depth: info.depth.max(DEPTH_MIN), ..Limits::default() };
        let buffers: Vec<Buffer> = (0..count).rev().map(cut).collect();
        assert!(memory.is_empty(), "all of the memory is in buffers");
        assert_eq!(buffers.len(), count, "the memory is cut into whole buffers");
        Lane {
            queue,
            info,
            memory: buffers,
            pieces: Vec::new(),
            base,
            buffers: count,
            waiting: Schedule::new(limits),
            overflow: VecDeque::new(),
            again: VecDeque::new(),
            finished: VecDeque::new(),
            in_flight: 0,
            done: DeviceFigures::default(),
            failure: None,
            is_dirty: false,
            is_failure_noted: false,
            attachment: 0,
            notifies: false,
        }
    }

    /// Returns its memory in one piece for another lane, or `None` if part of it is in flight.
    pub fn into_memory(mut self) -> Option<Buffer> {
        assert!(self.memory.len() <= self.buffers, "no more buffers are idle than were made");
        self.memory.sort_unstable_by_key(|buffer| buffer.iova().0);
        let mut buffers = self.memory.into_iter();
        let mut memory = buffers.next()?;
        for buffer in buffers {
            memory.join(buffer).ok()?;
        }
        let is_whole = memory.len() == self.buffers * LANE_BUFFER_BYTES;
        assert!(!is_whole || memory.iova().0 == self.base, "the memory is what the lane was given");
        is_whole.then_some(memory)
    }

    /// Returns the length of the device in units.
    pub(crate) fn units(&self) -> u64 {
        self.info.bytes / UNIT_BYTES
    }

    /// Returns why it is out of service, if it is.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Queues a command to be sent.
    pub(crate) fn push(&mut self, now: Time, command: Command) {
        let moves = matches!(command.operation, Operation::Read(_) | Operation::Write(_));
        debug_assert!(moves || command.bytes == 0, "only reads and writes move bytes");
        debug_assert!(command.bytes <= self.info.split().command_bytes_max, "it is one command");
        if !self.overflow.is_empty() {
            return self.overflow.push_back(command);
        }
        let (class, bytes, deadline) = (command.class, command.bytes, command.deadline);
        if let Err(command) = self.waiting.push(now, class, bytes, deadline, command) {
            self.overflow.push_back(command);
        }
    }

    /// Moves commands from the overflow into the schedule, in order.
    fn refill(&mut self, now: Time) {
        while let Some(command) = self.overflow.pop_front() {
            let (class, bytes, deadline) = (command.class, command.bytes, command.deadline);
            if let Err(command) = self.waiting.push(now, class, bytes, deadline, command) {
                debug_assert!(!self.waiting.is_empty(), "a command is held back only by others");
                return self.overflow.push_front(command);
            }
        }
        debug_assert!(self.overflow.is_empty(), "all commands have a place");
    }

    /// Returns whether metadata waits to be sent.
    pub(crate) fn has_waiting_metadata(&self) -> bool {
        self.waiting.waiting(Class::Metadata) > 0
            || !self.again.is_empty()
            || !self.overflow.is_empty()
    }

    /// Takes idle memory for `bytes` of metadata, or for less if there is no more in one piece: the smallest piece that
    /// holds them, so that a small write does not occupy a whole buffer.
    pub(crate) fn take_memory(&mut self, bytes: usize) -> Option<Buffer> {
        let pieces = || self.pieces.iter().enumerate();
        let fitting = pieces().filter(|(_, piece)| piece.len() >= bytes);
        let at = fitting.min_by_key(|(_, piece)| piece.len()).map(|(at, _)| at);
        if at.is_none() && !self.memory.is_empty() {
            return self.memory.pop();
        }
        let at = at.or(pieces().max_by_key(|(_, piece)| piece.len()).map(|(at, _)| at));
        at.map(|at| self.pieces.swap_remove(at))
    }

    /// Keeps a part of metadata memory until the rest of its buffer is back.
    pub(crate) fn keep(&mut self, mut piece: Buffer) {
        let mut at = 0;
        while at < self.pieces.len() {
            let other = self.pieces.swap_remove(at);
            match joined(piece, other, self.base) {
                Ok(both) => {
                    piece = both;
                    at = 0;
                }
                Err((one, other)) => {
                    piece = one;
                    self.pieces.push(other);
                    let last = self.pieces.len() - 1;
                    self.pieces.swap(at, last);
                    at += 1;
                }
            }
        }
        let memory = self.base..=self.base + (self.buffers * LANE_BUFFER_BYTES) as u64;
        assert!(memory.contains(&piece.iova().0), "the piece is of the lane's memory");
        assert!(piece.len() <= LANE_BUFFER_BYTES, "pieces of two buffers are not joined");
        match piece.len() {
            0 => {}
            LANE_BUFFER_BYTES => self.memory.push(piece),
            _ => self.pieces.push(piece),
        }
        assert!(self.memory.len() <= self.buffers, "no more buffers are idle than were made");
    }

    /// Takes the device out of service because of a failure.
    pub(crate) fn fail(&mut self, why: &str) {
        assert!(!why.is_empty(), "a failure has a reason");
        assert!(!self.is_failure_noted || self.failure.is_some(), "what is noted has happened");
        if self.failure.is_none() {
            tracing::error!(
                "{}: {why}; its objects are misses until it is re-attached",
                self.info.device
            );
            self.failure = Some(why.to_owned());
        }
    }

    /// Returns whether a command waits to be sent, sent again or taken, or the shard has yet to handle a failure.
    pub(crate) fn has_news(&self) -> bool {
        debug_assert!(
            !self.is_failure_noted || self.failure.is_some(),
            "what is noted has happened"
        );
        let is_news = self.failure.is_some() && !self.is_failure_noted;
        self.has_waiting() || !self.finished.is_empty() || is_news
    }

    fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.again.is_empty() || !self.overflow.is_empty()
    }

    /// Returns whether nothing waits, is in flight or is to be taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.assert_counted();
        let is_taken = self.finished.is_empty();
        is_taken && self.waiting.is_idle() && self.again.is_empty() && self.overflow.is_empty()
    }

    /// Asserts that what the schedule counts as in flight is that, or waits to be sent again.
    fn assert_counted(&self) {
        let classes = [Class::Read, Class::Write, Class::Metadata, Class::Background];
        let popped: u32 = classes.into_iter().map(|class| self.waiting.in_flight(class)).sum();
        debug_assert_eq!(
            popped as usize,
            self.in_flight + self.again.len(),
            "each command that was popped is in flight or is sent again"
        );
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether reads wait or are in flight, behind which writes wait.
    pub(crate) fn has_reads(&self) -> bool {
        let in_flight = self.waiting.in_flight(Class::Read);
        let most = self.in_flight + self.again.len();
        debug_assert!(in_flight as usize <= most, "a read in flight is a command in flight");
        in_flight + self.waiting.waiting(Class::Read) > 0
    }

    /// Returns its counters and its present load.
    pub(crate) fn figures(&self) -> DeviceFigures {
        let classes = [Class::Read, Class::Write, Class::Metadata, Class::Background];
        let scheduled: u64 =
            classes.into_iter().map(|class| u64::from(self.waiting.waiting(class))).sum();
        debug_assert!(
            self.in_flight <= self.info.depth as usize,
            "the device has its depth at most"
        );
        DeviceFigures {
            in_flight: self.in_flight as u64,
            waiting: scheduled + (self.again.len() + self.overflow.len()) as u64,
            failed: u64::from(self.failure.is_some()),
            ..self.done
        }
    }

    /// Takes the command that finished first.
    pub(crate) fn take_finished(&mut self) -> Option<Finished> {
        let finished = self.finished.pop_front()?;
        debug_assert!(finished.bytes <= self.info.split().command_bytes_max, "it was one command");
        Some(finished)
    }

    /// Reaps finished commands.
    pub(crate) fn poll(&mut self, now: Time) {
        self.assert_counted();
        let Lane { queue, waiting, again, finished, in_flight, done, .. } = self;
        queue.poll(now, |completion| {
            assert!(*in_flight > 0, "only a command in flight completes");
            *in_flight -= 1;
            let (memory, tag) = completion.buffer;
            debug_assert!((1..=ATTEMPTS).contains(&tag.attempts), "what completes was sent");
            let result = completion.result.map(drop).map_err(Fault::Command);
            done.completed((tag.sent_at, now), (tag.operation, tag.bytes), result.is_ok());
            let may_pass = matches!(&result, Err(Fault::Command(error)) if error.is_retryable());
            if may_pass && tag.attempts < ATTEMPTS {
                again.push_back((memory, tag));
            } else {
                waiting.finished(tag.class, tag.bytes);
                finished.push_back(tag.finished(memory, result));
            }
        });
        self.note_failure();
        if self.failure.is_some() {
            self.fail_all(now);
        }
        while let Some(command) = self.waiting.expired(now) {
            debug_assert!(command.deadline <= now, "only what is overdue expires");
            self.finished.push_back(command.finished(Fault::Expired));
        }
        self.assert_counted();
    }

    fn note_failure(&mut self) {
        if let Err(error) = self.queue.check() {
            self.fail(&error.to_string());
        }
    }

    /// Fails the commands that were not sent.
    fn fail_all(&mut self, now: Time) {
        assert!(self.failure.is_some(), "only a device out of service fails all commands");
        for (memory, tag) in self.again.drain(..) {
            self.waiting.finished(tag.class, tag.bytes);
            self.finished.push_back(tag.finished(memory, Err(Fault::Gone)));
        }
        self.refill(now);
        // Commands beyond the budgets of those in flight follow when these are back.
        while let Some(start) = self.waiting.pop(now) {
            self.waiting.finished(start.class, start.bytes);
            self.finished.push_back(start.payload.finished(Fault::Gone));
        }
        let is_held_back = self.in_flight > 0;
        debug_assert!(is_held_back || self.waiting.is_empty(), "only what is in flight holds back");
    }

    /// Sends commands that may be sent, rings the device, and returns their number. Fails commands that no queue accepts.
    pub(crate) fn send(&mut self, now: Time) -> usize {
        if !self.has_waiting() {
            return 0;
        }
        let mut sent = 0;
        self.refill(now);
        self.assert_counted();
        while self.in_flight < self.info.depth as usize {
            let Some((load, operation)) = self.next(now) else { break };
            match self.queue.post(now, Request { operation, buffer: load }) {
                Ok(()) => {
                    self.in_flight += 1;
                    sent += 1;
                }
                Err(rejected) => {
                    let (memory, mut tag) = rejected.buffer;
                    if rejected.reason == RejectReason::Full {
                        debug_assert!(tag.attempts > 0, "an attempt was counted");
                        tag.attempts -= 1;
                        self.again.push_front((memory, tag));
                        break;
                    }
                    self.waiting.finished(tag.class, tag.bytes);
                    let fault = Fault::Rejected(rejected.reason);
                    self.finished.push_back(tag.finished(memory, Err(fault)));
                    self.note_failure();
                }
            }
        }
        if sent > 0 {
            self.queue.ring();
        }
        debug_assert!(sent <= self.in_flight, "what was sent is in flight");
        debug_assert!(
            self.in_flight <= self.info.depth as usize,
            "the device has its depth at most"
        );
        self.assert_counted();
        sent
    }

    /// Returns the next command, retries first.
    fn next(&mut self, now: Time) -> Option<(Load, Operation)> {
        if self.failure.is_some() {
            return None;
        }
        debug_assert!(self.in_flight < self.info.depth as usize, "there is room for one more");
        if let Some((memory, mut tag)) = self.again.pop_front() {
            (tag.attempts, tag.sent_at) = (tag.attempts + 1, now);
            debug_assert!(tag.attempts <= ATTEMPTS, "a command is sent so often at most");
            return Some(((memory, tag), tag.operation));
        }
        let Command { purpose, operation, class, memory, bytes, .. } =
            self.waiting.pop(now)?.payload;
        debug_assert!(!self.waiting.is_idle(), "what is popped counts as in flight");
        let tag = Tag { purpose, operation, class, bytes, attempts: 1, sent_at: now };
        Some(((memory, tag), operation))
    }
}

/// Joins two adjacent runs of memory of one buffer.
fn joined(mut one: Buffer, mut other: Buffer, base: u64) -> Result<Buffer, (Buffer, Buffer)> {
    debug_assert!(base <= one.iova().0.min(other.iova().0), "both are of the lane's memory");
    let which = |piece: &Buffer| (piece.iova().0 - base) / LANE_BUFFER_BYTES as u64;
    if which(&one) != which(&other) {
        return Err((one, other));
    }
    let Err(back) = one.join(other) else { return Ok(one) };
    other = back;
    match other.join(one) {
        Ok(()) => Ok(other),
        Err(one) => Err((one, other)),
    }
}
