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

use super::lanes::Lanes;
use super::log::Log;
use super::objects::Objects;
use super::parts::Parts;
use super::stats::Stats;
use crate::io::lane::{Load, Purpose};
use crate::io::schedule::Class;
use crate::media::block::{BODY_BLOCK_BYTES, Lineage};
use crate::media::checkpoint::{CHECKPOINT_HEADER_BYTES, CheckpointWriter, Pushed};
use crate::media::journal::Mark;
use crate::media::record::Record;
use crate::media::recovery::Areas;
use crate::model::object::{LayoutId, TenantId};
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
enum Step {
    Idle,
    Settling { begin: Mark },
    Taking { writer: CheckpointWriter, cursor: Cursor },
    Ending { writer: CheckpointWriter, end: Mark, flush: u64 },
    Heading { begin: Mark, flush: Option<u64> },
}

/// The part of the ages that the newest checkpoint keeps.
#[derive(Clone, Copy, Debug)]
struct KeptAges {
    /// The clock of the ages when it began.
    ticks: u64,
    /// When that was.
    at: Time,
}

/// Where the next checkpoint is written, and as what.
#[derive(Debug)]
pub(super) struct NextCheckpoint {
    pub(super) areas: Areas,
    pub(super) lineage: Lineage,
    pub(super) session: u64,
    pub(super) number: u64,
    pub(super) slot: usize,
}

/// The checkpoints of a shard with a journal.
#[derive(Debug)]
pub(super) struct Checkpoints {
    step: Step,
    next: NextCheckpoint,
    /// Where the newest complete checkpoint begins.
    newest_begin: u64,
    /// The position that the journal's growth is measured from.
    since: u64,
    /// The bytes of the records up to there, and up to the begin of the last checkpoint that began.
    since_record_bytes: u64,
    begin_record_bytes: u64,
    kept_ages: KeptAges,
    /// Whether the last one of a shard that is being closed is to begin.
    is_last_due: bool,
    /// From then on there are none, because the store is being closed.
    ends_at: Time,
    writes: u32,
    is_broken: bool,
    /// Failures in a row.
    failures: u32,
    stats: Stats,
}

impl Checkpoints {
    /// Begins after an opening, whose newest checkpoint begins at `newest_begin`.
    pub(super) fn new(
        next: NextCheckpoint,
        newest_begin: u64,
        objects: &Objects,
        now: Time,
    ) -> Checkpoints {
        Checkpoints {
            step: Step::Idle,
            next,
            newest_begin,
            since: newest_begin,
            since_record_bytes: 0,
            begin_record_bytes: 0,
            kept_ages: KeptAges { ticks: objects.order().ticks(), at: now },
            is_last_due: false,
            ends_at: Time::NEVER,
            writes: 0,
            is_broken: false,
            failures: 0,
            stats: Stats::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Requests a checkpoint at once, regardless of the journal's length.
    pub(super) fn hurry(&mut self, log: &mut Log) {
        self.since = 0;
        log.request_checkpoint();
    }

    fn writer(&self, begin: Mark) -> CheckpointWriter {
        let NextCheckpoint { areas, lineage, session, number, slot } = &self.next;
        CheckpointWriter::begin(areas.slots[*slot].clone(), *lineage, *session, *number, begin)
    }

    /// Returns whether none is being taken, or about to be.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle) && !self.is_last_due
    }

    /// Returns whether the checkpoint in progress waits for a flush. A flush it waited for may have been abandoned.
    pub(super) fn wants_flush(&self, log: &Log) -> bool {
        match &self.step {
            Step::Ending { end, flush, .. } => {
                log.ready_end() >= end.sequence && log.flush_ended() < *flush
            }
            Step::Heading { flush: Some(flush), .. } => log.flush_ended() < *flush,
            _ => false,
        }
    }

    /// Begins a last checkpoint, because the store is being closed, if objects were used since the last one. It is
    /// abandoned when it takes longer than `within`, with a warning, and so is one in progress.
    pub(super) fn keep_ages(&mut self, objects: &Objects, now: Time, within: Duration) {
        let has_ticked = objects.order().ticks() > self.kept_ages.ticks;
        self.ends_at = now + within;
        self.is_last_due = has_ticked && self.is_idle();
    }

    /// Returns when a checkpoint is due for the ages.
    pub(super) fn ages_due_at(&self, objects: &Objects) -> Time {
        let KeptAges { ticks, at } = self.kept_ages;
        if objects.order().ticks() == ticks {
            return Time::NEVER;
        }
        let capacity_bytes = objects.spaces().capacity_units().max(1) * UNIT_BYTES;
        let body = u128::from(objects.record_bytes());
        let least_s = body * u128::from(DAY_S * AGES_PARTS) / u128::from(capacity_bytes);
        at + AGES_INTERVAL.max(Duration::from_secs(least_s as u64))
    }

    /// Continues the checkpoint in progress, or begins one if it is due.
    pub(super) fn step<Q: CommandQueue<Load>, R>(&mut self, parts: &mut Parts<Q, R>, now: Time) {
        if self.is_idle() && !self.is_due(parts, now) {
            return;
        }
        if now >= self.ends_at {
            if !self.is_idle() {
                tracing::warn!(
                    "the last checkpoint took too long, so the store forgets which objects were used since the one \
                     before; a larger timeout lets it take longer"
                );
            }
            (self.step, self.is_last_due) = (Step::Idle, false);
        } else if parts.lanes.home().failure().is_none() {
            self.advance(parts, now);
        }
    }

    fn advance<Q: CommandQueue<Load>, R>(&mut self, parts: &mut Parts<Q, R>, now: Time) {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        self.step = match step {
            // Late writes of an abandoned checkpoint must not land on the next one.
            Step::Idle if self.writes == 0 && self.is_due(parts, now) => {
                let Some(begin) = parts.log.begin_checkpoint() else { return };
                self.is_last_due = false;
                self.kept_ages = KeptAges { ticks: parts.objects.order().ticks(), at: now };
                self.begin_record_bytes = parts.log.record_bytes();
                Step::Settling { begin }
            }
            Step::Settling { begin } if parts.has_settled(begin.sequence) => {
                Step::Taking { writer: self.writer(begin), cursor: Cursor::Tenant(1) }
            }
            Step::Taking { writer, cursor } => self.take(parts, now, writer, cursor),
            Step::Ending { writer, end, flush } if parts.log.flush_ended() >= flush => {
                self.head(parts, now, writer, end)
            }
            Step::Heading { begin, flush: Some(flush) } if parts.log.flush_ended() >= flush => {
                self.complete(&mut parts.log, begin);
                Step::Idle
            }
            other => other,
        };
    }

    fn is_due<Q, R>(&self, Parts { objects, log, room, .. }: &Parts<Q, R>, now: Time) -> bool {
        let Some(journal) = log.journal() else { return false };
        if now >= self.ends_at {
            return false;
        }
        let since = journal.mark().sequence - self.since;
        let record_bytes = log.record_bytes() - self.since_record_bytes;
        let record_bytes_max = (journal.blocks() * UNIT_BYTES / RECORD_PARTS)
            .max(u64::from(room.objects_max()) * RECORD_BYTES_PER_OBJECT)
            .max(RECORD_BYTES_MIN);
        // Only another checkpoint moves the tail to where the newest one begins.
        let brings_room = since > 0 || journal.tail() < self.newest_begin;
        since > journal.blocks() / JOURNAL_PARTS
            || record_bytes > record_bytes_max
            || (log.wants_checkpoint() && brings_room)
            || self.is_last_due
            || now >= self.ages_due_at(objects)
    }

    fn take<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        mut writer: CheckpointWriter,
        mut cursor: Cursor,
    ) -> Step {
        for _ in 0..RECORDS_PER_TURN {
            if self.is_broken || self.writes >= body_pace(&parts.log).0 {
                return Step::Taking { writer, cursor };
            }
            match push_record(&parts.objects, &mut writer, cursor) {
                Some((Pushed::Taken, next)) => cursor = next,
                Some((Pushed::BlockFull, _)) => {
                    if !self.write_body(parts, now, &mut writer) {
                        return Step::Taking { writer, cursor };
                    }
                }
                Some((Pushed::SlotFull, _)) => {
                    tracing::error!(
                        "a checkpoint does not fit its slot: objects have longer keys or more parts than the store \
                         was formatted for"
                    );
                    return Step::Idle;
                }
                None => return self.end(parts, now, writer),
            }
        }
        Step::Taking { writer, cursor }
    }

    /// Writes the full block. Returns false if there is no memory for it now.
    fn write_body<Q: CommandQueue<Load>, R>(
        &mut self,
        Parts { lanes, log, .. }: &mut Parts<Q, R>,
        now: Time,
        writer: &mut CheckpointWriter,
    ) -> bool {
        let Some(mut memory) = lanes.home_mut().memory.pop() else { return false };
        let block = memory.first_chunk_mut::<BODY_BLOCK_BYTES>().expect("a buffer has a block");
        let Some(unit) = writer.block(block) else {
            lanes.home_mut().memory.push(memory);
            return true;
        };
        let write = (Purpose::Body, body_pace(log).1);
        self.write(lanes, now, write, (unit, BODY_BLOCK_BYTES), memory);
        true
    }

    /// Writes the rest of the last block after all records were taken, then moves on to the flush.
    fn end<Q: CommandQueue<Load>, R>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        mut writer: CheckpointWriter,
    ) -> Step {
        if !self.write_body(parts, now, &mut writer) || self.writes > 0 {
            return Step::Taking { writer, cursor: Cursor::End };
        }
        let Some(end) = parts.log.mark() else {
            return Step::Taking { writer, cursor: Cursor::End };
        };
        Step::Ending { writer, end, flush: parts.log.flush_begun() + 1 }
    }

    fn head<Q: CommandQueue<Load>, R>(
        &mut self,
        Parts { lanes, log, .. }: &mut Parts<Q, R>,
        now: Time,
        writer: CheckpointWriter,
        end: Mark,
    ) -> Step {
        if log.durable_end() < end.sequence {
            return Step::Ending { writer, end, flush: log.flush_begun() + 1 };
        }
        let Some(mut memory) = lanes.home_mut().memory.pop() else {
            return Step::Ending { writer, end, flush: log.flush_ended() };
        };
        let begin = writer.begin_mark();
        let header = memory.first_chunk_mut::<CHECKPOINT_HEADER_BYTES>();
        let unit = writer.finish(end, header.expect("a buffer has a header"));
        let write = (Purpose::Header, Class::Metadata);
        self.write(lanes, now, write, (unit, CHECKPOINT_HEADER_BYTES), memory);
        Step::Heading { begin, flush: None }
    }

    fn write<Q: CommandQueue<Load>>(
        &mut self,
        lanes: &mut Lanes<Q>,
        now: Time,
        write: (Purpose, Class),
        (unit, bytes): (u64, usize),
        memory: Buffer,
    ) {
        self.stats.checkpoint_bytes += bytes as u64;
        self.writes += lanes.write_home(now, write, unit, memory, bytes);
    }

    /// Handles the end of a checkpoint write.
    pub(super) fn finish_write<Q: CommandQueue<Load>>(
        &mut self,
        lanes: &mut Lanes<Q>,
        log: &Log,
        purpose: Purpose,
        is_done: bool,
    ) {
        self.writes -= 1;
        if !is_done {
            self.is_broken = true;
        }
        if let (Purpose::Header, Step::Heading { flush, .. }) = (purpose, &mut self.step) {
            *flush = Some(log.flush_begun() + 1);
        }
        if self.is_broken && self.writes == 0 {
            // Start over in the same slot.
            tracing::error!("a checkpoint cannot be written; the one before stays");
            self.is_broken = false;
            self.step = Step::Idle;
            self.failures += 1;
            if self.failures == FAILURES_MAX {
                lanes.home_mut().fail("its checkpoints cannot be written");
            }
        }
    }

    /// Abandons the checkpoint in progress, because its blocks may be lost with the device that failed.
    pub(super) fn abandon(&mut self) {
        assert_eq!(self.writes, 0, "a device that is replaced is idle");
        self.step = Step::Idle;
        self.failures = 0;
    }

    fn complete(&mut self, log: &mut Log, begin: Mark) {
        // The previous checkpoint is now the older of two.
        log.release(self.newest_begin);
        self.newest_begin = begin.sequence;
        self.since = begin.sequence;
        self.since_record_bytes = self.begin_record_bytes;
        self.failures = 0;
        self.next.number += 1;
        self.next.slot = 1 - self.next.slot;
        self.stats.checkpoints += 1;
    }
}

/// Returns how a body is written now: the limit of writes in flight, and their class.
pub(super) fn body_pace(log: &Log) -> (u32, Class) {
    let is_below = |parts| {
        let journal = log.journal();
        journal.is_some_and(|journal| journal.free_blocks() < journal.blocks() / parts)
    };
    match (is_below(SHORT_PARTS), is_below(PRESSING_PARTS)) {
        (false, _) => (BODY_WRITES, Class::Write),
        (true, false) => (BODY_WRITES_MAX, Class::Write),
        (true, true) => (BODY_WRITES_MAX, Class::Metadata),
    }
}

/// Passes the record at the cursor to the writer; returns `None` at the end.
fn push_record(
    objects: &Objects,
    writer: &mut CheckpointWriter,
    cursor: Cursor,
) -> Option<(Pushed, Cursor)> {
    match cursor {
        Cursor::Tenant(number) => {
            let id = TenantId(number);
            let Some(name) = objects.tenants().name(id) else {
                return push_record(objects, writer, Cursor::Layout(1));
            };
            let quota = objects.tenants().quota(id);
            let pushed = writer.push(&Record::Tenant { id, name, quota });
            Some((pushed, number.checked_add(1).map_or(Cursor::Layout(1), Cursor::Tenant)))
        }
        Cursor::Layout(number) => {
            let id = LayoutId(number);
            let Some(layout) = objects.layouts().get(id) else {
                return push_record(objects, writer, Cursor::Object(0));
            };
            let bytes = layout.encode();
            let pushed = writer.push(&Record::Layout { id, bytes: &bytes });
            Some((pushed, number.checked_add(1).map_or(Cursor::Object(0), Cursor::Layout)))
        }
        Cursor::Object(from) => {
            let id = objects.index().next_live(from)?;
            let pushed = objects.with_record(id, |record| writer.push(record));
            Some((pushed, Cursor::Object(id.0 + 1)))
        }
        Cursor::End => None,
    }
}

#[cfg(test)]
impl Checkpoints {
    pub(super) fn set_kept_ages(&mut self, ticks: u64, at: Time) {
        self.kept_ages = KeptAges { ticks, at };
    }
}
