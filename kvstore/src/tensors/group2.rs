//! A queue that moves runs of LBAs: group 2, and all other transfers past the page cache.
//!
//! One copy thread owns it. A transfer becomes commands in the order of their LBAs ([`chunks`]), as many in flight as
//! the queue takes; the transfer's memory is split for them and joined again. A small write may be left *behind*: it has
//! memory of its own, and completes while the thread does something else, but before anything else touches its tensor.

use std::time::{Duration, Instant};

use adit_driver::RejectReason;
use adit_driver::memory::Buffer;
use adit_driver::paths::{CommandQueue, Device, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;

use crate::error::{Error, Result};
use crate::tensors::place::{Span, chunks};
use crate::tensors::shape::TensorId;

/// How often a command is sent at most.
const ATTEMPTS: u8 = 4;
/// How long to sleep at most before looking at the deadline again.
const NAP: Duration = Duration::from_millis(10);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the drive.
    Read,
    /// To the drive.
    Write,
}

/// Settings of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOptions {
    /// Most bytes of a command; no limit for a mapping, which copies.
    pub(super) command_bytes: u64,
    pub(super) depth: u32,
    /// How long to wait for the next completion.
    pub(super) timeout: Duration,
}

/// What a command owns while it is in flight.
type Load = (Buffer, Tag);

#[derive(Clone, Copy, Debug)]
struct Tag {
    operation: Operation,
    attempts: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The command of this number of the present transfer.
    Chunk(usize),
    /// A write left behind, of this tensor.
    Behind(TensorId),
}

/// What transfers cost; the difference of two is that of the transfers between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) commands: u64,
    pub(super) sequential: u64,
    /// Time of transfers.
    pub(super) active: Duration,
    /// The part of it with at least one command in flight.
    pub(super) busy: Duration,
}

/// A queue of one device, owned by one copy thread.
#[derive(Debug)]
pub(super) struct Stream {
    device: Device,
    queue: DeviceQueue<Load>,
    command_bytes: u64,
    timeout: Duration,
    depth: usize,
    in_flight: usize,
    /// The memory of the present transfer's commands that are done, by their number.
    pieces: Vec<Option<Buffer>>,
    /// The failure of the present transfer.
    failed: Option<String>,
    /// The length of writes left behind, idle memory for them, the tensors of those in flight, and the first failure.
    behind_bytes: u64,
    spare: Vec<Buffer>,
    behind: Vec<TensorId>,
    behind_failed: Option<(TensorId, String)>,
    /// Where the last read and the last write ended.
    ends: [Option<u64>; 2],
    cost: Cost,
    /// Whether a transfer is under way, and since when it has had a command in flight.
    is_transferring: bool,
    busy_since: Option<Instant>,
    /// Whether a command never came back: it keeps its memory, and nothing more is sent.
    is_stuck: bool,
}

impl Stream {
    /// Opens a queue of `device`. `memory` is that of all transfers; `spare` that of writes left behind.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn open(
        device: &Device,
        options: &StreamOptions,
        memory: &Buffer,
        spare: Vec<Buffer>,
    ) -> Result<Stream> {
        let info = device.info();
        let depth = options.depth.clamp(1, info.queue_depth_max.max(1));
        let queue_options = QueueOptions {
            depth,
            timeout: options.timeout / 2,
            abort_timeout: options.timeout / 4,
        };
        let queue = device.create_queue(&queue_options, &[memory])?;
        let fits = info.split(depth).anywhere(info.lba_bytes).min(info.command_bytes_max);
        Ok(Stream {
            device: device.clone(),
            queue,
            command_bytes: options.command_bytes.min(fits).max(info.lba_bytes.into()),
            timeout: options.timeout,
            depth: depth as usize,
            in_flight: 0,
            pieces: Vec::new(),
            failed: None,
            behind_bytes: spare.first().map_or(0, |buffer| buffer.len() as u64),
            spare,
            behind: Vec::new(),
            behind_failed: None,
            ends: [None; 2],
            cost: Cost::default(),
            is_transferring: false,
            busy_since: None,
            is_stuck: false,
        })
    }

    /// Returns the bytes of an LBA.
    pub(super) fn lba_bytes(&self) -> u32 {
        self.device.info().lba_bytes
    }

    /// Returns whether a command never ended.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Returns what its transfers cost so far.
    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    /// Moves the first bytes of `memory` to or from `span`. The memory comes back with a failure as well, unless a
    /// command never ended: then the queue keeps it.
    pub(super) fn transfer(
        &mut self,
        direction: Direction,
        span: Span,
        memory: Buffer,
    ) -> (Option<Buffer>, Result<()>) {
        assert!(span.bytes as usize <= memory.len(), "the memory holds the transfer");
        if self.is_stuck {
            return (Some(memory), Err(self.stuck()));
        }
        let begun = Instant::now();
        self.failed = None;
        self.is_transferring = true;
        // Writes left behind keep the device busy as well.
        self.busy_since = (self.in_flight > 0).then_some(begun);
        let (rest, result) = self.send_all(direction, span, memory);
        self.is_transferring = false;
        self.cost.busy += self.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.cost.active += begun.elapsed();
        assert!(self.cost.busy <= self.cost.active, "the device was busy during transfers");
        match result {
            Err(error) => (None, Err(error)),
            Ok(()) => (Some(self.join(rest)), self.take_failure(direction)),
        }
    }

    /// Sends the commands of a transfer and waits for all; returns the memory behind them.
    fn send_all(
        &mut self,
        direction: Direction,
        span: Span,
        mut rest: Buffer,
    ) -> (Buffer, Result<()>) {
        let lba_bytes = self.lba_bytes();
        let mut list = chunks(span, lba_bytes, self.command_bytes).enumerate().peekable();
        self.pieces.clear();
        self.pieces.resize_with(list.len(), || None);
        let (mut posted, mut ended) = (0, 0);
        loop {
            while let Some((index, chunk)) = list.peek().copied() {
                if self.in_flight >= self.depth || self.failed.is_some() {
                    break;
                }
                let tail = rest.split_off(chunk.bytes(lba_bytes) as usize);
                let lba = Lba(chunk.slba);
                let operation = match direction {
                    Direction::Read => Operation::Read(lba),
                    Direction::Write => Operation::Write(lba),
                };
                let tag = Tag { operation, attempts: 1, kind: Kind::Chunk(index) };
                if let Err(mut back) = self.post((std::mem::replace(&mut rest, tail), tag)) {
                    back.join(rest).expect("it was split off there");
                    rest = back;
                    break;
                }
                self.count(direction, chunk.slba, chunk.slba + chunk.nlb_z + 1);
                posted += 1;
                list.next();
            }
            if posted == ended && (list.peek().is_none() || self.failed.is_some()) {
                return (rest, Ok(()));
            }
            self.queue.ring();
            match self.reap() {
                Ok(count) => ended += count,
                Err(error) => return (rest, Err(error)),
            }
        }
    }

    /// Posts a command; gives its memory back if the queue is full for now, or refuses it, which is then the transfer's
    /// failure.
    fn post(&mut self, load: Load) -> std::result::Result<(), Buffer> {
        let operation = load.1.operation;
        match self.queue.post(self.device.now(), Request { operation, buffer: load }) {
            Ok(()) => {
                self.in_flight += 1;
                if self.is_transferring {
                    self.busy_since.get_or_insert_with(Instant::now);
                }
                Ok(())
            }
            Err(rejected) => {
                if rejected.reason != RejectReason::Full {
                    self.is_stuck |= self.queue.check().is_err();
                    self.failed.get_or_insert_with(|| rejected.reason.to_string());
                }
                Err(rejected.buffer.0)
            }
        }
    }

    /// Posts a request, after others if the queue is full: it may be several commands.
    ///
    /// # Errors
    /// As [`Stream::reap`].
    fn post_in_turn(&mut self, load: Load) -> Result<std::result::Result<(), Buffer>> {
        let (mut memory, tag) = load;
        loop {
            match self.post((memory, tag)) {
                Err(back) if self.failed.is_none() && self.in_flight > 0 => memory = back,
                other => return Ok(other),
            }
            self.queue.ring();
            self.reap()?;
        }
    }

    fn count(&mut self, direction: Direction, slba: u64, end: u64) {
        let last = self.ends[direction as usize].replace(end);
        self.cost.commands += 1;
        self.cost.sequential += u64::from(last == Some(slba));
    }

    /// Waits for completions; returns how many commands of the present transfer ended.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none comes in time, and the device's failure: then the queue is stuck.
    fn reap(&mut self) -> Result<usize> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let (any, ended) = self.poll();
            if any > 0 {
                return Ok(ended);
            }
            if let Err(error) = self.queue.check() {
                self.is_stuck = true;
                return Err(error.into());
            }
            if Instant::now() >= deadline {
                self.is_stuck = true;
                let fix = "check the drive (dmesg), then begin the run anew";
                let waited_for = "a command of a tensor";
                return Err(Error::Timeout { waited_for, after: self.timeout, fix });
            }
            if !self.queue.wait(NAP) {
                std::thread::yield_now();
            }
        }
    }

    /// Takes what has completed; returns the number of completions, and of those that end a command of the transfer.
    fn poll(&mut self) -> (usize, usize) {
        let now = self.device.now();
        let (mut again, mut ended) = (Vec::new(), 0);
        let Stream { queue, pieces, failed, spare, behind, behind_failed, .. } = self;
        let any = queue.poll(now, |completion| {
            let (memory, tag) = completion.buffer;
            let error = completion.result.err();
            if let Some(error) = error
                && error.is_retryable()
                && tag.attempts < ATTEMPTS
            {
                again.push((memory, Tag { attempts: tag.attempts + 1, ..tag }));
                return;
            }
            match tag.kind {
                Kind::Chunk(index) => {
                    assert!(pieces[index].is_none(), "a command ends once");
                    pieces[index] = Some(memory);
                    *failed = failed.take().or(error.map(|why| why.to_string()));
                    ended += 1;
                }
                Kind::Behind(tensor) => {
                    let at = behind.iter().position(|other| *other == tensor);
                    behind.swap_remove(at.expect("it is in flight"));
                    spare.push(memory);
                    let error = error.map(|why| (tensor, why.to_string()));
                    *behind_failed = behind_failed.take().or(error);
                }
            }
        });
        self.in_flight = self.in_flight.checked_sub(any).expect("only what is in flight completes");
        ended += self.send_again(again);
        if self.in_flight == 0
            && let Some(since) = self.busy_since.take()
        {
            self.cost.busy += since.elapsed();
        }
        (any, ended)
    }

    /// Sends failed commands again; returns how many of the transfer's the queue refused.
    fn send_again(&mut self, again: Vec<Load>) -> usize {
        let mut ended = 0;
        for load in again {
            let (operation, kind) = (load.1.operation, load.1.kind);
            let request = Request { operation, buffer: load };
            match self.queue.post_again(self.device.now(), request) {
                Ok(()) => self.in_flight += 1,
                Err(rejected) => match kind {
                    Kind::Chunk(index) => {
                        self.pieces[index] = Some(rejected.buffer.0);
                        self.failed.get_or_insert_with(|| rejected.reason.to_string());
                        ended += 1;
                    }
                    Kind::Behind(tensor) => {
                        self.behind.retain(|other| *other != tensor);
                        self.spare.push(rejected.buffer.0);
                        let why = (tensor, rejected.reason.to_string());
                        self.behind_failed.get_or_insert(why);
                    }
                },
            }
        }
        self.queue.ring();
        ended
    }

    /// Joins the memory of all commands and what lies behind it.
    fn join(&mut self, rest: Buffer) -> Buffer {
        let mut pieces = self.pieces.drain(..).flatten();
        let Some(mut whole) = pieces.next() else { return rest };
        for piece in pieces.chain([rest]) {
            whole.join(piece).expect("commands are posted in the order of their memory");
        }
        whole
    }

    fn take_failure(&mut self, direction: Direction) -> Result<()> {
        let what = match direction {
            Direction::Read => "read a tensor",
            Direction::Write => "write a tensor",
        };
        self.failed.take().map_or(Ok(()), |why| Err(self.failure(what, why)))
    }

    fn failure(&self, what: &str, why: String) -> Error {
        let fix = "check the drive, then begin the run anew";
        Error::tensors(&self.device.info().device, what, why, fix)
    }

    fn stuck(&self) -> Error {
        let why = "it is out of service after an earlier failure";
        let fix = "recover it, then begin the run anew";
        Error::tensors(&self.device.info().device, "move a tensor", why, fix)
    }

    /// Returns whether a write of `bytes` can be left behind: one for each tensor.
    pub(super) fn leaves_behind(&self, tensor: TensorId, bytes: u64) -> bool {
        let fits = bytes == self.behind_bytes && bytes <= self.command_bytes && self.depth > 1;
        fits && !self.behind.contains(&tensor)
    }

    /// Writes `span` without waiting for the end: `fill` puts its bytes into memory. Waits if too many writes are
    /// behind; the tensor has none of them.
    ///
    /// # Errors
    /// Those of `fill` and of the device.
    pub(super) fn write_behind(
        &mut self,
        tensor: TensorId,
        span: Span,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if self.is_stuck {
            return Err(self.stuck());
        }
        assert!(!self.behind.contains(&tensor), "operations on a tensor happen in order");
        while self.spare.is_empty() || self.in_flight >= self.depth {
            self.reap()?;
        }
        let mut memory = self.spare.pop().expect("there is one");
        assert_eq!(memory.len() as u64, span.bytes, "all writes behind are equally long");
        if let Err(error) = fill(&mut memory) {
            self.spare.push(memory);
            return Err(error);
        }
        let operation = Operation::Write(Lba(span.slba));
        let tag = Tag { operation, attempts: 1, kind: Kind::Behind(tensor) };
        self.failed = None;
        if let Err(back) = self.post_in_turn((memory, tag))? {
            self.spare.push(back);
            return self.take_failure(Direction::Write).and(Err(self.stuck()));
        }
        self.behind.push(tensor);
        self.count(
            Direction::Write,
            span.slba,
            span.slba + span.bytes / u64::from(self.lba_bytes()),
        );
        self.queue.ring();
        self.poll();
        Ok(())
    }

    /// Waits for the writes behind of a tensor, or of all.
    ///
    /// # Errors
    /// The first failure of any write behind, which names its tensor.
    pub(super) fn settle(&mut self, tensor: Option<TensorId>) -> Result<()> {
        while self.behind.iter().any(|other| tensor.is_none_or(|tensor| tensor == *other)) {
            if self.is_stuck {
                return Err(self.stuck());
            }
            self.reap()?;
        }
        self.behind_failed.take().map_or(Ok(()), |(tensor, why)| {
            Err(self.failure(&format!("write a token of {tensor}"), why))
        })
    }

    /// Deallocates a run of LBAs, if the device can; `memory` is scratch.
    pub(super) fn deallocate(&mut self, slba: u64, lbas: u64, memory: Buffer) -> Result<()> {
        let info = self.device.info();
        if !info.deallocates || self.is_stuck {
            return Ok(());
        }
        let most = info.deallocate_lbas_max.min(u64::from(u32::MAX)).max(1);
        let (mut at, end, mut memory) = (slba, slba + lbas, Some(memory));
        while at < end {
            let count = most.min(end - at);
            let operation = Operation::Deallocate(Lba(at), count as u32);
            let tag = Tag { operation, attempts: 1, kind: Kind::Chunk(0) };
            self.pieces.clear();
            self.pieces.push(None);
            self.failed = None;
            let load = memory.take().expect("it came back");
            if self.post_in_turn((load, tag))?.is_err() {
                return self.take_failure(Direction::Write).and(Err(self.stuck()));
            }
            self.queue.ring();
            while self.reap()? == 0 {}
            memory = self.pieces.drain(..).flatten().next();
            if let Some(why) = self.failed.take() {
                return Err(self.failure("deallocate its LBAs", why));
            }
            at += count;
        }
        Ok(())
    }
}
