//! When a checkpoint begins, how much of it is written at a time, and what each of its steps waits for.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::journal_room::long_item;
use super::{Rig, STORED, form, format, is_checkpointing, item, options};
use crate::io::schedule::Class;
use crate::media::block::BODY_BLOCK_BYTES;
use crate::media::checkpoint::CHECKPOINT_HEADER_BYTES;
use crate::media::format::FormatOptions;
use crate::media::record::Record;
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES};
use crate::shard::checkpoints::body_pace;
use crate::shard::{Action, Outcome};

const BODY_BYTES: u64 = BODY_BLOCK_BYTES as u64;
const HEADER_BYTES: u64 = CHECKPOINT_HEADER_BYTES as u64;
/// Objects with long keys.
const LONG_OBJECTS: u32 = 600;

/// Returns a shard whose journal is empty and durable, with one object.
fn quiet() -> Rig {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    assert_eq!(rig.put(1, 1), STORED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.settle();
    rig
}

/// Opens a shard for as many objects as [`Rig::put_long`] puts. Their records take several blocks of a checkpoint, and
/// too few of the journal to matter.
pub(super) fn long_rig(key_bytes: u16) -> Rig {
    let devices = vec![TestDevice::new("memory:0", 2048)];
    format(&devices, &FormatOptions { objects_max: LONG_OBJECTS, key_bytes, ..form(512) });
    Rig::open(devices, options(Durability::Restart))
}

#[test]
fn blocks_that_are_almost_empty_make_a_checkpoint_due_later_than_full_ones() {
    // A ring of 1172 blocks, of which 391 are more than a third; 400,000 bytes of records fill 99.
    const FULL_BLOCKS: u64 = 99;
    const BLOCKS: u64 = 391;
    let rig = |durability| {
        let devices = vec![TestDevice::new("memory:0", 8192)];
        let (objects_max, journal_bytes) = (50_000, None);
        format(&devices, &FormatOptions { objects_max, journal_bytes, ..form(0) });
        Rig::open(devices, options(durability))
    };
    let mut rigs = [rig(Durability::Durable), rig(Durability::Restart)];
    let put = |rig: &mut Rig, count: u64| {
        let before = rig.blocks();
        while rig.shard.stats().checkpoints == 0 && !is_checkpointing(&rig.shard) {
            let tag = rig.submit_puts((0..count).map(|key| item(key, 1)));
            let mut left = count as usize;
            while left > 0 {
                rig.turn(1);
                left -= rig.taken(tag).len();
            }
        }
        rig.blocks() - before
    };
    assert!((BLOCKS..BLOCKS + 4).contains(&put(&mut rigs[0], 1)), "each has one record");
    assert!((FULL_BLOCKS..FULL_BLOCKS + 20).contains(&put(&mut rigs[1], 200)));
}

impl Rig {
    /// Requests a checkpoint at once.
    fn hurry(&mut self) {
        let (checkpoints, log) = (&mut self.shard.checkpoints, &mut self.shard.parts.log);
        checkpoints.as_mut().expect("a journal").hurry(log);
        self.shard.wake();
    }

    /// Takes a checkpoint.
    pub(super) fn checkpoint(&mut self) {
        self.hurry();
        self.turn(1);
        assert!(is_checkpointing(&self.shard));
        self.settle();
    }

    /// Seals blocks of one record each.
    fn seal_blocks(&mut self, count: u64) {
        for _ in 0..count {
            let place = Place { device: 0, unit: 0 };
            self.shard.parts.log.append(self.now, &Record::Delete { key: b"gone", place });
            self.shard.parts.log.mark().expect("there is room");
        }
        self.shard.wake();
    }

    /// Puts objects with long keys.
    pub(super) fn put_long(&mut self) {
        let tag = self.submit_puts((0..LONG_OBJECTS.into()).map(|key| long_item(key, 1)));
        self.settle();
        assert_eq!(self.taken(tag), vec![STORED; LONG_OBJECTS as usize]);
        assert_eq!(self.wait(Action::Commit), Ok(Outcome::Committed));
        self.settle();
    }

    fn hold(&mut self, kinds: &[Kind]) {
        self.devices[0].medium().held = kinds.to_vec();
    }

    /// Returns the checkpoints completed, the bytes of them sent, and the flushes begun.
    fn steps(&self) -> [u64; 3] {
        let stats = self.shard.stats();
        [stats.checkpoints, stats.checkpoint_bytes, stats.flushes]
    }
}

#[test]
fn a_checkpoint_of_one_block_takes_two_writes_and_two_flushes() {
    let mut rig = quiet();
    let [checkpoints, bytes, flushes] = rig.steps();
    rig.checkpoint();
    assert_eq!(rig.steps(), [checkpoints + 1, bytes + BODY_BYTES + HEADER_BYTES, flushes + 2]);
}

#[test]
fn a_checkpoint_begins_when_more_than_a_third_of_the_journal_follows_the_last_one() {
    let mut rig = quiet();
    rig.checkpoint();
    let before = rig.steps()[0];
    let third = rig.shard.parts.log.journal().expect("a journal").blocks() / 3;
    rig.seal_blocks(third);
    rig.turn(3);
    assert!(!is_checkpointing(&rig.shard));
    rig.seal_blocks(1);
    rig.turn(1);
    assert!(is_checkpointing(&rig.shard));
    rig.settle();
    assert_eq!(rig.steps()[0], before + 1);
}

#[test]
fn a_checkpoint_that_brings_no_room_is_not_taken_for_it() {
    let mut rig = quiet();
    rig.checkpoint();
    let before = rig.steps()[0];
    // The second one moves the tail to where the first began, and a third could not move it.
    for taken in [1, 1] {
        rig.shard.parts.log.request_checkpoint();
        rig.shard.wake();
        rig.turn(20);
        assert_eq!(rig.steps()[0], before + taken);
        assert!(!is_checkpointing(&rig.shard));
    }
    rig.seal_blocks(1);
    rig.turn(20);
    assert_eq!(rig.steps()[0], before + 2, "now there is something to release");
}

#[test]
fn a_body_is_written_faster_the_less_of_the_journal_is_free() {
    let mut rig = quiet();
    let blocks = rig.shard.parts.log.journal().expect("a journal").blocks();
    let fill_to = |rig: &mut Rig, free: u64| {
        while rig.shard.parts.log.journal().expect("a journal").free_blocks() > free {
            rig.seal_blocks(1);
        }
        body_pace(&rig.shard.parts.log)
    };
    assert_eq!(body_pace(&rig.shard.parts.log), (2, Class::Write));
    assert_eq!(fill_to(&mut rig, blocks / 2), (2, Class::Write));
    assert_eq!(fill_to(&mut rig, blocks / 2 - 1), (8, Class::Write));
    assert_eq!(fill_to(&mut rig, blocks / 4), (8, Class::Write));
    assert_eq!(fill_to(&mut rig, blocks / 4 - 1), (8, Class::Metadata));
}

#[test]
fn two_blocks_of_a_body_are_in_flight_while_the_journal_has_room() {
    let mut rig = long_rig(512);
    rig.put_long();
    let [checkpoints, bytes, _] = rig.steps();
    rig.hurry();
    rig.hold(&[Kind::Write]);
    // It begins, and begins to take records.
    rig.turn(2);
    assert_eq!(rig.steps()[1], bytes);
    for _ in 0..5 {
        rig.turn(1);
        assert_eq!(rig.steps()[1], bytes + 2 * BODY_BYTES);
    }
    rig.hold(&[]);
    rig.settle();
    // Counted with a slab and an expiry, which they have not.
    let unused_bytes = 13 * rig.shard.stats().objects;
    let blocks = (rig.shard.parts.objects.record_bytes() - unused_bytes).div_ceil(BODY_BYTES);
    assert!(blocks > 4, "{blocks} blocks");
    assert_eq!(rig.steps()[..2], [checkpoints + 1, bytes + blocks * BODY_BYTES + HEADER_BYTES]);
}

#[test]
fn a_body_is_flushed_once_it_is_written() {
    let mut rig = quiet();
    let [_, bytes, flushes] = rig.steps();
    rig.hold(&[Kind::Write]);
    rig.hurry();
    rig.turn(20);
    assert_eq!(rig.steps()[1..], [bytes + BODY_BYTES, flushes]);
    rig.hold(&[]);
    rig.turn(2);
    assert_eq!(rig.steps()[2], flushes + 1);
}

#[test]
fn a_body_is_flushed_together_with_the_journal_up_to_its_end() {
    let mut rig = quiet();
    let flushes = rig.steps()[2];
    rig.hold(&[Kind::Write]);
    rig.hurry();
    rig.turn(5);
    // A record, whose block is sealed when the body is written.
    rig.shard.tenant(rig.now, "a").expect("there is room");
    rig.hold(&[]);
    rig.turn(1);
    rig.hold(&[Kind::Write]);
    rig.turn(20);
    assert_eq!(rig.steps()[2], flushes, "the block is not written");
    rig.hold(&[]);
    rig.turn(2);
    assert_eq!(rig.steps()[2], flushes + 1);
}

#[test]
fn a_header_is_written_after_a_flush_that_began_behind_the_body() {
    // All of the journal is durable, so that nothing else holds the header back.
    let mut rig = quiet();
    let [checkpoints, bytes, flushes] = rig.steps();
    rig.hold(&[Kind::Flush]);
    rig.hurry();
    rig.turn(20);
    assert_eq!(rig.steps(), [checkpoints, bytes + BODY_BYTES, flushes + 1]);
    rig.hold(&[]);
    rig.turn(2);
    assert_eq!(rig.steps()[1], bytes + BODY_BYTES + HEADER_BYTES);
}

#[test]
fn records_are_taken_once_the_puts_before_the_begin_are_visible() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    let bytes = rig.steps()[1];
    rig.hold(&[Kind::Flush]);
    let put = rig.submit(Time::NEVER, Action::Put(item(1, 1)));
    rig.turn(5);
    assert_eq!(rig.shard.parts.log.newest(), 1, "it is recorded");
    assert_eq!(rig.taken(put), [], "it is not durable");
    rig.hurry();
    rig.turn(20);
    assert_eq!((rig.taken(put), rig.steps()[1]), (vec![], bytes));
    rig.hold(&[]);
    rig.settle();
    assert_eq!(rig.taken(put), [STORED]);
    assert_eq!(rig.steps()[1], bytes + BODY_BYTES + HEADER_BYTES);
}

#[test]
fn the_checkpoint_in_progress_is_lost_with_its_device() {
    for held in [Kind::Write, Kind::Flush] {
        let mut rig = quiet();
        let before = rig.steps()[0];
        rig.hold(&[held]);
        rig.hurry();
        rig.turn(5);
        assert!(is_checkpointing(&rig.shard));
        rig.devices[0].medium().is_dead = true;
        rig.turn(3);
        rig.devices[0].medium().is_dead = false;
        rig.hold(&[]);
        rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
        assert!(!is_checkpointing(&rig.shard), "with {held:?} held");
        rig.checkpoint();
        assert_eq!(rig.steps()[0], before + 1);
    }
}

#[test]
fn a_checkpoint_begins_when_no_block_of_one_that_did_not_fit_is_in_flight() {
    let mut rig = long_rig(32);
    // Keys that are longer than the store was formatted for.
    rig.shard.parts.room.set_record_bytes_max(u64::MAX);
    rig.put_long();
    rig.hurry();
    rig.devices[0].medium().commands_per_poll = Some(1);
    rig.turn(2);
    while is_checkpointing(&rig.shard) {
        rig.turn(1);
    }
    assert_eq!(rig.steps()[0], 0, "it was given up");
    rig.hold(&[Kind::Write]);
    rig.hurry();
    rig.turn(10);
    assert!(!is_checkpointing(&rig.shard), "its last block may land in the slot of the next");
    rig.hold(&[]);
    rig.turn(1);
    assert!(is_checkpointing(&rig.shard));
}

#[test]
fn a_checkpoint_for_the_ages_is_due_after_a_minute_or_as_the_capacity_allows() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    for key in 0..all * 2 {
        assert_eq!(rig.put(key, 1), STORED);
    }
    let ticks = rig.shard.parts.objects.order().ticks();
    assert!(ticks >= 1, "{ticks}");
    let at = rig.now;
    let due_after = |rig: &mut Rig, ticks_since: u64, record_bytes: u64| {
        let checkpoints = rig.shard.checkpoints.as_mut().expect("a journal");
        checkpoints.set_kept_ages(ticks - ticks_since, at);
        rig.shard.parts.objects.set_record_bytes(record_bytes);
        checkpoints.ages_due_at(&rig.shard.parts.objects)
    };
    assert_eq!(due_after(&mut rig, 0, 0), Time::NEVER);
    assert_eq!(due_after(&mut rig, 1, 0), at + Duration::from_secs(60));
    // 1/128 of the capacity, a tenth of which may be written in a day.
    let record_bytes = all * UNIT_BYTES / 128;
    assert_eq!(due_after(&mut rig, 1, record_bytes), at + Duration::from_secs(6750));
}
