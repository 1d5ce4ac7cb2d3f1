//! Checkpoints taken under load.
//!
//! The index is walked by id while it changes. Changes after the walk began are in the journal behind the
//! checkpoint's begin, and recovery replays them over the checkpoint. The steps follow one another, with requests in
//! between:
//!
//! 1. *Settling*: mark the begin; wait until puts recorded before it are visible.
//! 2. *Taking*: write tenants, layouts and objects, a block at a time. They are scheduled with the data of puts, of
//!    which they are a small part: as background work they would starve under exactly the load that fills the
//!    journal. When the journal is nearly full they go before all data, because everything waits for them.
//! 3. *Ending*: wait for a flush that began after the last block was written, and that covers the journal up to now.
//! 4. *Heading*: write and flush the header. Only now does the new checkpoint exist. The journal's tail moves to the
//!    begin of the previous checkpoint, so that the older one still serves if the newer is damaged.
//!
//! A checkpoint is due when the journal has grown, and when objects were used that only a checkpoint tells: the ages of
//! objects are in no journal.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::Buffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::log::put_record;
use crate::error::{Error, Result};
use crate::io::lane::{Load, Purpose};
use crate::io::schedule::Class;
use crate::media::block::{BODY_BLOCK_BYTES, Lineage};
use crate::media::checkpoint::{CHECKPOINT_HEADER_BYTES, CheckpointWriter, Pushed};
use crate::media::journal::Mark;
use crate::media::record::{Put, Record};
use crate::media::recovery::Areas;
use crate::model::object::{LayoutId, ObjectId, TenantId};
use crate::model::place::UNIT_BYTES;

/// A checkpoint begins when the journal since the last one exceeds one `JOURNAL_PARTS`th of the ring.
const JOURNAL_PARTS: u64 = 3;
/// Or when its records, which an opening replays, exceed the most of these: one `RECORD_PARTS`th of the ring, so many
/// bytes for each object that the shard may have, and a minimum.
const RECORD_PARTS: u64 = 12;
const RECORD_BYTES_PER_OBJECT: u64 = 8;
const RECORD_BYTES_MIN: u64 = (1 << 20) / JOURNAL_PARTS;
/// Limit of body writes in flight while the journal has room.
const BODY_WRITES: u32 = 2;
/// The same limit while the journal is short of room.
const BODY_WRITES_MAX: u32 = 8;
/// The journal is short when less than one `SHORT_PARTS`th is free.
const SHORT_PARTS: u64 = 2;
/// Below one `PRESSING_PARTS`th free, a body goes before all data.
const PRESSING_PARTS: u64 = 4;
/// Failed checkpoints in a row before the device counts as out of service.
const FAILURES_MAX: u32 = 3;
/// The least time between two checkpoints for the ages, if their clock ticked. Each writes all records, about 76 bytes
/// for each object.
const AGES_INTERVAL: Duration = Duration::from_secs(60);
/// Checkpoints for the ages write at most one `AGES_PARTS`th of the shard's capacity in a day, so that stores of small
/// objects do not wear their drives out.
const AGES_PARTS: u64 = 10;
const DAY_S: u64 = 24 * 60 * 60;
/// Limit of records taken per turn, which bounds a turn.
const RECORDS_PER_TURN: usize = 512;

/// Position of the walk.
#[derive(Clone, Copy, Debug)]
enum Cursor {
    Tenant(u8),
    Layout(u8),
    Object(u32),
    End,
}

/// The current step.
#[derive(Debug)]
enum State {
    Idle,
    Settling { begin: Mark },
    Taking { writer: CheckpointWriter, cursor: Cursor },
    Ending { writer: CheckpointWriter, end: Mark, flush: u64 },
    Heading { begin: Mark, flush: Option<u64> },
}

/// What the newest checkpoint keeps of the ages.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptAges {
    /// The clock of the ages when it began.
    pub(super) ticks: u64,
    /// When that was.
    pub(super) at: Time,
}

#[derive(Debug)]
pub(super) struct Checkpoints {
    state: State,
    areas: Areas,
    lineage: Lineage,
    session: u64,
    next_number: u64,
    next_slot: usize,
    /// Where the newest complete checkpoint begins.
    newest_begin: u64,
    /// The position that the journal's growth is measured from.
    since: u64,
    /// The bytes of the records up to there, and up to the begin of the last checkpoint that began.
    since_record_bytes: u64,
    begin_record_bytes: u64,
    /// Whether the next one begins as soon as it makes room in the journal.
    pub(super) is_wanted: bool,
    pub(super) kept_ages: KeptAges,
    /// Whether the last one of a shard that is being closed is to begin.
    is_last_due: bool,
    /// From then on there are none, because the store is being closed.
    ends_at: Time,
    writes: u32,
    is_broken: bool,
    /// Failures in a row.
    failures: u32,
}

impl Checkpoints {
    pub(super) fn new(
        areas: Areas,
        lineage: Lineage,
        session: u64,
        (next_number, next_slot): (u64, usize),
        newest_begin: u64,
        kept_ages: KeptAges,
    ) -> Checkpoints {
        Checkpoints {
            state: State::Idle,
            areas,
            lineage,
            session,
            next_number,
            next_slot,
            newest_begin,
            since: newest_begin,
            since_record_bytes: 0,
            begin_record_bytes: 0,
            is_wanted: false,
            kept_ages,
            is_last_due: false,
            ends_at: Time::NEVER,
            writes: 0,
            is_broken: false,
            failures: 0,
        }
    }

    /// Requests a checkpoint at once, regardless of the journal's length.
    pub(super) fn hurry(&mut self) {
        self.since = 0;
        self.is_wanted = true;
    }

    fn writer(&self, begin: Mark) -> CheckpointWriter {
        let slot = self.areas.slots[self.next_slot].clone();
        CheckpointWriter::begin(slot, self.lineage, self.session, self.next_number, begin)
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && !self.is_last_due
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns whether the checkpoint in progress waits for a flush. A flush it waited for may have been abandoned.
    pub(super) fn checkpoint_wants_flush(&self) -> bool {
        let ended = self.log.flush_numbers().1;
        let Some(checkpoints) = &self.checkpoints else { return false };
        match &checkpoints.state {
            State::Ending { end, flush, .. } => {
                self.log.ready_end() >= end.sequence && ended < *flush
            }
            State::Heading { flush: Some(flush), .. } => ended < *flush,
            _ => false,
        }
    }

    /// Returns whether a checkpoint is being taken.
    pub(super) fn is_checkpointing(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| !checkpoints.is_idle())
    }

    /// Takes a checkpoint before anything else happens, waiting for the devices.
    ///
    /// # Errors
    /// [`Error::Media`] if the journal's device fails.
    pub(super) fn checkpoint_at_once(&mut self, clock: &mut dyn FnMut() -> Time) -> Result<()> {
        let before = self.stats.checkpoints;
        self.checkpoints.iter_mut().for_each(Checkpoints::hurry);
        while self.stats.checkpoints == before {
            let now = clock();
            self.take_finished(now);
            self.journal_step(now);
            self.checkpoint_step(now);
            self.send(now);
            if let Some(why) = self.lanes[self.home].failure() {
                let (device, why) = (self.lanes[self.home].info.device.clone(), why.to_owned());
                let fix = "look at the drive's health and try again".to_owned();
                return Err(Error::Media { device, why, fix });
            }
        }
        Ok(())
    }

    /// Begins a last checkpoint, because the store is being closed, if objects were used since the last one. It is
    /// abandoned when it takes longer than `within`, with a warning, and so is one in progress.
    pub fn keep_ages(&mut self, now: Time, within: Duration) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let has_ticked = self.policy.ticks() > checkpoints.kept_ages.ticks;
        checkpoints.ends_at = now + within;
        checkpoints.is_last_due = has_ticked && checkpoints.is_idle();
        self.wake();
    }

    /// Returns when the clock requires a checkpoint.
    pub(super) fn next_checkpoint_at(&self) -> Time {
        self.checkpoints.as_ref().map_or(Time::NEVER, |checkpoints| self.ages_due_at(checkpoints))
    }

    /// Returns when a checkpoint is due for the ages.
    fn ages_due_at(&self, checkpoints: &Checkpoints) -> Time {
        let KeptAges { ticks, at } = checkpoints.kept_ages;
        if self.policy.ticks() == ticks {
            return Time::NEVER;
        }
        let capacity_bytes = self.spaces.capacity_units().max(1) * UNIT_BYTES;
        let body = u128::from(self.capacity.record_bytes);
        let least_s = body * u128::from(DAY_S * AGES_PARTS) / u128::from(capacity_bytes);
        at + AGES_INTERVAL.max(Duration::from_secs(least_s as u64))
    }

    /// Continues the checkpoint in progress, or begins one if it is due.
    pub(super) fn checkpoint_step(&mut self, now: Time) {
        let is_idle = |checkpoints: &Checkpoints| {
            checkpoints.is_idle() && !self.is_checkpoint_due(now, checkpoints)
        };
        if self.checkpoints.as_ref().is_none_or(is_idle) {
            return;
        }
        let Some(mut checkpoints) = self.checkpoints.take() else { return };
        if now >= checkpoints.ends_at {
            if !checkpoints.is_idle() {
                tracing::warn!(
                    "the last checkpoint took too long, so the store forgets which objects were used since the one before; \
                     a larger timeout lets it take longer"
                );
            }
            (checkpoints.state, checkpoints.is_last_due) = (State::Idle, false);
        } else if self.lanes[self.home].failure().is_none() {
            self.advance(now, &mut checkpoints);
        }
        self.checkpoints = Some(checkpoints);
    }

    fn advance(&mut self, now: Time, checkpoints: &mut Checkpoints) {
        let state = std::mem::replace(&mut checkpoints.state, State::Idle);
        checkpoints.state = match state {
            // Late writes of an abandoned checkpoint must not land on the next one.
            State::Idle if checkpoints.writes == 0 && self.is_checkpoint_due(now, checkpoints) => {
                let Some(begin) = self.log.mark() else { return };
                (checkpoints.is_wanted, checkpoints.is_last_due) = (false, false);
                checkpoints.kept_ages = KeptAges { ticks: self.policy.ticks(), at: now };
                checkpoints.begin_record_bytes = self.log.record_bytes();
                State::Settling { begin }
            }
            State::Settling { begin } if self.log.has_settled(begin.sequence) => {
                State::Taking { writer: checkpoints.writer(begin), cursor: Cursor::Tenant(1) }
            }
            State::Taking { writer, cursor } => self.take(now, checkpoints, writer, cursor),
            State::Ending { writer, end, flush } if self.log.flush_numbers().1 >= flush => {
                self.head(now, checkpoints, writer, end)
            }
            State::Heading { begin, flush: Some(flush) } if self.log.flush_numbers().1 >= flush => {
                self.complete(checkpoints, begin);
                State::Idle
            }
            other => other,
        };
    }

    fn is_checkpoint_due(&self, now: Time, checkpoints: &Checkpoints) -> bool {
        let Some(journal) = self.log.journal() else { return false };
        if now >= checkpoints.ends_at {
            return false;
        }
        let since = journal.mark().sequence - checkpoints.since;
        let record_bytes = self.log.record_bytes() - checkpoints.since_record_bytes;
        let record_bytes_max = (journal.blocks() * UNIT_BYTES / RECORD_PARTS)
            .max(u64::from(self.capacity.objects_max) * RECORD_BYTES_PER_OBJECT)
            .max(RECORD_BYTES_MIN);
        // Only another checkpoint moves the tail to where the newest one begins.
        let brings_room = since > 0 || journal.tail() < checkpoints.newest_begin;
        since > journal.blocks() / JOURNAL_PARTS
            || record_bytes > record_bytes_max
            || (checkpoints.is_wanted && brings_room)
            || checkpoints.is_last_due
            || now >= self.ages_due_at(checkpoints)
    }

    /// Returns how a body is written now: the limit of writes in flight, and their class.
    pub(super) fn body_pace(&self) -> (u32, Class) {
        let is_below = |parts| {
            let journal = self.log.journal();
            journal.is_some_and(|journal| journal.free_blocks() < journal.blocks() / parts)
        };
        match (is_below(SHORT_PARTS), is_below(PRESSING_PARTS)) {
            (false, _) => (BODY_WRITES, Class::Write),
            (true, false) => (BODY_WRITES_MAX, Class::Write),
            (true, true) => (BODY_WRITES_MAX, Class::Metadata),
        }
    }

    fn take(
        &mut self,
        now: Time,
        checkpoints: &mut Checkpoints,
        mut writer: CheckpointWriter,
        mut cursor: Cursor,
    ) -> State {
        for _ in 0..RECORDS_PER_TURN {
            if checkpoints.is_broken || checkpoints.writes >= self.body_pace().0 {
                return State::Taking { writer, cursor };
            }
            match self.push_record(&mut writer, cursor) {
                Some((Pushed::Taken, next)) => cursor = next,
                Some((Pushed::BlockFull, _)) => {
                    if !self.write_body(now, checkpoints, &mut writer) {
                        return State::Taking { writer, cursor };
                    }
                }
                Some((Pushed::SlotFull, _)) => {
                    tracing::error!(
                        "a checkpoint does not fit its slot: objects have longer keys or more parts than the store was formatted for"
                    );
                    return State::Idle;
                }
                None => return self.end(now, checkpoints, writer),
            }
        }
        State::Taking { writer, cursor }
    }

    /// Passes the record at the cursor to the writer; returns `None` at the end.
    fn push_record(
        &self,
        writer: &mut CheckpointWriter,
        cursor: Cursor,
    ) -> Option<(Pushed, Cursor)> {
        match cursor {
            Cursor::Tenant(number) => {
                let id = TenantId(number);
                let Some(name) = self.tenants.name(id) else {
                    return self.push_record(writer, Cursor::Layout(1));
                };
                let quota = self.tenants.quota(id);
                let pushed = writer.push(&Record::Tenant { id, name, quota });
                Some((pushed, number.checked_add(1).map_or(Cursor::Layout(1), Cursor::Tenant)))
            }
            Cursor::Layout(number) => {
                let id = LayoutId(number);
                let Some(layout) = self.spaces.layout(id) else {
                    return self.push_record(writer, Cursor::Object(0));
                };
                let bytes = layout.encode();
                let pushed = writer.push(&Record::Layout { id, bytes: &bytes });
                Some((pushed, number.checked_add(1).map_or(Cursor::Object(0), Cursor::Layout)))
            }
            Cursor::Object(from) => {
                let id = self.index.next_live(from)?;
                Some((self.push_object(writer, id), Cursor::Object(id.0 + 1)))
            }
            Cursor::End => None,
        }
    }

    fn push_object(&self, writer: &mut CheckpointWriter, id: ObjectId) -> Pushed {
        let object = self.index.object(id);
        let checksums = self.index.checksums(id);
        let (slab_base, expires_s) = (self.spaces.slab_base(&object), self.expiry.get(id));
        let key = self.index.key_bytes(id);
        let put = put_record(key, object, slab_base, expires_s, (&*checksums).into());
        writer.push(&Record::Put(Put { age: Some(self.policy.age(id)), ..put }))
    }

    /// Writes the full block. Returns false if there is no memory for it now.
    fn write_body(
        &mut self,
        now: Time,
        checkpoints: &mut Checkpoints,
        writer: &mut CheckpointWriter,
    ) -> bool {
        let Some(mut memory) = self.lanes[self.home].memory.pop() else { return false };
        let block = memory.first_chunk_mut::<BODY_BLOCK_BYTES>().expect("a buffer has a block");
        let Some(unit) = writer.block(block) else {
            self.lanes[self.home].memory.push(memory);
            return true;
        };
        self.stats.checkpoint_bytes += BODY_BLOCK_BYTES as u64;
        let class = self.body_pace().1;
        checkpoints.writes +=
            self.write_home(now, Purpose::Body, class, unit, memory, BODY_BLOCK_BYTES);
        true
    }

    /// Writes the rest of the last block after all records were taken, then moves on to the flush.
    fn end(
        &mut self,
        now: Time,
        checkpoints: &mut Checkpoints,
        mut writer: CheckpointWriter,
    ) -> State {
        if !self.write_body(now, checkpoints, &mut writer) || checkpoints.writes > 0 {
            return State::Taking { writer, cursor: Cursor::End };
        }
        let Some(end) = self.log.mark() else {
            return State::Taking { writer, cursor: Cursor::End };
        };
        let flush = self.log.flush_numbers().0 + 1;
        State::Ending { writer, end, flush }
    }

    fn head(
        &mut self,
        now: Time,
        checkpoints: &mut Checkpoints,
        writer: CheckpointWriter,
        end: Mark,
    ) -> State {
        let flush = self.log.flush_numbers().0 + 1;
        if self.log.durable_end() < end.sequence {
            return State::Ending { writer, end, flush };
        }
        let Some(mut memory): Option<Buffer> = self.lanes[self.home].memory.pop() else {
            return State::Ending { writer, end, flush: self.log.flush_numbers().1 };
        };
        let begin = writer.begin_mark();
        let header = memory.first_chunk_mut::<CHECKPOINT_HEADER_BYTES>();
        let unit = writer.finish(end, header.expect("a buffer has a header"));
        self.stats.checkpoint_bytes += CHECKPOINT_HEADER_BYTES as u64;
        let class = Class::Metadata;
        checkpoints.writes +=
            self.write_home(now, Purpose::Header, class, unit, memory, CHECKPOINT_HEADER_BYTES);
        State::Heading { begin, flush: None }
    }

    /// Handles the end of a checkpoint write.
    pub(super) fn finish_checkpoint_write(&mut self, purpose: Purpose, is_done: bool) {
        let next = self.log.flush_numbers().0 + 1;
        let Some(checkpoints) = &mut self.checkpoints else { return };
        checkpoints.writes -= 1;
        if !is_done {
            checkpoints.is_broken = true;
        }
        if let (Purpose::Header, State::Heading { flush, .. }) = (purpose, &mut checkpoints.state) {
            *flush = Some(next);
        }
        if checkpoints.is_broken && checkpoints.writes == 0 {
            // Start over in the same slot.
            tracing::error!("a checkpoint cannot be written; the one before stays");
            checkpoints.is_broken = false;
            checkpoints.state = State::Idle;
            checkpoints.failures += 1;
            if checkpoints.failures == FAILURES_MAX {
                self.lanes[self.home].fail("its checkpoints cannot be written");
            }
        }
    }

    /// Abandons the checkpoint in progress, because its blocks may be lost with the device that failed.
    pub(super) fn abandon_checkpoint(&mut self) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        assert_eq!(checkpoints.writes, 0, "a device that is replaced is idle");
        checkpoints.state = State::Idle;
        checkpoints.failures = 0;
    }

    fn complete(&mut self, checkpoints: &mut Checkpoints, begin: Mark) {
        // The previous checkpoint is now the older of two.
        self.log.release(checkpoints.newest_begin);
        checkpoints.newest_begin = begin.sequence;
        checkpoints.since = begin.sequence;
        checkpoints.since_record_bytes = checkpoints.begin_record_bytes;
        checkpoints.failures = 0;
        checkpoints.next_number += 1;
        checkpoints.next_slot = 1 - checkpoints.next_slot;
        self.stats.checkpoints += 1;
    }
}
