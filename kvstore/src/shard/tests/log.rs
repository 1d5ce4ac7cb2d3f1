//! The journal's room, clock and events, step by step and without a device.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use crate::media::block::{JOURNAL_BLOCK_BYTES, Lineage};
use crate::media::journal::{FIRST_SEQUENCE, Journal, JournalWrite, Mark};
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::object::{LayoutId, Object, TenantId, Version};
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES};
use crate::shard::change::NewObject;
use crate::shard::effects::due::{Due, DueEvents, Event};
use crate::shard::log::Log;
use crate::shard::memory::Sums;
use crate::shard::{Condition, Done, Outcome};

const SEAL_MS: u64 = 10;
const FLUSH_MS: u64 = 1000;
/// Bytes of records in one block: its 4096 without the header's 56.
const PAYLOAD_BYTES: u64 = 4040;

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

/// A log, and the events that wait for it.
struct Events {
    log: Log,
    due: DueEvents<u64>,
}

impl Deref for Events {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl DerefMut for Events {
    fn deref_mut(&mut self) -> &mut Log {
        &mut self.log
    }
}

fn log_of(durability: Durability, blocks: u64) -> Events {
    let lineage = Lineage { store: [7; 16], epoch: 2, shard: 1 };
    let journal = Journal::new(0..blocks, lineage.epoch, 1, Mark::start(&lineage), FIRST_SEQUENCE);
    let intervals = (Duration::from_millis(SEAL_MS), Duration::from_millis(FLUSH_MS));
    Events { log: Log::new(Some(journal), durability, intervals, at(0)), due: DueEvents::default() }
}

/// Returns the log of a `restart` store with a ring of 16 blocks.
fn log() -> Events {
    log_of(Durability::Restart, 16)
}

fn volatile() -> Events {
    let intervals = (Duration::from_millis(SEAL_MS), Duration::from_millis(FLUSH_MS));
    let log = Log::new(None, Durability::Volatile, intervals, at(0));
    Events { log, due: DueEvents::default() }
}

/// Steps that need no device.
impl Events {
    fn append_at(&mut self, ms: u64) -> u64 {
        let place = Place { device: 0, unit: 1 };
        self.append(at(ms), &Record::Delete { key: &[9; 500], place })
    }

    /// Appends a record and seals its block.
    fn fill_block(&mut self, ms: u64) {
        let sequence = self.append_at(ms);
        assert_eq!(self.mark().expect("there is room").sequence, sequence + 1);
    }

    /// Takes sealed blocks to be written, at most `blocks`.
    fn take_blocks(&mut self, blocks: usize) -> Option<JournalWrite> {
        self.take(&mut vec![0; blocks * JOURNAL_BLOCK_BYTES])
    }

    /// Writes all sealed blocks.
    fn write_all(&mut self) {
        while let Some(write) = self.take_blocks(64) {
            self.written(write.sequences.end);
        }
    }

    /// Flushes what is written, on one device.
    fn flush_at(&mut self, ms: u64) {
        let number = self.begin_flush(at(ms), 1);
        self.flushed(number);
    }

    fn wait(&mut self, sequence: u64, event: Event<u64>) {
        self.due.wait(sequence, event);
    }

    fn next_due(&mut self) -> Option<Due<u64>> {
        self.due.next(self.log.durable_end())
    }

    fn is_awaited(&self) -> bool {
        self.due.first().is_some_and(|first| first < self.ready_end())
    }

    fn has_settled(&self, sequence: u64) -> bool {
        self.has_data_before(sequence) && self.due.first().is_none_or(|first| first >= sequence)
    }

    fn seal(&mut self, now: Time, is_pressed: bool, has_answered: bool) {
        let is_awaited = self.due.first().is_some() && !has_answered;
        self.log.seal(now, is_pressed, is_awaited);
    }

    fn next_due_at(&self) -> Time {
        self.log.next_due_at(self.due.first())
    }

    fn is_idle(&self) -> bool {
        self.log.is_idle() && self.due.first().is_none()
    }

    /// Returns the numbers of the last flush that began and of the last that ended.
    fn flush_numbers(&self) -> (u64, u64) {
        (self.flush_begun(), self.flush_ended())
    }

    fn free_blocks(&self) -> u64 {
        self.journal().expect("a journal").free_blocks()
    }
}

fn done(reply: u64) -> Done<u64> {
    Done::new(reply, Ok(Outcome::Stored), AnyBuffer::None)
}

fn put(key: &[u8], answer: Option<u64>) -> Event<u64> {
    let new = NewObject {
        key: Key::new(key).expect("a key"),
        hash: 0,
        turn: 0,
        object: Object {
            place: Place { device: 0, unit: 0 },
            bytes: UNIT_BYTES,
            layout: LayoutId::PLAIN,
            tenant: TenantId::default(),
            version: Version::NONE,
        },
        slab_base: None,
        attachment: 0,
        expires_s: None,
        condition: Condition::Always,
        recorded: None,
        checksums: Sums::new(),
    };
    Event::Put(Box::new(new), answer.map(done))
}

#[test]
fn room_is_for_what_is_reserved_and_two_blocks_more() {
    let mut log = log();
    // Twelve half-filled blocks and three hold less than what needs thirteen; two stay free.
    let most = 12 * PAYLOAD_BYTES / 2 - 1;
    assert!(log.has_room(most) && !log.has_room(most + 1));
    log.reserve(10_000);
    assert!(log.has_room(most - 10_000) && !log.has_room(most - 9_999));
    log.reserve(5);
    log.unreserve(10_000);
    assert!(log.has_room(most - 5) && !log.has_room(most - 4));
    log.unreserve(5);
    (0..14).for_each(|_| log.fill_block(0));
    assert_eq!(log.free_blocks(), 2);
    assert!(log.has_room(0), "nothing takes no block");
    assert!(!log.has_room(1) && !log.has_room_for_small());
    log.fill_block(0);
    assert!(!log.has_room(0), "two blocks stay free");
    assert!(volatile().has_room(1 << 40));
}

#[test]
fn room_for_a_small_record_is_room_for_the_longest_key() {
    let mut log = log();
    (0..11).for_each(|_| log.fill_block(0));
    assert!(log.has_room_for_small(), "five blocks: one record takes three, however full they are");
    log.fill_block(0);
    assert!(!log.has_room_for_small());
}

#[test]
#[should_panic(expected = "what is given back was reserved")]
fn more_than_is_reserved_is_not_given_back() {
    let mut log = log();
    log.reserve(7);
    log.unreserve(8);
}

#[test]
fn a_block_is_sealed_early_only_beside_the_room_of_all_reservations() {
    let mut log = log();
    // The sixteen free blocks are one more than these need.
    let most = 13 * PAYLOAD_BYTES / 2 - 1;
    log.reserve(most + 1);
    assert!(log.mark().is_some(), "an empty block takes no room");
    assert_eq!(log.append_at(0), 1);
    assert_eq!((log.mark(), log.barrier()), (None, 1));
    assert!(!log.may_promise(at(0)), "the block could not be sent in time");
    log.seal(at(SEAL_MS), true, false);
    assert!(!log.has_sealed());
    assert_eq!(log.next_due_at(), Time::NEVER, "the clock does not help");
    log.unreserve(1);
    assert!(log.may_promise(at(0)));
    assert_eq!(log.next_due_at(), at(SEAL_MS));
    assert_eq!(log.mark().expect("there is room").sequence, 2);
    assert!(volatile().mark().is_none());
}

#[test]
fn a_journal_is_short_below_half_and_shares_are_a_sixteenth_of_it() {
    let mut log = log();
    (0..8).for_each(|_| log.fill_block(0));
    assert!(!log.is_short());
    log.fill_block(0);
    assert!(log.is_short() && !volatile().is_short());
    assert_eq!(log.share_bytes_max(), PAYLOAD_BYTES);
    assert_eq!(log_of(Durability::Durable, 64).share_bytes_max(), 4 * PAYLOAD_BYTES);
    assert_eq!(volatile().share_bytes_max(), u64::MAX);
}

#[test]
fn the_newest_record_is_in_the_open_block_or_the_one_before() {
    let mut log = log();
    assert_eq!((log.newest(), log.append_at(0), log.newest()), (0, 1, 1));
    assert_eq!((log.barrier(), log.newest()), (1, 1));
    assert_eq!((log.append_at(0), log.newest()), (2, 2));
    let mut volatile = volatile();
    assert_eq!((volatile.append_at(0), volatile.newest(), volatile.barrier()), (0, 0, 0));
}

#[test]
fn a_block_is_sealed_when_its_first_record_is_old() {
    let mut log = log();
    log.append_at(5);
    log.append_at(7);
    assert_eq!(log.next_due_at(), at(5 + SEAL_MS));
    log.seal(at(4 + SEAL_MS), false, false);
    assert!(!log.has_sealed(), "others may share it");
    log.seal(at(5 + SEAL_MS), false, false);
    assert_eq!(log.sealed_bytes(), JOURNAL_BLOCK_BYTES);
    assert_eq!(log.next_due_at(), Time::NEVER);
    log.append_at(40);
    assert_eq!(log.next_due_at(), at(40 + SEAL_MS), "the time of the new block's first record");
    // A record that does not fit seals the block and is the first of the next.
    let mut ms = 41;
    while log.append_at(ms) == 2 {
        ms += 1;
    }
    assert_eq!(log.next_due_at(), at(ms + SEAL_MS));
    assert_eq!(log.sealed_bytes(), 2 * JOURNAL_BLOCK_BYTES);
}

#[test]
fn a_block_that_is_wanted_is_sealed_once_nothing_before_it_is_on_its_way() {
    for is_pressed in [true, false] {
        let mut log = log();
        let wait = |log: &mut Events| {
            let sequence = log.append_at(1);
            if !is_pressed {
                log.wait(sequence, Event::Answer(done(1)));
            }
        };
        log.append_at(1);
        log.seal(at(1), false, false);
        assert!(!log.has_sealed(), "nothing waits for it");
        wait(&mut log);
        log.seal(at(1), is_pressed, false);
        assert!(log.has_sealed());
        let write = log.take_blocks(1).expect("a block");
        wait(&mut log);
        log.seal(at(1), is_pressed, false);
        assert!(!log.has_sealed(), "a write is in progress");
        log.written(write.sequences.end);
        let flush = log.begin_flush(at(1), 1);
        log.seal(at(1), is_pressed, false);
        assert!(!log.has_sealed(), "a flush is in progress");
        log.flushed(flush);
        log.seal(at(1), is_pressed, false);
        assert!(log.has_sealed());
        // Age alone is enough, whatever is on its way.
        log.take_blocks(1).expect("a block");
        log.append_at(1);
        log.seal(at(1 + SEAL_MS), false, false);
        assert!(log.has_sealed());
    }
}

#[test]
fn the_delay_of_a_block_counts_from_its_first_acknowledgement_until_it_is_sent() {
    let mut log = log();
    log.append_at(5);
    assert!(log.may_promise(at(6)) && log.may_promise(at(8)));
    log.mark().expect("there is room");
    assert!(log.may_promise(at(9)), "no block is open");
    assert_eq!(log.sent(at(30)), None, "it waits for memory");
    log.append_at(10);
    assert!(log.may_promise(at(11)));
    log.mark().expect("there is room");
    log.take_blocks(1).expect("the first");
    assert_eq!(log.sent(at(30)), Some(Duration::from_millis(24)));
    assert_eq!(log.sent(at(31)), None, "it is counted once");
    log.take_blocks(1).expect("the second");
    assert_eq!(log.sent(at(31)), Some(Duration::from_millis(20)));
    // The longest of those that are sent together; a block that no acknowledgement is about has none.
    for (first, last) in [(40, 43), (50, 51), (60, 60)] {
        log.append_at(first);
        assert!(first == 60 || log.may_promise(at(last)));
        log.mark().expect("there is room");
    }
    log.take_blocks(3).expect("all of them");
    assert_eq!(log.sent(at(70)), Some(Duration::from_millis(27)));
    // A full block, which the next record seals.
    (0..7).for_each(|_| assert_eq!(log.append_at(80), 6));
    assert!(log.may_promise(at(80)));
    assert_eq!(log.append_at(81), 7);
    log.take_blocks(1).expect("the full one");
    assert_eq!(log.sent(at(90)), Some(Duration::from_millis(10)));
    assert_eq!(volatile().sent(at(90)), None);
}

#[test]
fn acknowledgements_are_early_in_a_restart_store_and_without_a_journal() {
    assert!(volatile().may_promise(at(0)) && !volatile().is_strict());
    assert!(log().may_promise(at(0)) && !log().is_strict());
    let mut durable = log_of(Durability::Durable, 16);
    assert!(!durable.may_promise(at(0)) && durable.is_strict());
}

#[test]
fn an_event_is_due_when_a_flush_that_began_after_its_block_was_written_ends_on_all_devices() {
    let mut log = log();
    let sequence = log.append_at(1);
    log.wait(sequence, Event::Answer(done(1)));
    assert!(log.has_settled(sequence) && !log.has_settled(sequence + 1));
    assert_eq!(log.next_due_at(), Time::ZERO, "the next turn seals its block");
    log.mark().expect("there is room");
    assert!(!log.is_awaited() && !log.is_written() && !log.has_written());
    let write = log.take_blocks(1).expect("a block");
    assert!(!log.is_written(), "a write is in progress");
    let early = log.begin_flush(at(2), 1);
    assert!(!log.can_flush(), "one flush at a time");
    log.written(write.sequences.end);
    assert!(log.is_awaited() && log.is_written() && log.has_written());
    log.flushed(early);
    assert!(log.next_due().is_none(), "it began before the block was written");
    assert_eq!(log.flush_numbers(), (1, 1));
    let flush = log.begin_flush(at(3), 2);
    assert_eq!((flush, log.flush_numbers()), (2, (2, 1)));
    log.flushed(early);
    log.flushed(flush);
    assert!(log.next_due().is_none(), "another device has not ended it");
    log.flushed(early);
    assert!(log.next_due().is_none(), "the end of an earlier flush");
    log.flushed(flush);
    assert_eq!((log.flush_numbers(), log.durable_end()), ((2, 2), 2));
    assert!(log.can_flush() && !log.has_written());
    assert_eq!(log.next_due_at(), Time::ZERO, "an event is due");
    let due = log.next_due().expect("it is durable");
    assert!(matches!(due, Due { sequence: 1, event: Event::Answer(Done { reply: 1, .. }) }));
    assert!(log.next_due().is_none() && !log.is_awaited() && log.has_settled(u64::MAX));
    assert_eq!(log.next_due_at(), Time::NEVER);
    assert_eq!((volatile().durable_end(), volatile().can_flush()), (u64::MAX, false));
}

#[test]
fn a_flush_that_is_abandoned_or_of_no_device_counts_for_what_it_did() {
    let mut log = log();
    log.fill_block(0);
    log.write_all();
    let flush = log.begin_flush(at(1), 1);
    log.abandon_flush(flush + 1);
    assert!(!log.can_flush(), "that was another");
    log.abandon_flush(flush);
    log.flushed(flush);
    assert_eq!((log.can_flush(), log.flush_numbers(), log.durable_end()), (true, (1, 0), 1));
    assert_eq!(log.begin_flush(at(2), 0), 2);
    assert_eq!((log.can_flush(), log.flush_numbers(), log.durable_end()), (true, (2, 2), 2));
}

#[test]
fn writes_end_in_any_order() {
    let mut log = log();
    (0..3).for_each(|_| log.fill_block(0));
    let ends: Vec<u64> =
        (0..3).map(|_| log.take_blocks(1).expect("a block").sequences.end).collect();
    assert_eq!((ends.as_slice(), log.sealed_bytes()), (&[2, 3, 4][..], 0));
    log.written(3);
    assert!(!log.has_written() && !log.is_written());
    log.written(2);
    assert_eq!(log.journal().expect("a journal").written_end(), 3);
    log.written(4);
    assert!(log.has_written() && log.is_written());
}

#[test]
fn everything_undurable_is_written_again_and_the_flush_in_progress_is_forgotten() {
    let mut log = log();
    log.fill_block(0);
    log.write_all();
    log.flush_at(1);
    (0..3).for_each(|_| log.fill_block(2));
    let first = log.take_blocks(1).expect("a block");
    log.written(first.sequences.end);
    log.take_blocks(1).expect("a block that stays in flight");
    let flush = log.begin_flush(at(3), 1);
    log.write_again();
    log.flushed(flush);
    assert_eq!((log.can_flush(), log.durable_end(), log.flush_numbers()), (true, 2, (2, 1)));
    assert_eq!(log.sealed_bytes(), 3 * JOURNAL_BLOCK_BYTES);
    assert_eq!(log.take_blocks(9).expect("all of it").sequences, 2..5);
    log.written(5);
    assert!(log.is_written());
}

#[test]
fn a_flush_is_due_by_the_clock_by_what_was_replaced_and_by_what_is_kept() {
    let mut log = log();
    assert!(!log.is_flush_due(at(FLUSH_MS - 1)) && log.is_flush_due(at(FLUSH_MS)));
    log.flush_at(500);
    assert!(!log.is_flush_due(at(499 + FLUSH_MS)) && log.is_flush_due(at(500 + FLUSH_MS)));
    (1..4096).for_each(|_| log.note_replaced(1));
    assert!(!log.is_flush_due(at(500)));
    log.note_replaced(1);
    assert!(log.is_flush_due(at(500)), "4096 objects were replaced");
    log.flush_at(500);
    assert!(!log.is_flush_due(at(500)), "they are flushed");
    log.note_replaced(32 << 20);
    log.note_replaced((32 << 20) - 1);
    assert!(!log.is_flush_due(at(500)));
    log.note_replaced(1);
    assert!(log.is_flush_due(at(500)), "64 MiB were replaced");
    log.flush_at(500);
    (0..3).for_each(|_| log.fill_block(500));
    log.write_all();
    assert!(!log.is_flush_due(at(500)));
    log.fill_block(500);
    log.write_all();
    assert!(log.is_flush_due(at(500)), "a fourth of the ring is kept");
    assert!(volatile().is_flush_due(at(FLUSH_MS)) && !volatile().is_flush_due(at(FLUSH_MS - 1)));
}

#[test]
fn a_long_ring_keeps_a_thousand_blocks_in_memory_before_a_flush_is_due() {
    let mut log = log_of(Durability::Restart, 8192);
    (1..1024).for_each(|_| log.fill_block(0));
    log.write_all();
    assert!(!log.is_flush_due(at(0)));
    log.fill_block(0);
    log.write_all();
    assert!(log.is_flush_due(at(0)));
}

#[test]
fn the_clock_flushes_what_is_written_unless_a_flush_is_in_progress() {
    let mut log = log();
    log.flush_at(7);
    log.fill_block(20);
    assert_eq!(log.next_due_at(), Time::NEVER, "it has to be written first");
    log.write_all();
    assert_eq!(log.next_due_at(), at(7 + FLUSH_MS));
    log.append_at(20);
    assert_eq!(log.next_due_at(), at(20 + SEAL_MS), "whichever is earlier");
    log.append_at(3 * FLUSH_MS);
    log.fill_block(3 * FLUSH_MS);
    log.begin_flush(at(3 * FLUSH_MS), 1);
    assert_eq!(log.next_due_at(), Time::NEVER);
    assert_eq!(volatile().next_due_at(), Time::NEVER);
}

#[test]
fn answers_in_vain_are_taken_and_their_puts_wait_on_in_order() {
    let mut log = log();
    let sequence = log.append_at(0);
    let events = [put(b"a", Some(1)), Event::Answer(done(2)), put(b"b", Some(3)), put(b"c", None)];
    events.into_iter().for_each(|event| log.wait(sequence, event));
    log.wait(sequence, Event::Answer(done(4)));
    let is_in_vain = |event: &Event<u64>| match event {
        Event::Put(new, _) => new.key.as_bytes() != b"b",
        Event::Answer(answer) => answer.reply == 2,
    };
    let mut taken = Vec::new();
    log.due.take_answers(is_in_vain, |done| taken.push(done.reply));
    assert_eq!(taken, [1, 2]);
    log.mark().expect("there is room");
    log.write_all();
    log.flush_at(1);
    let mut left = Vec::new();
    while let Some(Due { sequence: due, event }) = log.next_due() {
        assert_eq!(due, sequence);
        left.push(match event {
            Event::Put(new, answer) => (new.key.as_bytes().to_vec(), answer.map(|done| done.reply)),
            Event::Answer(answer) => (Vec::new(), Some(answer.reply)),
        });
    }
    let expected: [(&[u8], Option<u64>); 4] =
        [(b"a", None), (b"b", Some(3)), (b"c", None), (b"", Some(4))];
    assert_eq!(left, expected.map(|(key, reply)| (key.to_vec(), reply)));
}

#[test]
fn a_log_is_idle_when_nothing_is_open_sealed_in_flight_or_waiting() {
    let mut log = log();
    assert!(log.is_idle() && volatile().is_idle());
    log.append_at(0);
    assert!(!log.is_idle(), "a block is open");
    log.mark().expect("there is room");
    assert!(!log.is_idle(), "a block is sealed");
    let write = log.take_blocks(1).expect("a block");
    assert!(!log.is_idle(), "a write is in progress");
    log.written(write.sequences.end);
    assert!(log.is_idle(), "what is written is not flushed for its own sake");
    let flush = log.begin_flush(at(0), 1);
    assert!(!log.is_idle(), "a flush is in progress");
    log.flushed(flush);
    assert!(log.is_idle());
    let newest = log.newest();
    log.wait(newest, Event::Answer(done(1)));
    assert!(!log.is_idle(), "an event waits");
    let mut volatile = volatile();
    volatile.wait(0, Event::Answer(done(1)));
    assert!(!volatile.is_idle() && volatile.next_due().is_some() && volatile.is_idle());
}

#[test]
fn what_two_checkpoints_cover_is_free_again() {
    let mut log = log();
    (0..4).for_each(|_| log.fill_block(0));
    log.write_all();
    log.flush_at(0);
    assert_eq!(log.free_blocks(), 12);
    log.release(4);
    assert_eq!(log.free_blocks(), 15);
}

#[test]
fn a_block_is_sealed_when_as_many_puts_are_in_it_as_the_last_group_had() {
    let mut log = log();
    log.note_group(2);
    let first = log.append_at(0);
    log.await_data(first);
    log.seal(at(0), false, false);
    assert!(!log.has_sealed(), "another one may come");
    let second = log.append_at(0);
    log.await_data(second);
    log.seal(at(0), false, false);
    assert!(log.has_sealed());
    let write = log.take_blocks(1).expect("a block");
    log.written(write.sequences.end);
    for sequence in [first, second] {
        assert_eq!(log.ready_end(), first, "its data are being written");
        log.data_ended(sequence);
    }
    assert_eq!(log.ready_end(), first + 1);
    log.note_group(1);
    let flush = log.begin_flush(at(1), 1);
    let third = log.append_at(1);
    log.await_data(third);
    log.seal(at(1), false, false);
    assert!(!log.has_sealed(), "a flush is in progress");
    log.flushed(flush);
    log.seal(at(1), false, false);
    assert!(log.has_sealed());
}
