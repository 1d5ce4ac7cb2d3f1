//! Records for the journal, and when they are durable.
//!
//! `writing` sends blocks and flushes to the lanes, `flushes` counts these; what happens once a record is durable is in
//! [`super::effects`].
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

mod flushes;
mod writing;

use self::flushes::Flushes;
use super::stats::Stats;
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
/// In a shorter ring, one `UNDURABLE_PARTS`th of it makes a flush due.
const UNDURABLE_PARTS: u64 = 4;
/// Work that begins together has records of at most one `SHARE_PARTS`th of the journal.
const SHARE_PARTS: u64 = 16;
/// Blocks kept free beside reservations: two may be sealed early without making any work wait.
const SPARE_BLOCKS: u64 = 2;
const PAYLOAD_BYTES: u64 = (JOURNAL_BLOCK_BYTES - BLOCK_HEADER_BYTES) as u64;
/// Maximum bytes of any record other than an object's.
pub(crate) const SMALL_RECORD_BYTES: u64 = record_bytes(KEY_BYTES_MAX, 0) as u64;
const _: () =
    assert!(record_bytes(KEY_BYTES_MAX, 0) > 16 + TENANT_NAME_BYTES_MAX + LAYOUT_BYTES_MAX);

/// Returns the blocks needed for `bytes` of records after the open block, however full it is; counts the open block.
const fn blocks_for(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 2 * bytes / PAYLOAD_BYTES + 3 }
}

/// The journal, and how far it is written and durable.
#[derive(Debug)]
pub(crate) struct Log {
    journal: Option<Journal>,
    durability: Durability,
    /// Bytes of future records that have room.
    reserved_bytes: u64,
    writes: VecDeque<JournalWrite>,
    flushes: Flushes,
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
    seal_interval: Duration,
    /// Whether a checkpoint is to begin as soon as it makes room.
    wants_checkpoint: bool,
    stats: Stats,
}

impl Log {
    pub(crate) fn new(
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
            flushes: Flushes::new(flush_interval, now),
            awaiting: BTreeMap::new(),
            unsealed_puts: 0,
            group: 1,
            opened_at: now,
            promised_at: None,
            unsent: VecDeque::new(),
            seal_interval,
            wants_checkpoint: false,
            stats: Stats::default(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Counts what damage to the journal took.
    pub(crate) fn count_damage(&mut self, lost_blocks: u64, outdated_objects: u64) {
        self.stats.journal_lost_blocks = lost_blocks;
        self.stats.journal_outdated_objects = outdated_objects;
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    pub(crate) fn has_room(&self, record_bytes: u64) -> bool {
        let needs = blocks_for(self.reserved_bytes + record_bytes) + SPARE_BLOCKS;
        self.journal.as_ref().is_none_or(|journal| journal.free_blocks() >= needs)
    }

    /// Returns whether there is room for one more record other than an object's.
    pub(crate) fn has_room_for_small(&self) -> bool {
        self.has_room(SMALL_RECORD_BYTES)
    }

    /// Like [`Log::has_room`]; without room, requests an early checkpoint.
    pub(crate) fn asks_room(&mut self, record_bytes: u64) -> bool {
        let has_room = self.has_room(record_bytes);
        if !has_room {
            // Unless the reserved room is about to be used.
            self.wants_checkpoint |= self.is_short();
        }
        has_room
    }

    /// Like [`Log::has_room_for_small`]; without room, requests an early checkpoint.
    pub(crate) fn asks_small(&mut self) -> bool {
        self.asks_room(SMALL_RECORD_BYTES)
    }

    /// Requests a checkpoint as soon as it makes room.
    pub(crate) fn request_checkpoint(&mut self) {
        self.wants_checkpoint = true;
    }

    /// Returns whether a checkpoint was requested since the last one began.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint
    }

    /// Returns where a checkpoint that is about to begin has its records from; `None` if that is not possible now.
    pub(crate) fn begin_checkpoint(&mut self) -> Option<Mark> {
        let begin = self.mark()?;
        self.wants_checkpoint = false;
        Some(begin)
    }

    pub(crate) fn reserve(&mut self, record_bytes: u64) {
        self.reserved_bytes += record_bytes;
    }

    /// Releases a reservation, of work that failed or of a record about to be appended.
    pub(crate) fn unreserve(&mut self, record_bytes: u64) {
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
    pub(crate) fn is_short(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.free_blocks() < journal.blocks() / 2)
    }

    /// Returns the most bytes of records to begin together, so that they will eventually have room.
    pub(crate) fn share_bytes_max(&self) -> u64 {
        let most = |journal: &Journal| journal.blocks() * PAYLOAD_BYTES / SHARE_PARTS;
        self.journal.as_ref().map_or(u64::MAX, most)
    }

    /// Returns the sequence of the newest record, or an older one if the last block has been sealed.
    pub(crate) fn newest(&self) -> u64 {
        let newest =
            |journal: &Journal| journal.mark().sequence - u64::from(!journal.has_unsealed());
        self.journal.as_ref().map_or(0, newest)
    }

    /// Appends a record, which must have room, and returns its sequence.
    pub(crate) fn append(&mut self, now: Time, record: &Record<'_>) -> u64 {
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
    pub(crate) fn note_replaced(&mut self, bytes: u64) {
        self.flushes.note_replaced(bytes);
    }

    /// Records that a put in block `sequence` has data that are about to be written.
    pub(crate) fn await_data(&mut self, sequence: u64) {
        *self.awaiting.entry(sequence).or_insert(0) += 1;
        self.unsealed_puts += 1;
    }

    /// Records that the data of a put in block `sequence` are written, or will never be.
    pub(crate) fn data_ended(&mut self, sequence: u64) {
        let left = self.awaiting.get_mut(&sequence).expect("a put that awaits its data");
        *left -= 1;
        if *left == 0 {
            self.awaiting.remove(&sequence);
        }
    }

    /// Returns the end of the blocks that are ready to be flushed.
    pub(crate) fn ready_end(&self) -> u64 {
        let written_end = self.journal.as_ref().map_or(0, Journal::written_end);
        self.awaiting.first_key_value().map_or(written_end, |(first, _)| written_end.min(*first))
    }

    /// Notes how many puts were in progress when some were answered: as many may be soon again.
    pub(crate) fn note_group(&mut self, puts: u64) {
        self.group = puts;
    }

    /// Records that block `sequence` was sealed.
    fn note_sealed(&mut self, sequence: u64) {
        self.unsent.extend(self.promised_at.take().map(|at| (sequence, at)));
    }

    /// Returns whether the newest records may be acknowledged before they are durable. The block that is open is then
    /// sent within `seal_interval`.
    pub(crate) fn may_promise(&mut self, now: Time) -> bool {
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
    pub(crate) fn sent(&mut self, now: Time) -> Option<Duration> {
        let journal = self.journal.as_ref()?;
        let end = journal.mark().sequence - journal.sealed_blocks() as u64;
        let mut longest = None;
        while let Some((_, at)) = self.unsent.pop_front_if(|(sequence, _)| *sequence < end) {
            longest = longest.max(Some(now.since(at)));
        }
        longest
    }

    /// Returns whether objects become visible and puts are answered only when their records are durable.
    pub(crate) fn is_strict(&self) -> bool {
        self.durability == Durability::Durable
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.journal.as_ref().map_or(u64::MAX, Journal::durable_end)
    }

    /// Seals the open block if possible, and returns the sequence that is durable once everything up to now is.
    pub(crate) fn barrier(&mut self) -> u64 {
        self.mark();
        self.newest()
    }

    /// Returns whether the data of every put recorded before block `sequence` are written.
    pub(crate) fn has_data_before(&self, sequence: u64) -> bool {
        self.awaiting.first_key_value().is_none_or(|(first, _)| *first >= sequence)
    }

    /// Returns whether no write or flush is in progress.
    fn is_quiet(&self) -> bool {
        self.writes.is_empty() && !self.flushes.is_under_way()
    }

    /// Returns whether every sealed block is written.
    pub(crate) fn is_written(&self) -> bool {
        self.writes.is_empty() && !self.has_sealed()
    }

    /// Seals the open block if it is old enough. Seals it earlier if a group of puts is complete, answers wait for it
    /// (`is_awaited`), or room does (`is_pressed`), but only once the previous one is on its way to be durable, so that
    /// many share a block.
    pub(crate) fn seal(&mut self, now: Time, is_pressed: bool, is_awaited: bool) {
        let is_complete = self.unsealed_puts >= self.group;
        let is_wanted = is_pressed || is_complete || is_awaited;
        let is_old = now.since(self.opened_at) >= self.seal_interval;
        if is_old || (is_wanted && self.is_quiet()) {
            self.mark();
        }
    }

    /// Copies sealed blocks into `memory` to be written.
    pub(crate) fn take(&mut self, memory: &mut [u8]) -> Option<JournalWrite> {
        let write = self.journal.as_mut()?.take(memory)?;
        self.writes.push_back(write.clone());
        Some(write)
    }

    pub(crate) fn has_sealed(&self) -> bool {
        self.sealed_bytes() > 0
    }

    /// Returns the bytes of the sealed blocks that wait to be written.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.sealed_blocks() * JOURNAL_BLOCK_BYTES)
    }

    /// Records that the write ending before block `end` is done.
    pub(crate) fn written(&mut self, end: u64) {
        let at = self.writes.iter().position(|write| write.sequences.end == end);
        let write =
            self.writes.remove(at.expect("a write that is under way")).expect("it is there");
        self.journal.as_mut().expect("there is a journal").written(&write);
    }

    /// Returns whether a flush may begin: there is a journal, and no flush is in progress.
    pub(crate) fn can_flush(&self) -> bool {
        !self.flushes.is_under_way() && self.journal.is_some()
    }

    /// Returns whether ready blocks are not durable yet.
    pub(crate) fn has_written(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.durable_end() < self.ready_end())
    }

    /// Returns whether a flush is due: by the clock, or because much is kept in memory until then.
    pub(crate) fn is_flush_due(&self, now: Time) -> bool {
        let is_much = |journal: &Journal| {
            let most = UNDURABLE_BLOCKS_MAX.min((journal.blocks() / UNDURABLE_PARTS) as usize);
            journal.undurable_blocks() >= most
        };
        self.flushes.is_due(now) || self.journal.as_ref().is_some_and(is_much)
    }

    /// Returns when the clock requires the next step. Of the events that wait, the first is due once block
    /// `first_event` is durable.
    pub(crate) fn next_due_at(&self, first_event: Option<u64>) -> Time {
        let Some(journal) = &self.journal else { return Time::NEVER };
        // An event may come to wait for a block that is durable already: that of a delete that waited for room.
        if first_event.is_some_and(|sequence| sequence < journal.durable_end()) {
            return Time::ZERO;
        }
        let is_waiting = journal.has_unsealed() && self.may_seal();
        if is_waiting && first_event.is_some() && self.is_quiet() {
            return Time::ZERO;
        }
        let seal = if is_waiting { self.opened_at + self.seal_interval } else { Time::NEVER };
        let flushes = self.has_written() && !self.flushes.is_under_way();
        seal.min(if flushes { self.flushes.next_at() } else { Time::NEVER })
    }

    /// Begins a flush of so many devices, and returns its number.
    pub(crate) fn begin_flush(&mut self, now: Time, devices: u32) -> u64 {
        assert!(self.can_flush(), "one flush at a time");
        let end = self.ready_end();
        let number = self.flushes.begin(now, end, devices);
        self.end_flush();
        number
    }

    /// Records a device's flush. Ignores completions of abandoned flushes.
    pub(crate) fn flushed(&mut self, number: u64) {
        self.flushes.flushed(number);
        self.end_flush();
    }

    fn end_flush(&mut self) {
        if let Some(end) = self.flushes.take_ended()
            && let Some(journal) = &mut self.journal
        {
            journal.durable(end);
        }
    }

    /// Abandons a flush: what it covered is not durable.
    pub(crate) fn abandon_flush(&mut self, number: u64) {
        self.flushes.abandon(|under_way| under_way == number);
    }

    /// Writes everything undurable again, because the journal's device may have forgotten it. Drops the flush in
    /// progress, which no longer covers it.
    pub(crate) fn write_again(&mut self) {
        self.flushes.abandon(|_| true);
        self.writes.clear();
        if let Some(journal) = &mut self.journal {
            journal.write_again();
        }
    }

    /// Returns the number of the last flush that began.
    pub(crate) fn flush_begun(&self) -> u64 {
        self.flushes.begun()
    }

    /// Returns the number of the last flush that ended.
    pub(crate) fn flush_ended(&self) -> u64 {
        self.flushes.ended()
    }

    /// Returns where a checkpoint may begin, after sealing the open block; `None` if that is not possible now.
    pub(crate) fn mark(&mut self) -> Option<Mark> {
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
    pub(crate) fn record_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::record_bytes)
    }

    /// Releases blocks before `tail`, which two checkpoints cover.
    pub(crate) fn release(&mut self, tail: u64) {
        self.journal.as_mut().expect("there is a journal").release(tail);
    }

    /// Returns whether nothing is in progress or left to write.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet = |journal: &Journal| {
            !journal.has_unsealed() && journal.sealed_blocks() == 0 && self.writes.is_empty()
        };
        !self.flushes.is_under_way() && self.journal.as_ref().is_none_or(quiet)
    }
}

/// Returns the record of an object, without an age and not provisional.
pub(crate) fn put_record<'a>(
    key: &'a [u8],
    object: Object,
    slab_base: Option<u64>,
    expires_s: Option<u64>,
    checksums: Checksums<'a>,
) -> Put<'a> {
    Put { key, object, slab_base, expires_s, age: None, is_provisional: false, checksums }
}
