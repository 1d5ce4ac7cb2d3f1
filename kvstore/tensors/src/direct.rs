//! Moves runs of LBAs past the page cache: the core of a copy thread's queue.
//!
//! The core reads no clock and never waits: each call takes the time, so it also runs in simulated time
//! ([`crate::copy::queue`] drives it). A transfer becomes commands in the order of their LBAs ([`Chunks`]), as many in
//! flight as the queue takes; the transfer's memory is split for them and joined again. A small write may be left
//! *behind*: it has its own memory and completes while the thread does other work, but before the next operation on its
//! tensor.

use std::time::Duration;

use adit_driver::memory::Buffer;
use adit_driver::paths::{CommandQueue, DeviceInfo, Operation, Request};
use adit_driver::spec::Lba;
use adit_driver::{RejectReason, Time};

use crate::error::{Error, Result};
use crate::place::{Chunks, Span};
use crate::shape::TensorId;
use crate::stats::Cost;

/// Maximum attempts at a command.
const ATTEMPTS: u8 = 4;
/// Maximum writes that a queue leaves behind.
pub(crate) const BEHIND_COUNT: u64 = 8;
const OUT_OF_SERVICE: &str = "it is out of service after an earlier failure";

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the drive.
    Read,
    /// To the drive.
    Write,
    /// No data: one command deallocates the LBAs, with scratch memory.
    Deallocate,
}

impl Direction {
    fn operation(self, slba: u64, lbas: u64) -> Operation {
        match self {
            Direction::Read => Operation::Read(Lba(slba)),
            Direction::Write => Operation::Write(Lba(slba)),
            Direction::Deallocate => Operation::Deallocate(Lba(slba), lbas as u32),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Direction::Read => "read a tensor",
            Direction::Write => "write a tensor",
            Direction::Deallocate => "deallocate its LBAs",
        }
    }
}

/// The memory and tag that a command owns while in flight.
pub(crate) type Load = (Buffer, Tag);

/// The purpose of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    operation: Operation,
    attempts: u8,
    owner: Owner,
}

impl Tag {
    fn new(operation: Operation, owner: Owner) -> Tag {
        Tag { operation, attempts: 1, owner }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The command with this number of the present transfer.
    Transfer(usize),
    /// This tensor's write left behind.
    Behind(TensorId),
}

/// A transfer in progress.
#[derive(Debug)]
struct Transfer {
    direction: Direction,
    begun: Time,
    unposted: Chunks,
    /// The memory behind that of all posted commands.
    rest: Option<Buffer>,
}

/// Results of ended requests.
#[derive(Debug, Default)]
struct Results {
    /// Commands of the present transfer in flight.
    open: usize,
    /// Memory of the transfer's ended commands, by number.
    pieces: Vec<Option<Buffer>>,
    /// The failure of the present transfer or request.
    failed: Option<String>,
    /// Idle memory for writes left behind, the tensors of those in flight, and the first failure.
    spare: Vec<Buffer>,
    behind: Vec<TensorId>,
    behind_failed: Option<(TensorId, String)>,
}

impl Results {
    /// Takes the memory of an ended request, and the reason if it failed.
    fn take(&mut self, (memory, tag): Load, why: Option<String>) {
        match tag.owner {
            Owner::Transfer(index) => {
                assert!(self.pieces[index].is_none(), "a command ends once");
                self.pieces[index] = Some(memory);
                self.failed = self.failed.take().or(why);
                self.open = self.open.checked_sub(1).expect("only what is in flight ends");
            }
            Owner::Behind(tensor) => {
                let at = self.behind.iter().position(|other| *other == tensor);
                self.behind.swap_remove(at.expect("it is in flight"));
                self.spare.push(memory);
                let why = why.map(|why| (tensor, why));
                self.behind_failed = self.behind_failed.take().or(why);
            }
        }
    }
}

/// A queue of one device, owned by one copy thread.
#[derive(Debug)]
pub(crate) struct DirectQueue<Q> {
    info: DeviceInfo,
    pub(crate) queue: Q,
    command_bytes: u64,
    timeout: Duration,
    depth: usize,
    in_flight: usize,
    /// Time of the device's last answer, or of the begin of the present wait.
    heard_at: Time,
    transfer: Option<Transfer>,
    /// A request outside transfers that the queue has not taken yet.
    waiting: Option<Load>,
    /// The length of writes left behind.
    behind_bytes: u64,
    results: Results,
    /// End of the last command in each direction.
    ends: [Option<u64>; 3],
    cost: Cost,
    /// Time since which the present transfer has had a command in flight.
    busy_since: Option<Time>,
    /// Whether a command never ended: it keeps its memory, and no more commands are sent.
    is_stuck: bool,
}

impl<Q: CommandQueue<Load>> DirectQueue<Q> {
    /// Creates the core of a `queue` of `depth` requests. `spare` is memory for writes left behind; `timeout` limits
    /// the time between completions.
    pub(crate) fn new(
        queue: Q,
        info: &DeviceInfo,
        (depth, command_bytes): (u32, u64),
        timeout: Duration,
        spare: Vec<Buffer>,
    ) -> DirectQueue<Q> {
        let fits = info.split(depth).anywhere(info.lba_bytes).min(info.command_bytes_max);
        DirectQueue {
            info: info.clone(),
            queue,
            command_bytes: command_bytes.min(fits).max(info.lba_bytes.into()),
            timeout,
            depth: depth as usize,
            in_flight: 0,
            heard_at: Time::ZERO,
            transfer: None,
            waiting: None,
            behind_bytes: spare.first().map_or(0, |buffer| buffer.len() as u64),
            results: Results { spare, ..Results::default() },
            ends: [None; 3],
            cost: Cost::default(),
            busy_since: None,
            is_stuck: false,
        }
    }

    /// Returns the bytes of an LBA.
    pub(crate) fn lba_bytes(&self) -> u32 {
        self.info.lba_bytes
    }

    /// Returns whether the device's LBAs go through the page cache nevertheless, like those of a mapped file.
    pub(crate) fn is_cached(&self) -> bool {
        self.info.is_cached
    }

    /// Returns whether a command never ended.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Takes the cost of transfers since the last call.
    pub(crate) fn take_cost(&mut self) -> Cost {
        std::mem::take(&mut self.cost)
    }

    /// Returns the time of the device's last answer, or of the begin of the present wait.
    pub(crate) fn heard_at(&self) -> Time {
        self.heard_at
    }

    /// Begins a wait for the device and restarts its time limit.
    pub(crate) fn expect_answers(&mut self, now: Time) {
        self.heard_at = now;
    }

    /// Begins to move the first bytes of `memory` to or from `span`. Call [`DirectQueue::advance`] until the transfer
    /// has ended, then [`DirectQueue::finish`].
    pub(crate) fn begin(&mut self, now: Time, direction: Direction, span: Span, memory: Buffer) {
        assert!(self.transfer.is_none(), "one transfer at a time");
        let moves = direction != Direction::Deallocate;
        assert!(!moves || span.bytes as usize <= memory.len(), "the memory holds the transfer");
        self.results.failed = self.is_stuck.then(|| OUT_OF_SERVICE.to_owned());
        let command_bytes = if moves { self.command_bytes } else { u64::MAX };
        let unposted = Chunks::new(span, self.info.lba_bytes, command_bytes);
        self.results.pieces.clear();
        assert_eq!(self.results.open, 0, "the last transfer has ended");
        self.results.pieces.resize_with(unposted.len(), || None);
        // Writes left behind keep the device busy too.
        self.busy_since = (self.in_flight > 0).then_some(now);
        self.transfer = Some(Transfer { direction, begun: now, unposted, rest: Some(memory) });
    }

    /// Posts commands while the queue takes them and reaps completions. Returns whether the transfer has ended.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing completes in time, and the device's failure: then the queue is stuck and the
    /// transfer never ends.
    pub(crate) fn advance(&mut self, now: Time) -> Result<bool> {
        self.post_chunks(now);
        let transfer = self.transfer.as_ref().expect("a transfer has begun");
        let is_posted = transfer.unposted.len() == 0 || self.results.failed.is_some();
        if is_posted && self.results.open == 0 {
            return Ok(true);
        }
        self.queue.ring();
        self.reap(now)?;
        Ok(false)
    }

    /// Posts commands of the transfer while the queue takes them.
    fn post_chunks(&mut self, now: Time) {
        while self.in_flight < self.depth && self.results.failed.is_none() {
            let transfer = self.transfer.as_mut().expect("a transfer has begun");
            let Some((index, chunk)) = transfer.unposted.first() else { return };
            let direction = transfer.direction;
            let mut head =
                transfer.rest.take().expect("memory lies behind that of posted commands");
            let is_last = direction == Direction::Deallocate;
            let tail =
                (!is_last).then(|| head.split_off(chunk.bytes(self.info.lba_bytes) as usize));
            let operation = direction.operation(chunk.slba, chunk.nlb_z + 1);
            let tag = Tag::new(operation, Owner::Transfer(index));
            let posted = self.post(now, (head, tag));
            let transfer = self.transfer.as_mut().expect("a transfer has begun");
            if let Err((mut head, _)) = posted {
                if let Some(tail) = tail {
                    head.join(tail).expect("it was split off there");
                }
                transfer.rest = Some(head);
                return;
            }
            transfer.rest = tail;
            transfer.unposted.take_first();
            self.results.open += 1;
            self.busy_since.get_or_insert(now);
            self.count(direction, chunk.slba, chunk.slba + chunk.nlb_z + 1);
        }
    }

    /// Ends a transfer. Returns the memory even after a failure, unless a command never ended: then the queue keeps it.
    pub(crate) fn finish(&mut self, now: Time, ended: Result<()>) -> (Option<Buffer>, Result<()>) {
        let transfer = self.transfer.take().expect("a transfer has begun");
        self.cost.busy += self.busy_since.take().map_or(Duration::ZERO, |since| now.since(since));
        self.cost.active += now.since(transfer.begun);
        assert!(self.cost.busy <= self.cost.active, "the device was busy during transfers");
        match ended {
            Err(error) => (None, Err(error)),
            Ok(()) => {
                let failed = self.results.failed.take();
                let failed = failed.map(|why| self.failure(transfer.direction.name(), why));
                (self.join(transfer.rest), failed.map_or(Ok(()), Err))
            }
        }
    }

    /// Joins the memory of all commands of a transfer and the rest behind it.
    fn join(&mut self, rest: Option<Buffer>) -> Option<Buffer> {
        let mut pieces = self.results.pieces.drain(..).flatten().chain(rest);
        let mut whole = pieces.next()?;
        for piece in pieces {
            whole.join(piece).expect("commands are posted in the order of their memory");
        }
        Some(whole)
    }

    /// Posts a request. Returns it if the queue is full, or refuses it; a refusal becomes the present failure.
    fn post(&mut self, now: Time, load: Load) -> std::result::Result<(), Load> {
        let operation = load.1.operation;
        let Err(rejected) = self.queue.post(now, Request { operation, buffer: load }) else {
            self.in_flight += 1;
            return Ok(());
        };
        if rejected.reason != RejectReason::Full {
            self.is_stuck |= self.queue.check().is_err();
            self.results.failed.get_or_insert_with(|| rejected.reason.to_string());
        }
        Err(rejected.buffer)
    }

    fn count(&mut self, direction: Direction, slba: u64, end: u64) {
        let last = self.ends[direction as usize].replace(end);
        self.cost.commands += 1;
        self.cost.sequential += u64::from(last == Some(slba));
    }

    /// Takes completions.
    ///
    /// # Errors
    /// As [`DirectQueue::advance`].
    fn reap(&mut self, now: Time) -> Result<()> {
        if self.poll(now) > 0 {
            self.heard_at = now;
            return Ok(());
        }
        if let Err(error) = self.queue.check() {
            self.is_stuck = true;
            return Err(error.into());
        }
        if now.since(self.heard_at) < self.timeout {
            return Ok(());
        }
        self.is_stuck = true;
        let fix = "check the drive (dmesg), then restart the run";
        Err(Error::Timeout { waited_for: "a command of a tensor", after: self.timeout, fix })
    }

    /// Takes completions and resends commands that may succeed on retry. Returns the number of completions.
    fn poll(&mut self, now: Time) -> usize {
        let mut again = Vec::new();
        let results = &mut self.results;
        let count = self.queue.poll(now, |completion| {
            let ((memory, tag), error) = (completion.buffer, completion.result.err());
            match error {
                Some(error) if error.is_retryable() && tag.attempts < ATTEMPTS => {
                    again.push((memory, Tag { attempts: tag.attempts + 1, ..tag }));
                }
                error => results.take((memory, tag), error.map(|why| why.to_string())),
            }
        });
        self.in_flight = self.in_flight.checked_sub(count).expect("only what is in flight ends");
        for load in again {
            let operation = load.1.operation;
            match self.queue.post_again(now, Request { operation, buffer: load }) {
                Ok(()) => self.in_flight += 1,
                Err(back) => self.results.take(back.buffer, Some(back.reason.to_string())),
            }
        }
        self.queue.ring();
        if self.in_flight == 0
            && let Some(since) = self.busy_since.take()
        {
            self.cost.busy += now.since(since);
        }
        count
    }

    fn failure(&self, what: &str, why: impl ToString) -> Error {
        let fix = "check the drive, then restart the run";
        Error::failed(&self.info.device, what, why, fix)
    }

    fn check_service(&self) -> Result<()> {
        match self.is_stuck {
            true => Err(self.failure("move a tensor", OUT_OF_SERVICE)),
            false => Ok(()),
        }
    }

    /// Returns whether a write of `bytes` can be left behind: one for each tensor.
    pub(crate) fn leaves_behind(&self, tensor: TensorId, bytes: u64) -> bool {
        let fits = bytes == self.behind_bytes && bytes <= self.command_bytes && self.depth > 1;
        fits && !self.results.behind.contains(&tensor)
    }

    /// Returns whether memory and a slot are free for a write to be left behind; call it again to wait for them.
    ///
    /// # Errors
    /// As [`DirectQueue::advance`].
    pub(crate) fn has_room_behind(&mut self, now: Time) -> Result<bool> {
        self.check_service()?;
        if !self.results.spare.is_empty() && self.in_flight < self.depth {
            return Ok(true);
        }
        self.reap(now)?;
        Ok(false)
    }

    /// Leaves a write of `span` behind; `fill` puts its bytes into memory. Requires room, and that the tensor has no
    /// such write yet. Call [`DirectQueue::post_waiting`] until it is posted.
    ///
    /// # Errors
    /// As `fill`.
    pub(crate) fn write_behind(
        &mut self,
        tensor: TensorId,
        span: Span,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        assert!(!self.results.behind.contains(&tensor), "operations on a tensor happen in order");
        let mut memory = self.results.spare.pop().expect("there is room");
        assert_eq!(memory.len() as u64, span.bytes, "all writes behind are equally long");
        if let Err(error) = fill(&mut memory) {
            self.results.spare.push(memory);
            return Err(error);
        }
        let operation = Direction::Write.operation(span.slba, 1);
        self.results.failed = None;
        self.results.behind.push(tensor);
        self.waiting = Some((memory, Tag::new(operation, Owner::Behind(tensor))));
        let end = span.slba + span.bytes / u64::from(self.info.lba_bytes);
        self.count(Direction::Write, span.slba, end);
        Ok(())
    }

    /// Posts the waiting request, which may be several commands, if the queue takes it now. Returns whether it did.
    ///
    /// # Errors
    /// The refusal of the request, and as [`DirectQueue::advance`].
    pub(crate) fn post_waiting(&mut self, now: Time) -> Result<bool> {
        let load = self.waiting.take().expect("a request waits");
        let Err(load) = self.post(now, load) else {
            self.queue.ring();
            self.poll(now);
            return Ok(true);
        };
        if self.results.failed.is_none() && self.in_flight > 0 {
            self.waiting = Some(load);
            self.queue.ring();
            self.reap(now)?;
            return Ok(false);
        }
        let why = self.results.failed.take().unwrap_or_else(|| "its queue is full".to_owned());
        self.results.take(load, None);
        Err(self.failure("write a tensor", why))
    }

    /// Returns whether all writes behind of a tensor, or of all tensors, have ended.
    ///
    /// # Errors
    /// As [`DirectQueue::advance`], and the first failure of any write behind; it names the tensor.
    pub(crate) fn has_settled(&mut self, now: Time, tensor: Option<TensorId>) -> Result<bool> {
        let is_it = |other: &TensorId| tensor.is_none_or(|tensor| tensor == *other);
        if self.results.behind.iter().any(is_it) {
            self.check_service()?;
            self.reap(now)?;
            return Ok(false);
        }
        self.results.behind_failed.take().map_or(Ok(true), |(tensor, why)| {
            Err(self.failure(&format!("write a token of {tensor}"), why))
        })
    }

    /// Returns the maximum LBAs that one command deallocates; `None` if the device cannot, or if the queue is stuck.
    pub(crate) fn deallocates_at_once(&self) -> Option<u64> {
        let most = self.info.deallocate_lbas_max.min(u64::from(u32::MAX)).max(1);
        (self.info.deallocates && !self.is_stuck).then_some(most)
    }
}

#[cfg(test)]
mod tests;
