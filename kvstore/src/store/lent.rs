//! Memory of the caller's: registering it, and requests in memory that a device cannot use as it is.
//!
//! A device moves whole units of 4 KiB, to and from memory that it knows. Of memory that begins or ends elsewhere, or
//! is registered for another device, only what is aligned goes along; the rest, or all, passes through a pool and is
//! copied, which is counted. Memory that no device of the store knows is left to the shard, which refuses it.
//!
//! Memory that a device can use as it is may still pass through a pool, where that costs less ([`super::manner`]).

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use adit_driver::memory::{AnyBuffer, IoBuffer};
use adit_driver::sys::HostMemory;
use adit_driver::{Buffer, Device};

use super::check::Check;
use super::handle::Store;
use super::manner::{Chooser, Manner, Ticket};
use super::pending::{Reply, Unfinished};
use super::pool::{Counts, Pool, PoolBuffer, Pools};
use super::request::verified;
use super::value::Read;
use crate::error::Result;
use crate::model::object::Version;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Failure, Found, GetItem, Outcome, Part, Unverified, Verdict};

const UNIT: usize = UNIT_BYTES as usize;

impl Store {
    /// Registers memory of the caller's for requests, such as an engine's pinned pool of KV blocks, until the buffer and
    /// all its parts are dropped ([`Buffer::split_off`]). [`HostMemory::adopt`] takes memory that this process has
    /// mapped, `adopt_shared` memory that others write. Blocks while the memory is pinned, during which the store's threads serve no one: register before serving.
    ///
    /// The first device and every device reached through the kernel use it without a copy; data of another controller
    /// passes through the store's memory. On the kernel's paths, memory beyond the limit on locked memory is usable but
    /// not pinned, which the log says once.
    ///
    /// # Errors
    /// As [`Device::register`]; [`Failure::Closed`] if the store is closed.
    pub fn register(&self, memory: HostMemory) -> Result<Buffer> {
        let mut buffer = self.core.devices.as_slice()[0].register(memory)?;
        for shard in 0..self.core.set.shards() {
            let registering = self.core.ask(shard, move |shard, _| {
                shard.register(&buffer);
                Ok(buffer)
            });
            buffer = registering.wait()?;
        }
        Ok(buffer)
    }

    /// Returns whether a device maps the files behind registered memory itself ([`Device::maps_files`]).
    pub fn maps_files(&self) -> bool {
        self.core.devices.as_slice().iter().any(Device::maps_files)
    }
}

/// What the devices of a store can use, and how much was copied because they could not.
pub(super) struct Reach {
    devices: Vec<Device>,
    /// By device, for reads and for writes, if the pages of memory matter to it.
    choosers: Vec<Option<[Arc<Chooser>; 2]>>,
    counts: Arc<Counts>,
}

impl Reach {
    pub(super) fn new(devices: &[Device], pools: &Pools) -> Reach {
        let choosers = devices.iter().zip(0..);
        let choosers = choosers
            .map(|(device, number)| Chooser::pair(device, pools.of_device(number).pages()))
            .collect();
        Reach { devices: devices.to_vec(), choosers, counts: Arc::clone(&pools.counts) }
    }

    /// Returns what is copied and what is not.
    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Begins a read of `bytes` that its device can do in place, if it is open to choice.
    fn begin_read(&self, device: u8, into: &[Buffer], bytes: usize) -> Option<Ticket> {
        let [chooser, _] = self.choosers[usize::from(device)].as_ref()?;
        chooser.is_open(into, bytes as u64).then(|| chooser.begin(bytes as u64))
    }

    /// Begins a put that its device can do in place, if it is open to choice. One for any device counts for the first that
    /// has a choice.
    pub(super) fn begin_put(
        &self,
        memory: &AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Option<Ticket> {
        if bytes_of(memory) < bytes || !self.knows(memory) {
            // The shard refuses it.
            return None;
        }
        let any = || self.choosers.iter().flatten().next();
        let of = |device| self.choosers[usize::from(device)].as_ref();
        let [_, chooser] = device.map_or_else(any, of)?;
        chooser.is_open(slice(memory), bytes).then(|| chooser.begin(bytes))
    }

    /// Returns whether a device can use the memory from its first byte on.
    fn reaches(&self, device: usize, memory: &impl IoBuffer) -> bool {
        let device = &self.devices[device];
        let lba_bytes = device.info().lba_bytes as usize;
        let begins = |index| memory.pointer(index).addr().get().is_multiple_of(lba_bytes);
        device.accepts(memory) && (0..memory.segment_count()).all(begins)
    }

    /// Returns whether a device of the store knows the memory.
    pub(super) fn knows(&self, memory: &AnyBuffer) -> bool {
        self.devices.iter().any(|device| device.accepts(memory))
    }

    /// Returns whether a device can use all of the memory.
    fn uses(&self, device: usize, memory: &AnyBuffer) -> bool {
        self.reaches(device, memory) && is_whole(memory)
    }

    /// Returns whether each device can use all of the memory, which is not open to choice, or none knows it.
    pub(super) fn needs_no_copy(&self, memory: &AnyBuffer) -> bool {
        if memory.segment_count() == 0 {
            // An empty object is read into it by way of a pool.
            return false;
        }
        let reads = self.choosers.iter().flatten().map(|[reads, _]| reads);
        let is_open = |chooser: &Arc<Chooser>| chooser.is_open(slice(memory), bytes_of(memory));
        let is_used = (0..self.devices.len()).all(|device| self.uses(device, memory));
        (is_used && !{ reads }.any(is_open)) || !self.knows(memory)
    }

    /// Returns how the memory of a put of `bytes` goes to `device`, or to any; `None` if it goes as it is, or no device
    /// knows it.
    pub(super) fn way(&self, memory: &AnyBuffer, bytes: u64, device: Option<u8>) -> Option<Way> {
        if bytes == 0 {
            // A unit goes to the device, and none of the caller's memory is its.
            return Some(Way { head: 0, through: 0, device });
        }
        let devices = device
            .map_or(0..self.devices.len(), |device| usize::from(device)..usize::from(device) + 1);
        let is_short = bytes_of(memory) < bytes;
        if is_short
            || devices.clone().any(|device| self.uses(device, memory))
            || !self.knows(memory)
        {
            return None;
        }
        let reaching = devices.clone().find(|device| self.reaches(*device, memory));
        let head = match (memory, reaching) {
            (AnyBuffer::One(_), Some(_)) => bytes as usize / UNIT * UNIT,
            _ => 0,
        };
        let device = if head > 0 { reaching.map(|device| device as u8) } else { device };
        Some(Way { head, through: bytes as usize - head, device })
    }
}

/// How lent memory goes to a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Bytes that go as they are.
    head: usize,
    /// Bytes behind them that pass through a pool.
    pub(super) through: usize,
    /// The device that the pool's memory is for, or any.
    pub(super) device: Option<u8>,
}

impl Way {
    /// Returns the way of `bytes` that are copied though a device can use them as they are.
    pub(super) fn copied(bytes: u64, device: Option<u8>) -> Way {
        Way { head: 0, through: bytes as usize, device }
    }

    /// Returns what goes to the device: a part of the memory, and a copy of the rest in `run`, if there is a rest.
    pub(super) fn carry(
        self,
        memory: AnyBuffer,
        run: Option<PoolBuffer>,
        counts: &Counts,
    ) -> (AnyBuffer, Origin) {
        let has = run.as_ref().map_or(0, |run| run.len());
        assert_eq!(has, self.through, "there is room for what is copied");
        let (along, rest) = split(memory, self.head);
        counts.count_in_place(self.head);
        let run = run.map(|mut run| {
            gather(&rest, &mut run);
            counts.count_copy(self.through);
            run.into_cleared_parts()
        });
        let (run, pool) = run.unzip();
        (any(along.into_iter().chain(run).collect()), Origin { pool, rest, ticket: None })
    }
}

/// What a request's memory is when it comes back.
#[derive(Default)]
pub(super) struct Origin {
    /// The pool of its last run, unless all is the caller's.
    pool: Option<Arc<Pool>>,
    /// The caller's memory behind what went along.
    rest: Vec<Buffer>,
    /// Of a put that was open to choice.
    ticket: Option<Ticket>,
}

impl Origin {
    /// Returns the origin of memory that is all of a pool.
    pub(super) fn pooled(pool: Arc<Pool>) -> Origin {
        Origin { pool: Some(pool), rest: Vec::new(), ticket: None }
    }

    /// Adds the ticket of a put that was open to choice.
    pub(super) fn with(self, ticket: Option<Ticket>) -> Origin {
        Origin { ticket, ..self }
    }

    /// Notes that a device has all of its bytes.
    pub(super) fn done(&mut self) {
        self.ticket.iter_mut().for_each(Ticket::done);
    }

    /// Returns the pool if all of the memory is its.
    pub(super) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref().filter(|_| self.rest.is_empty())
    }

    /// Returns the caller's memory as it was given; the pool gets back its run.
    pub(super) fn restore(self, memory: AnyBuffer) -> AnyBuffer {
        if self.pool.is_none() && self.rest.is_empty() {
            return memory;
        }
        let mut parts = list(memory);
        if let Some(pool) = self.pool {
            parts.pop().into_iter().for_each(|run| drop(PoolBuffer::of(run, 0, &pool)));
        }
        any(joined(parts, self.rest))
    }
}

/// A read into the caller's memory that may pass through the store's.
pub(super) struct Bounced {
    reply: Reply<Read>,
    reach: Arc<Reach>,
    /// The caller's memory, or what of it does not go along.
    into: Vec<Buffer>,
    /// Bytes of the caller's memory that went along, and the pool of the run behind them, if there is one.
    taken: Option<(usize, Option<Arc<Pool>>)>,
    /// Once it has begun, if it was open to choice.
    ticket: Option<Ticket>,
    /// Memory that it waited for; the object may have changed since.
    granted: Option<PoolBuffer>,
    /// All of it passes through the store's memory, and is verified there.
    is_checked: bool,
}

impl Bounced {
    pub(super) fn new(reply: Reply<Read>, reach: &Arc<Reach>, into: AnyBuffer) -> Bounced {
        let (reach, into) = (Arc::clone(reach), list(into));
        Bounced { reply, reach, into, taken: None, ticket: None, granted: None, is_checked: false }
    }

    /// Has all of it pass through the store's memory, and be verified there.
    pub(super) fn checked(self) -> Bounced {
        Bounced { is_checked: true, ..self }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    /// Calls `waker` if its caller gives it up.
    pub(super) fn when_unwanted(&self, waker: Waker) {
        self.reply.when_unwanted(waker);
    }

    /// Gives it the memory that it waited for.
    pub(super) fn grant(&mut self, buffer: PoolBuffer) {
        self.granted = Some(buffer);
    }

    /// Gives `item` memory for the part of an object that was found. Returns how many bytes it lacks if there are none
    /// now.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never will be enough memory.
    pub(super) fn take(
        &mut self,
        found: Found,
        item: &mut GetItem,
        pools: &Pools,
    ) -> Result<Option<usize>> {
        let has: usize = self.into.iter().map(|buffer| buffer.len()).sum();
        let needs = needs(found, &item.part);
        self.is_checked &= pools.check_read(needs as u64, false).is_ok();
        let reaches =
            |buffer| !self.is_checked && self.reach.reaches(usize::from(found.device), buffer);
        let is_direct =
            self.into.iter().all(|buffer| reaches(buffer) && buffer.len().is_multiple_of(UNIT));
        let is_empty = found.bytes == 0;
        if !is_empty && (is_direct || needs == 0 || needs > has) {
            if is_direct && needs <= has {
                self.ticket = self.reach.begin_read(found.device, &self.into, needs);
            }
            let is_copied = self.ticket.as_ref().is_some_and(|one| one.manner == Manner::Copied);
            let pool = pools.of_device(found.device);
            match is_copied.then(|| pool.take(needs)).flatten() {
                Some(taken) => {
                    let (run, pool) = taken.into_parts();
                    self.taken = Some((0, Some(pool)));
                    item.into = AnyBuffer::One(run);
                }
                // The shard says what is wrong, if anything is.
                None => {
                    self.taken = Some((has, None));
                    item.into = any(std::mem::take(&mut self.into));
                }
            }
            return Ok(None);
        }
        let head =
            if self.into.len() == 1 && reaches(&self.into[0]) { needs / UNIT * UNIT } else { 0 };
        let through = needs - head;
        let mut run = None;
        if through > 0 || is_empty {
            pools.check_read(through as u64, matches!(item.part, Part::Bytes(_)))?;
            let pool = pools.of_device(found.device);
            let granted = self.granted.take().filter(|granted| granted.is_for(through, pool));
            let Some(taken) = granted.or_else(|| pool.take(through)) else {
                return Ok(Some(through));
            };
            run = Some(taken.into_parts());
        }
        let (along, rest) = split(any(std::mem::take(&mut self.into)), head);
        self.into = rest;
        let (run, pool) = run.unzip();
        self.taken = Some((head, pool));
        item.into = any(along.into_iter().chain(run).collect());
        Ok(None)
    }

    /// Ends without having begun, and returns the caller's memory.
    pub(super) fn refuse(self, unfinished: Unfinished) {
        self.reply.send(Err(Unfinished { memory: any(self.into), ..unfinished }));
    }

    /// Delivers `bytes` that were read. Its caller verifies them by `check`, and copies what passed through the pool, unless
    /// they are verified before that.
    pub(super) fn answer_unverified(
        self,
        bytes: u64,
        (memory, version): (AnyBuffer, Option<Version>),
        check: Check,
    ) {
        if self.is_checked {
            let AnyBuffer::One(run) = &memory else { unreachable!("it was read into one run") };
            let outcome = match check.verify_bytes(&run[..bytes as usize]) {
                true => Outcome::Hit { bytes },
                false => Outcome::Miss,
            };
            return self.answer(Ok(outcome), memory, version);
        }
        let Bounced { reply, reach, into, taken, mut ticket, .. } = self;
        ticket.iter_mut().for_each(Ticket::done);
        let mut parts = list(memory);
        let (head, pool) = taken.expect("what was read had memory");
        let run = pool.map(|pool| {
            let run = parts.pop().expect("the run comes back behind the caller's memory");
            PoolBuffer::of(run, bytes as usize - head, &pool)
        });
        let (in_place, counts) = (head.min(bytes as usize), Arc::clone(&reach.counts));
        let passage = Passage { run, into, in_place, ticket, counts };
        let read = Read { bytes: Some(bytes), memory: any(parts), version };
        reply.send_unverified(read, check.through(passage), verified);
    }

    /// Returns the caller's memory, with `bytes` that were read if any.
    fn restored(mut self, bytes: Option<u64>, memory: AnyBuffer) -> (Reply<Read>, AnyBuffer) {
        let mut parts = list(memory);
        self.ticket.iter_mut().filter(|_| bytes.is_some()).for_each(Ticket::done);
        let (head, pool) = self.taken.take().unwrap_or_default();
        if let Some(pool) = pool {
            let run = parts.pop().expect("the run comes back behind the caller's memory");
            if let Some(bytes) = bytes {
                let through = bytes as usize - head;
                copy(&run[..through], &mut self.into);
                self.reach.counts.count_copy(through);
            }
            drop(PoolBuffer::of(run, 0, &pool));
        }
        let in_place = bytes.map_or(0, |bytes| head.min(bytes as usize));
        self.reach.counts.count_in_place(in_place);
        (self.reply, any(joined(parts, self.into)))
    }

    /// Delivers the answer, and copies what passed through the pool.
    pub(super) fn answer(
        self,
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) {
        let bytes = match result {
            Ok(Outcome::Hit { bytes }) => Some(bytes),
            _ => None,
        };
        let (reply, memory) = self.restored(bytes, memory);
        reply.send(match result {
            Ok(Outcome::Hit { bytes }) => Ok(Read { bytes: Some(bytes), memory, version }),
            Ok(_) => Ok(Read { bytes: None, memory, version: None }),
            Err(failure) => Err(Unfinished { memory, ..Unfinished::new(failure) }),
        });
    }
}

/// Bytes that were read, on their way to the caller's memory.
pub(super) struct Passage {
    /// The bytes that passed through the pool, behind those that went to the caller's memory in place.
    run: Option<PoolBuffer>,
    /// The caller's memory for it.
    into: Vec<Buffer>,
    /// Bytes that went in place.
    in_place: usize,
    /// If it was open to choice.
    ticket: Option<Ticket>,
    counts: Arc<Counts>,
}

impl Passage {
    /// Verifies what was read, of which `along` is what went in place, and copies the rest. Returns the caller's memory.
    pub(super) fn verify(self, unverified: Unverified, along: AnyBuffer) -> (AnyBuffer, Verdict) {
        let Passage { run, mut into, in_place, ticket, counts } = self;
        let through = run.as_ref().map_or(0, |run| run.len());
        let work = || match run {
            None => unverified.verify(along),
            Some(run) if along.segment_count() == 0 => {
                let pass = |range: Range<usize>| copy_at(range.start, &run[range], &mut into);
                let verdict = unverified.verify_bytes(&run, pass);
                (AnyBuffer::None, verdict)
            }
            Some(run) => {
                let (run, pool) = run.into_parts();
                let (memory, verdict) = unverified.verify(any(joined(list(along), vec![run])));
                let mut parts = list(memory);
                let run = parts.pop().expect("the run comes back behind the caller's memory");
                let run = PoolBuffer::of(run, through, &pool);
                if verdict.is_intact() {
                    copy_at(0, &run, &mut into);
                }
                (any(parts), verdict)
            }
        };
        let (along, verdict) = match &ticket {
            Some(ticket) => ticket.spend(work),
            None => work(),
        };
        counts.count_copy(through);
        counts.count_in_place(in_place);
        (any(joined(list(along), into)), verdict)
    }

    /// Returns whether some of it passed through the pool. Only bytes that are verified leave it: it may hold others' bytes, if
    /// a device lies.
    pub(super) fn is_copied(&self) -> bool {
        self.run.is_some()
    }

    /// Ends what went in place unverified, of which `along` is all. Returns the caller's memory, with what was not needed.
    pub(super) fn end_in_place(self, along: AnyBuffer) -> AnyBuffer {
        debug_assert!(self.run.is_none(), "nothing is to be copied");
        self.counts.count_in_place(self.in_place);
        any(joined(list(along), self.into))
    }
}

/// Returns the bytes that a part of an object takes.
fn needs(found: Found, part: &Part) -> usize {
    let all = found.bytes as usize;
    match part {
        Part::All => all,
        Part::Layer(_) => found.piece_bytes as usize,
        Part::Bytes(range) => (range.end.min(found.bytes).saturating_sub(range.start)) as usize,
    }
}

/// Fills `into` with the first bytes of the caller's memory.
fn gather(from: &[Buffer], into: &mut [u8]) {
    let mut filled = 0;
    for part in from {
        let len = part.len().min(into.len() - filled);
        part.bytes().read(0, &mut into[filled..filled + len]);
        filled += len;
    }
    assert_eq!(filled, into.len(), "the caller's memory has all of the object");
}

/// Copies `bytes` to the beginning of the caller's memory.
fn copy(bytes: &[u8], into: &mut [Buffer]) {
    copy_at(0, bytes, into);
}

/// Copies `bytes` to the caller's memory from byte `at` on.
fn copy_at(mut at: usize, mut bytes: &[u8], into: &mut [Buffer]) {
    for buffer in into {
        let room = buffer.len().saturating_sub(at);
        let (now, later) = bytes.split_at(bytes.len().min(room));
        if !now.is_empty() {
            buffer.bytes_mut().write(at, now);
        }
        at = at.saturating_sub(buffer.len());
        bytes = later;
    }
    assert!(bytes.is_empty(), "what is read fits in the caller's memory");
}

/// Copies `bytes` to the beginning of the caller's memory, which has room for them.
pub(super) fn fill(bytes: &[u8], into: &mut AnyBuffer) {
    match into {
        AnyBuffer::None => copy(bytes, &mut []),
        AnyBuffer::One(buffer) => copy(bytes, std::slice::from_mut(buffer)),
        AnyBuffer::Many(buffers) => copy(bytes, buffers),
    }
}

pub(super) fn bytes_of(memory: &AnyBuffer) -> u64 {
    (0..memory.segment_count()).map(|index| memory.segment(index).len).sum()
}

fn slice(memory: &AnyBuffer) -> &[Buffer] {
    match memory {
        AnyBuffer::None => &[],
        AnyBuffer::One(buffer) => std::slice::from_ref(buffer),
        AnyBuffer::Many(buffers) => buffers,
    }
}

fn is_whole(memory: &AnyBuffer) -> bool {
    (0..memory.segment_count()).all(|index| memory.segment(index).len.is_multiple_of(UNIT_BYTES))
}

/// Splits memory behind `head` bytes of its first buffer, or before all of it.
fn split(memory: AnyBuffer, head: usize) -> (Option<Buffer>, Vec<Buffer>) {
    let mut parts = list(memory);
    if head == 0 {
        return (None, parts);
    }
    let rest = parts[0].split_off(head);
    let along = std::mem::replace(&mut parts[0], rest);
    (Some(along), parts)
}

/// Appends `rest` to `parts`, with what was split in one piece again.
fn joined(mut parts: Vec<Buffer>, rest: Vec<Buffer>) -> Vec<Buffer> {
    for next in rest {
        let left = match parts.last_mut() {
            Some(last) => last.join(next),
            None => Err(next),
        };
        parts.extend(left.err());
    }
    parts
}

fn list(memory: AnyBuffer) -> Vec<Buffer> {
    match memory {
        AnyBuffer::None => Vec::new(),
        AnyBuffer::One(buffer) => vec![buffer],
        AnyBuffer::Many(buffers) => buffers,
    }
}

fn any(mut parts: Vec<Buffer>) -> AnyBuffer {
    match parts.len() {
        0 => AnyBuffer::None,
        1 => AnyBuffer::One(parts.remove(0)),
        _ => AnyBuffer::Many(parts),
    }
}
