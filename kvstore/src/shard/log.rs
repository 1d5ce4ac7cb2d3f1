//! What the journal is told, and when that is durable.
//!
//! Records are in the order in which objects come and go. A *sequence* is the number of the journal's block that has
//! a record; it is durable once a flush that began after the block was written has ended on every device that had
//! been written to. The data of a record were written before it was appended, so that one flush is for both.
//!
//! Room: whatever is put has room for its record reserved first, in bytes. Records fill blocks in turn, so that of two
//! blocks one behind the other there is more than one in bytes ([`blocks_for`]). A block is only sealed before it is
//! full where that leaves room for all that is reserved: with nothing reserved always, so that a checkpoint, which
//! needs a block of its own and brings room, can always be begun in the end.
//!
//! In a volatile store there is no journal, and everything is as durable as it will get.

use std::collections::VecDeque;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::batch::NewObject;
use super::request::Outcome;
use crate::error::Failure;
use crate::media::block::{BLOCK_HEADER_BYTES, JOURNAL_BLOCK_BYTES};
use crate::media::journal::{Journal, JournalWrite, Mark};
use crate::media::record::{LAYOUT_BYTES_MAX, Record, TENANT_NAME_BYTES_MAX, record_bytes};
use crate::model::key::KEY_BYTES_MAX;
use crate::model::object::Object;
use crate::model::options::Durability;

/// A flush is due when so many blocks were written since the last: they are kept in memory until they are durable.
const UNDURABLE_BLOCKS_MAX: usize = 1024;
/// And where the ring is shorter, when they are one part in so many of it.
const UNDURABLE_PARTS: u64 = 4;
/// The records of what is begun as one are as long as one part in so many of the journal at most.
const SHARE_PARTS: u64 = 16;
/// Blocks that are left beside what is reserved: two may be sealed early without anybody waiting for it.
const SPARE_BLOCKS: u64 = 2;
/// Bytes of records in a block.
const PAYLOAD_BYTES: u64 = (JOURNAL_BLOCK_BYTES - BLOCK_HEADER_BYTES) as u64;
/// Most bytes of any record but that of an object.
const SMALL_RECORD_BYTES: u64 = record_bytes(KEY_BYTES_MAX, 0) as u64;
const _: () =
    assert!(record_bytes(KEY_BYTES_MAX, 0) > 16 + TENANT_NAME_BYTES_MAX + LAYOUT_BYTES_MAX);

/// Blocks that have room for records of so many bytes behind whatever is in the open block, which is counted too.
const fn blocks_for(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 2 * bytes / PAYLOAD_BYTES + 3 }
}

/// Whose turn it is when a sequence is durable.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Done when this block is durable.
    pub(super) sequence: u64,
    pub(super) event: Event,
}

/// What then happens.
#[derive(Debug)]
pub(super) enum Event {
    /// An object appears, and its put is answered, if it was not answered with a failure before.
    Put(Box<NewObject>, Option<Answer>),
    /// An answer is given.
    Answer(Answer),
}

/// An answer that is due later.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) tag: u64,
    pub(super) item: u32,
    pub(super) result: Result<Outcome, Failure>,
    pub(super) memory: AnyBuffer,
}

impl Default for Answer {
    /// Of something that is closed.
    fn default() -> Answer {
        Answer { tag: 0, item: 0, result: Err(Failure::Closed), memory: AnyBuffer::None }
    }
}

/// A flush under way.
#[derive(Clone, Copy, Debug)]
struct Flush {
    number: u64,
    /// Blocks before this one were written when it began.
    end: u64,
    /// Devices that have not answered.
    left: u32,
}

/// The journal and who waits for it.
#[derive(Debug)]
pub(super) struct Log {
    journal: Option<Journal>,
    durability: Durability,
    /// Bytes of records that are to come: there is room for them.
    reserved_bytes: u64,
    writes: VecDeque<JournalWrite>,
    flush: Option<Flush>,
    flushes: u64,
    flushes_ended: u64,
    waiters: VecDeque<Waiter>,
    /// When the open block got its first record.
    opened_at: Time,
    flushed_at: Time,
    seal_interval: Duration,
    flush_interval: Duration,
}

impl Log {
    pub(super) fn new(
        journal: Option<Journal>,
        durability: Durability,
        (seal_interval, flush_interval): (Duration, Duration),
        now: Time,
    ) -> Log {
        Log {
            journal,
            durability,
            reserved_bytes: 0,
            writes: VecDeque::new(),
            flush: None,
            flushes: 0,
            flushes_ended: 0,
            waiters: VecDeque::new(),
            opened_at: now,
            flushed_at: now,
            seal_interval,
            flush_interval,
        }
    }

    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Whether there is room for records of so many bytes more.
    pub(super) fn has_room(&self, record_bytes: u64) -> bool {
        let needs = blocks_for(self.reserved_bytes + record_bytes) + SPARE_BLOCKS;
        self.journal.as_ref().is_none_or(|journal| journal.free_blocks() >= needs)
    }

    /// Whether there is room for one record more that is not an object's.
    pub(super) fn has_room_for_small(&self) -> bool {
        self.has_room(SMALL_RECORD_BYTES)
    }

    /// Keeps room for records of so many bytes.
    pub(super) fn reserve(&mut self, record_bytes: u64) {
        self.reserved_bytes += record_bytes;
    }

    /// Gives the room back of what has come to nothing, or is about to be appended.
    pub(super) fn unreserve(&mut self, record_bytes: u64) {
        assert!(self.reserved_bytes >= record_bytes, "what is given back was reserved");
        self.reserved_bytes -= record_bytes;
    }

    /// Whether the open block may be sealed as it is.
    fn may_seal(&self) -> bool {
        let needs = blocks_for(self.reserved_bytes);
        let may = |journal: &Journal| !journal.has_unsealed() || journal.free_blocks() > needs;
        self.journal.as_ref().is_some_and(may)
    }

    /// Whether less than half of the journal is free, so that a checkpoint helps.
    pub(super) fn is_short(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.free_blocks() < journal.blocks() / 2)
    }

    /// The most bytes of records that are begun as one, so that there is going to be room for them.
    pub(super) fn share_bytes_max(&self) -> u64 {
        let most = |journal: &Journal| journal.blocks() * PAYLOAD_BYTES / SHARE_PARTS;
        self.journal.as_ref().map_or(u64::MAX, most)
    }

    /// The sequence that has the newest record, or an older one.
    pub(super) fn newest(&self) -> u64 {
        let newest =
            |journal: &Journal| journal.mark().sequence - u64::from(!journal.has_unsealed());
        self.journal.as_ref().map_or(0, newest)
    }

    /// Appends a record, for which there is room; the sequence it has.
    pub(super) fn append(&mut self, now: Time, record: &Record<'_>) -> u64 {
        let Some(journal) = &mut self.journal else { return 0 };
        if !journal.has_unsealed() {
            self.opened_at = now;
        }
        journal.append(record).expect("there was room for the record")
    }

    /// Whether an object appears, and a put is answered, only when its record is durable.
    pub(super) fn is_strict(&self) -> bool {
        self.durability == Durability::Durable
    }

    /// Blocks before this one are durable.
    pub(super) fn durable_end(&self) -> u64 {
        self.journal.as_ref().map_or(u64::MAX, Journal::durable_end)
    }

    /// Lets `event` happen when block `sequence` is durable.
    pub(super) fn wait(&mut self, sequence: u64, event: Event) {
        self.waiters.push_back(Waiter { sequence, event });
    }

    /// The sequence that is durable when everything up to now is; what is open is sealed if it may be.
    pub(super) fn barrier(&mut self) -> u64 {
        self.mark();
        self.newest()
    }

    /// The next whose turn has come.
    pub(super) fn next_due(&mut self) -> Option<Waiter> {
        let end = self.durable_end();
        self.waiters.pop_front_if(|waiter| waiter.sequence < end)
    }

    /// Whether somebody waits for blocks that were written.
    pub(super) fn is_awaited(&self) -> bool {
        let end = self.journal.as_ref().map_or(0, Journal::written_end);
        self.waiters.front().is_some_and(|waiter| waiter.sequence < end)
    }

    /// Whether every put that was recorded before block `sequence` has appeared.
    pub(super) fn has_settled(&self, sequence: u64) -> bool {
        self.waiters.front().is_none_or(|waiter| waiter.sequence >= sequence)
    }

    /// Whether no block is on its way to be durable for somebody who waits.
    pub(super) fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.flush.is_none()
    }

    /// Whether every sealed block is written.
    pub(super) fn is_written(&self) -> bool {
        self.writes.is_empty() && !self.has_sealed()
    }

    /// Whether there is a put of this key whose turn has not come.
    pub(super) fn is_pending(&self, key: &[u8]) -> bool {
        self.waiters.iter().any(|waiter| match &waiter.event {
            Event::Put(new, _) => new.key.as_bytes() == key,
            Event::Answer(_) => false,
        })
    }

    /// Takes the answers that wait in vain, since what they are about will not be durable for now. Puts still appear if
    /// it is later.
    pub(super) fn take_answers(
        &mut self,
        is_in_vain: impl Fn(&Event) -> bool,
        mut each: impl FnMut(Answer),
    ) {
        self.waiters.retain_mut(|waiter| match &mut waiter.event {
            event if !is_in_vain(event) => true,
            Event::Put(_, answer) => {
                answer.take().into_iter().for_each(&mut each);
                true
            }
            Event::Answer(answer) => {
                each(std::mem::take(answer));
                false
            }
        });
    }

    /// Seals the open block, if it has waited long enough or somebody waits for it; the mark behind it.
    pub(super) fn seal(&mut self, now: Time, at_once: bool) -> Option<Mark> {
        let is_awaited = !self.waiters.is_empty();
        let is_due = at_once || is_awaited || now.since(self.opened_at) >= self.seal_interval;
        if is_due { self.mark() } else { None }
    }

    /// Sealed blocks to be written, copied into `memory`.
    pub(super) fn take(&mut self, memory: &mut [u8]) -> Option<JournalWrite> {
        let write = self.journal.as_mut()?.take(memory)?;
        self.writes.push_back(write.clone());
        Some(write)
    }

    /// Whether there is something to take.
    pub(super) fn has_sealed(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.sealed_blocks() > 0)
    }

    /// The write that ends before block `end` is done.
    pub(super) fn written(&mut self, end: u64) {
        let at = self.writes.iter().position(|write| write.sequences.end == end);
        let write =
            self.writes.remove(at.expect("a write that is under way")).expect("it is there");
        self.journal.as_mut().expect("there is a journal").written(&write);
    }

    /// Whether a flush may begin that brings something: blocks were written that no flush has covered.
    pub(super) fn can_flush(&self) -> bool {
        self.flush.is_none() && self.journal.is_some()
    }

    /// Whether blocks were written that are not durable.
    pub(super) fn has_written(&self) -> bool {
        let behind = |journal: &Journal| journal.durable_end() < journal.written_end();
        self.journal.as_ref().is_some_and(behind)
    }

    /// Whether a flush is due: by the clock, or because much is kept in memory until there is one.
    pub(super) fn is_flush_due(&self, now: Time) -> bool {
        let is_much = |journal: &Journal| {
            let most = UNDURABLE_BLOCKS_MAX.min((journal.blocks() / UNDURABLE_PARTS) as usize);
            journal.undurable_blocks() >= most
        };
        now.since(self.flushed_at) >= self.flush_interval
            || self.journal.as_ref().is_some_and(is_much)
    }

    /// When the clock has the next thing to do.
    pub(super) fn next_due_at(&self) -> Time {
        let Some(journal) = &self.journal else { return Time::NEVER };
        let seal =
            if journal.has_unsealed() { self.opened_at + self.seal_interval } else { Time::NEVER };
        let flush = if self.has_written() && self.flush.is_none() {
            self.flushed_at + self.flush_interval
        } else {
            Time::NEVER
        };
        seal.min(flush)
    }

    /// Begins a flush of so many devices; its number.
    pub(super) fn begin_flush(&mut self, now: Time, devices: u32) -> u64 {
        assert!(self.can_flush(), "one flush at a time");
        let end = self.journal.as_ref().map_or(0, Journal::written_end);
        self.flushes += 1;
        self.flushed_at = now;
        self.flush = Some(Flush { number: self.flushes, end, left: devices });
        if devices == 0 {
            self.end_flush();
        }
        self.flushes
    }

    /// A device has flushed. Of a flush that was given up nobody wants to know.
    pub(super) fn flushed(&mut self, number: u64) {
        let Some(flush) = self.flush.as_mut().filter(|flush| flush.number == number) else {
            return;
        };
        flush.left -= 1;
        if flush.left == 0 {
            self.end_flush();
        }
    }

    fn end_flush(&mut self) {
        let flush = self.flush.take().expect("a flush is under way");
        self.flushes_ended = flush.number;
        if let Some(journal) = &mut self.journal {
            journal.durable(flush.end);
        }
    }

    /// Gives a flush up: what it was for is not durable.
    pub(super) fn abandon_flush(&mut self, number: u64) {
        self.flush.take_if(|flush| flush.number == number);
    }

    /// The journal's device may have forgotten what was not flushed: all of that is written again, and no flush under
    /// way says anything of it.
    pub(super) fn write_again(&mut self) {
        self.flush = None;
        self.writes.clear();
        if let Some(journal) = &mut self.journal {
            journal.write_again();
        }
    }

    /// The number of the last flush that began, and of the last that ended.
    pub(super) fn flush_numbers(&self) -> (u64, u64) {
        (self.flushes, self.flushes_ended)
    }

    /// Where a checkpoint may begin: the open block is sealed, if it may be now.
    pub(super) fn mark(&mut self) -> Option<Mark> {
        let may = self.may_seal();
        self.journal.as_mut().filter(|_| may).map(Journal::seal)
    }

    /// Blocks before `tail` are covered by two checkpoints.
    pub(super) fn release(&mut self, tail: u64) {
        self.journal.as_mut().expect("there is a journal").release(tail);
    }

    /// Whether nothing is under way or to be written.
    pub(super) fn is_idle(&self) -> bool {
        let quiet = |journal: &Journal| {
            !journal.has_unsealed() && journal.sealed_blocks() == 0 && self.writes.is_empty()
        };
        self.flush.is_none() && self.waiters.is_empty() && self.journal.as_ref().is_none_or(quiet)
    }
}

/// The record of an object.
pub(super) fn put_record<'a>(
    key: &'a [u8],
    object: Object,
    slab_base: Option<u64>,
    expires_s: Option<u64>,
    checksums: crate::media::record::Checksums<'a>,
) -> Record<'a> {
    Record::Put(crate::media::record::Put { key, object, slab_base, expires_s, checksums })
}
