//! Records for the journal, and when they are durable.
//!
//! Records are in the order in which objects come and go. A *sequence* is the number of the journal block that holds a
//! record. It is *ready* when the block and those before it are written, and the data of all their records. It is
//! durable once a flush that began when it was ready has ended on every device that had been written to.
//!
//! Room: every put first reserves room for its record, in bytes. Records fill blocks in turn, so two adjacent blocks
//! always hold more than one block's worth of bytes ([`blocks_for`]). A block is sealed before it is full only if
//! that leaves room for all reservations. With no reservations it can always be sealed, so a checkpoint, which needs
//! a block of its own and makes room, can always begin eventually.
//!
//! Time: in `restart`, the block of a record is sent at most `seal_interval` after the acknowledgement, whatever else
//! is in flight. An acknowledgement is given before the record is durable only if its block may be sealed then. That
//! stays so: further reservations leave room for it, and only sealing that very block takes room away.
//!
//! Groups, in `durable`: puts that wait together share a block and a flush, and no clock decides. A group is complete
//! when it has as many puts as were in progress when some were last answered. Its block is sealed then, while its data
//! are being written. An incomplete group is sealed when the data of its first put are written, but not in a turn that
//! gives answers: their callers may put more at once. Either waits until no write or flush of the journal is in
//! progress. So a put alone waits for no others.
//!
//! A volatile store has no journal, and everything is as durable as it will get.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_driver::Time;

use super::batch::NewObject;
use super::request::Done;
use crate::media::block::{BLOCK_HEADER_BYTES, JOURNAL_BLOCK_BYTES};
use crate::media::journal::{Journal, JournalWrite, Mark};
use crate::media::record::{
    Checksums, LAYOUT_BYTES_MAX, Put, Record, TENANT_NAME_BYTES_MAX, record_bytes,
};
use crate::model::key::KEY_BYTES_MAX;
use crate::model::object::Object;
use crate::model::options::Durability;

/// Undurable blocks that make a flush due, because they are kept in memory.
const UNDURABLE_BLOCKS_MAX: usize = 1024;
/// Objects replaced since the last flush that make a flush due, and their bytes: after a power cut, an opening reads
/// as much, at most twice, besides what was replaced during the last flush.
const REPLACED_MAX: u64 = 4096;
const REPLACED_BYTES_MAX: u64 = 64 << 20;
/// In a shorter ring, one `UNDURABLE_PARTS`th of it makes a flush due.
const UNDURABLE_PARTS: u64 = 4;
/// Work that begins together has records of at most one `SHARE_PARTS`th of the journal.
const SHARE_PARTS: u64 = 16;
/// Blocks kept free beside reservations: two may be sealed early without making any work wait.
const SPARE_BLOCKS: u64 = 2;
const PAYLOAD_BYTES: u64 = (JOURNAL_BLOCK_BYTES - BLOCK_HEADER_BYTES) as u64;
/// Maximum bytes of any record other than an object's.
pub(super) const SMALL_RECORD_BYTES: u64 = record_bytes(KEY_BYTES_MAX, 0) as u64;
const _: () =
    assert!(record_bytes(KEY_BYTES_MAX, 0) > 16 + TENANT_NAME_BYTES_MAX + LAYOUT_BYTES_MAX);

/// Returns the blocks needed for `bytes` of records after the open block, however full it is; counts the open block.
const fn blocks_for(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 2 * bytes / PAYLOAD_BYTES + 3 }
}

/// An event that is due when a sequence is durable.
#[derive(Debug)]
pub(super) struct Due<R> {
    pub(super) sequence: u64,
    pub(super) event: Event<R>,
}

/// What happens then.
#[derive(Debug)]
pub(super) enum Event<R> {
    /// An object becomes visible and its put is answered, unless it has already been answered with a failure.
    Put(Box<NewObject>, Option<Done<R>>),
    /// Give an answer.
    Answer(Done<R>),
}

#[derive(Clone, Copy, Debug)]
struct Flush {
    number: u64,
    /// Blocks before this one were ready when the flush began.
    end: u64,
    /// Devices that have not completed it.
    left: u32,
}

/// The journal, and the events that wait for it.
#[derive(Debug)]
pub(super) struct Log<R> {
    journal: Option<Journal>,
    durability: Durability,
    /// Bytes of future records that have room.
    reserved_bytes: u64,
    writes: VecDeque<JournalWrite>,
    flush: Option<Flush>,
    flushes: u64,
    flushes_ended: u64,
    /// In the order of their sequences.
    due: VecDeque<Due<R>>,
    /// How many records of each block have data that are being written.
    awaiting: BTreeMap<u64, u32>,
    /// How many of them were appended since a block was last sealed before it was full, and how many puts make a group.
    unsealed_puts: u64,
    group: u64,
    /// When the open block got its first record.
    opened_at: Time,
    /// When the first record of the open block was acknowledged, if one was.
    promised_at: Option<Time>,
    /// Sealed blocks with acknowledged records that were not sent, and when the first was acknowledged.
    unsent: VecDeque<(u64, Time)>,
    /// Objects that were replaced since the last flush began, and their bytes.
    replaced: (u64, u64),
    flushed_at: Time,
    seal_interval: Duration,
    flush_interval: Duration,
}

impl<R> Log<R> {
    pub(super) fn new(
        journal: Option<Journal>,
        durability: Durability,
        (seal_interval, flush_interval): (Duration, Duration),
        now: Time,
    ) -> Log<R> {
        Log {
            journal,
            durability,
            reserved_bytes: 0,
            writes: VecDeque::new(),
            flush: None,
            flushes: 0,
            flushes_ended: 0,
            due: VecDeque::new(),
            awaiting: BTreeMap::new(),
            unsealed_puts: 0,
            group: 1,
            opened_at: now,
            promised_at: None,
            unsent: VecDeque::new(),
            replaced: (0, 0),
            flushed_at: now,
            seal_interval,
            flush_interval,
        }
    }

    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    pub(super) fn has_room(&self, record_bytes: u64) -> bool {
        let needs = blocks_for(self.reserved_bytes + record_bytes) + SPARE_BLOCKS;
        self.journal.as_ref().is_none_or(|journal| journal.free_blocks() >= needs)
    }

    /// Returns whether there is room for one more record other than an object's.
    pub(super) fn has_room_for_small(&self) -> bool {
        self.has_room(SMALL_RECORD_BYTES)
    }

    pub(super) fn reserve(&mut self, record_bytes: u64) {
        self.reserved_bytes += record_bytes;
    }

    /// Releases a reservation, of work that failed or of a record about to be appended.
    pub(super) fn unreserve(&mut self, record_bytes: u64) {
        assert!(self.reserved_bytes >= record_bytes, "what is given back was reserved");
        self.reserved_bytes -= record_bytes;
    }

    /// Returns whether the open block may be sealed before it is full.
    fn may_seal(&self) -> bool {
        let needs = blocks_for(self.reserved_bytes);
        let may = |journal: &Journal| !journal.has_unsealed() || journal.free_blocks() > needs;
        self.journal.as_ref().is_some_and(may)
    }

    /// Returns whether less than half of the journal is free, so that a checkpoint helps.
    pub(super) fn is_short(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.free_blocks() < journal.blocks() / 2)
    }

    /// Returns the most bytes of records to begin together, so that they will eventually have room.
    pub(super) fn share_bytes_max(&self) -> u64 {
        let most = |journal: &Journal| journal.blocks() * PAYLOAD_BYTES / SHARE_PARTS;
        self.journal.as_ref().map_or(u64::MAX, most)
    }

    /// Returns the sequence of the newest record, or an older one if the last block has been sealed.
    pub(super) fn newest(&self) -> u64 {
        let newest =
            |journal: &Journal| journal.mark().sequence - u64::from(!journal.has_unsealed());
        self.journal.as_ref().map_or(0, newest)
    }

    /// Appends a record, which must have room, and returns its sequence.
    pub(super) fn append(&mut self, now: Time, record: &Record<'_>) -> u64 {
        let Some(journal) = &mut self.journal else { return 0 };
        let (was_open, open) = (journal.has_unsealed(), journal.mark().sequence);
        let sequence = journal.append(record).expect("there was room for the record");
        if sequence > open {
            self.note_sealed(open);
        }
        if sequence > open || !was_open {
            self.opened_at = now;
        }
        sequence
    }

    /// Counts an object of `bytes` that replaced another before its data was flushed.
    pub(super) fn note_replaced(&mut self, bytes: u64) {
        self.replaced = (self.replaced.0 + 1, self.replaced.1 + bytes);
    }

    /// Records that a put in block `sequence` has data that are about to be written.
    pub(super) fn await_data(&mut self, sequence: u64) {
        *self.awaiting.entry(sequence).or_insert(0) += 1;
        self.unsealed_puts += 1;
    }

    /// Records that the data of a put in block `sequence` are written, or will never be.
    pub(super) fn data_ended(&mut self, sequence: u64) {
        let left = self.awaiting.get_mut(&sequence).expect("a put that awaits its data");
        *left -= 1;
        if *left == 0 {
            self.awaiting.remove(&sequence);
        }
    }

    /// Returns the end of the blocks that are ready to be flushed.
    pub(super) fn ready_end(&self) -> u64 {
        let written_end = self.journal.as_ref().map_or(0, Journal::written_end);
        self.awaiting.first_key_value().map_or(written_end, |(first, _)| written_end.min(*first))
    }

    /// Notes how many puts were in progress when some were answered: as many may be soon again.
    pub(super) fn note_group(&mut self, puts: u64) {
        self.group = puts;
    }

    /// Records that block `sequence` was sealed.
    fn note_sealed(&mut self, sequence: u64) {
        self.unsent.extend(self.promised_at.take().map(|at| (sequence, at)));
    }

    /// Returns whether the newest records may be acknowledged before they are durable. The block that is open is then
    /// sent within `seal_interval`.
    pub(super) fn may_promise(&mut self, now: Time) -> bool {
        let Some(journal) = &self.journal else { return true };
        if self.is_strict() || !self.may_seal() {
            return false;
        }
        if journal.has_unsealed() {
            self.promised_at.get_or_insert(now);
        }
        true
    }

    /// Records that all writes of blocks so far have reached the device's queue. Returns the longest time that one of
    /// them took since its first record was acknowledged.
    pub(super) fn sent(&mut self, now: Time) -> Option<Duration> {
        let journal = self.journal.as_ref()?;
        let end = journal.mark().sequence - journal.sealed_blocks() as u64;
        let mut longest = None;
        while let Some((_, at)) = self.unsent.pop_front_if(|(sequence, _)| *sequence < end) {
            longest = longest.max(Some(now.since(at)));
        }
        longest
    }

    /// Returns whether objects become visible and puts are answered only when their records are durable.
    pub(super) fn is_strict(&self) -> bool {
        self.durability == Durability::Durable
    }

    pub(super) fn durable_end(&self) -> u64 {
        self.journal.as_ref().map_or(u64::MAX, Journal::durable_end)
    }

    /// Runs `event` when block `sequence` is durable.
    pub(super) fn wait(&mut self, sequence: u64, event: Event<R>) {
        let later = self.due.iter().rev().take_while(|due| due.sequence > sequence).count();
        self.due.insert(self.due.len() - later, Due { sequence, event });
    }

    /// Seals the open block if possible, and returns the sequence that is durable once everything up to now is.
    pub(super) fn barrier(&mut self) -> u64 {
        self.mark();
        self.newest()
    }

    /// Returns the next event whose sequence is durable.
    pub(super) fn next_due(&mut self) -> Option<Due<R>> {
        let end = self.durable_end();
        self.due.pop_front_if(|due| due.sequence < end)
    }

    /// Returns whether events wait for blocks that are ready.
    pub(super) fn is_awaited(&self) -> bool {
        self.due.front().is_some_and(|due| due.sequence < self.ready_end())
    }

    /// Returns whether every put recorded before block `sequence` is visible.
    pub(super) fn has_settled(&self, sequence: u64) -> bool {
        let awaiting = self.awaiting.first_key_value().is_none_or(|(first, _)| *first >= sequence);
        awaiting && self.due.front().is_none_or(|due| due.sequence >= sequence)
    }

    /// Returns whether no write or flush is in progress.
    fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.flush.is_none()
    }

    /// Returns whether every sealed block is written.
    pub(super) fn is_written(&self) -> bool {
        self.writes.is_empty() && !self.has_sealed()
    }

    /// Takes the answers whose events will not become durable for now. Their puts still become visible if that
    /// happens later.
    pub(super) fn take_answers(
        &mut self,
        is_in_vain: impl Fn(&Event<R>) -> bool,
        mut each: impl FnMut(Done<R>),
    ) {
        for Due { sequence, event } in std::mem::take(&mut self.due) {
            let event = match event {
                event if !is_in_vain(&event) => event,
                Event::Put(new, answer) => {
                    answer.into_iter().for_each(&mut each);
                    Event::Put(new, None)
                }
                Event::Answer(answer) => {
                    each(answer);
                    continue;
                }
            };
            self.due.push_back(Due { sequence, event });
        }
    }

    /// Seals the open block if it is old enough. Seals it earlier if a group of puts is complete, events wait for it,
    /// or room does (`is_pressed`), but only once the previous one is on its way to be durable, so that many share a
    /// block.
    pub(super) fn seal(&mut self, now: Time, is_pressed: bool, has_answered: bool) {
        let is_complete = self.unsealed_puts >= self.group;
        let is_wanted = is_pressed || is_complete || (!self.due.is_empty() && !has_answered);
        let is_old = now.since(self.opened_at) >= self.seal_interval;
        if is_old || (is_wanted && self.is_quiet()) {
            self.mark();
        }
    }

    /// Returns the unit at which the next write begins; 0 without a journal, which writes nothing.
    pub(super) fn next_unit(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::next_unit)
    }

    /// Copies sealed blocks into `memory` to be written.
    pub(super) fn take(&mut self, memory: &mut [u8]) -> Option<JournalWrite> {
        let write = self.journal.as_mut()?.take(memory)?;
        self.writes.push_back(write.clone());
        Some(write)
    }

    pub(super) fn has_sealed(&self) -> bool {
        self.sealed_bytes() > 0
    }

    /// Returns the bytes of the sealed blocks that wait to be written.
    pub(super) fn sealed_bytes(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.sealed_blocks() * JOURNAL_BLOCK_BYTES)
    }

    /// Records that the write ending before block `end` is done.
    pub(super) fn written(&mut self, end: u64) {
        let at = self.writes.iter().position(|write| write.sequences.end == end);
        let write =
            self.writes.remove(at.expect("a write that is under way")).expect("it is there");
        self.journal.as_mut().expect("there is a journal").written(&write);
    }

    /// Returns whether a flush may begin: there is a journal, and no flush is in progress.
    pub(super) fn can_flush(&self) -> bool {
        self.flush.is_none() && self.journal.is_some()
    }

    /// Returns whether ready blocks are not durable yet.
    pub(super) fn has_written(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.durable_end() < self.ready_end())
    }

    /// Returns whether a flush is due: by the clock, or because much is kept in memory until then.
    pub(super) fn is_flush_due(&self, now: Time) -> bool {
        let is_much = |journal: &Journal| {
            let most = UNDURABLE_BLOCKS_MAX.min((journal.blocks() / UNDURABLE_PARTS) as usize);
            journal.undurable_blocks() >= most
        };
        now.since(self.flushed_at) >= self.flush_interval
            || self.replaced.0 >= REPLACED_MAX
            || self.replaced.1 >= REPLACED_BYTES_MAX
            || self.journal.as_ref().is_some_and(is_much)
    }

    /// Returns when the clock requires the next step.
    pub(super) fn next_due_at(&self) -> Time {
        let Some(journal) = &self.journal else { return Time::NEVER };
        // An event may come to wait for a block that is durable already: that of a delete that waited for room.
        if self.due.front().is_some_and(|due| due.sequence < journal.durable_end()) {
            return Time::ZERO;
        }
        let is_waiting = journal.has_unsealed() && self.may_seal();
        if is_waiting && !self.due.is_empty() && self.is_quiet() {
            return Time::ZERO;
        }
        let seal = if is_waiting { self.opened_at + self.seal_interval } else { Time::NEVER };
        let flush = if self.has_written() && self.flush.is_none() {
            self.flushed_at + self.flush_interval
        } else {
            Time::NEVER
        };
        seal.min(flush)
    }

    pub(super) fn begin_flush(&mut self, now: Time, devices: u32) -> u64 {
        assert!(self.can_flush(), "one flush at a time");
        let end = self.ready_end();
        self.flushes += 1;
        self.flushed_at = now;
        self.replaced = (0, 0);
        self.flush = Some(Flush { number: self.flushes, end, left: devices });
        if devices == 0 {
            self.end_flush();
        }
        self.flushes
    }

    /// Records a device's flush. Ignores completions of abandoned flushes.
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

    /// Abandons a flush: what it covered is not durable.
    pub(super) fn abandon_flush(&mut self, number: u64) {
        self.flush.take_if(|flush| flush.number == number);
    }

    /// Writes everything undurable again, because the journal's device may have forgotten it. Drops the flush in
    /// progress, which no longer covers it.
    pub(super) fn write_again(&mut self) {
        self.flush = None;
        self.writes.clear();
        if let Some(journal) = &mut self.journal {
            journal.write_again();
        }
    }

    /// Returns the numbers of the last flush that began and of the last that ended.
    pub(super) fn flush_numbers(&self) -> (u64, u64) {
        (self.flushes, self.flushes_ended)
    }

    /// Returns where a checkpoint may begin, after sealing the open block; `None` if that is not possible now.
    pub(super) fn mark(&mut self) -> Option<Mark> {
        if !self.may_seal() {
            return None;
        }
        let journal = self.journal.as_mut()?;
        let open = journal.mark().sequence;
        let mark = journal.seal();
        self.note_sealed(open);
        self.unsealed_puts = 0;
        Some(mark)
    }

    /// Returns the bytes of the records in sealed blocks, since the opening.
    pub(super) fn record_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::record_bytes)
    }

    /// Releases blocks before `tail`, which two checkpoints cover.
    pub(super) fn release(&mut self, tail: u64) {
        self.journal.as_mut().expect("there is a journal").release(tail);
    }

    /// Returns whether nothing is in progress or left to write.
    pub(super) fn is_idle(&self) -> bool {
        let quiet = |journal: &Journal| {
            !journal.has_unsealed() && journal.sealed_blocks() == 0 && self.writes.is_empty()
        };
        self.flush.is_none() && self.due.is_empty() && self.journal.as_ref().is_none_or(quiet)
    }
}

pub(super) fn put_record<'a>(
    key: &'a [u8],
    object: Object,
    slab_base: Option<u64>,
    expires_s: Option<u64>,
    checksums: Checksums<'a>,
) -> Put<'a> {
    Put { key, object, slab_base, expires_s, age: None, is_provisional: false, checksums }
}
