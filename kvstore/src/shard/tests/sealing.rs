//! When the blocks of a `restart` store go to their device: in time, whatever else is in flight.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, UNITS, form, format, item, options};
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, PutItem};

/// Milliseconds that a record waits for others.
const INTERVAL_MS: u32 = 10;
const DELETED: Result<Outcome, crate::shard::Failure> = Ok(Outcome::Deleted);

impl Rig {
    /// Returns the journal blocks that were given to the device.
    pub(super) fn blocks(&self) -> u64 {
        self.shard.stats().journal_bytes / UNIT_BYTES
    }

    fn delay_max(&self) -> Duration {
        Duration::from_nanos(self.shard.stats().journal_delay_max_ns)
    }
}

/// Returns a store with some objects, all of it committed, and no block open.
fn committed(journal_units: u64, keys: u64) -> Rig {
    let devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    format(&devices, &form(journal_units));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    for key in 0..keys {
        assert_eq!(rig.put(key, 1), STORED);
    }
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    rig
}

#[test]
fn a_block_is_sent_when_its_first_record_is_ten_milliseconds_old_and_not_before() {
    let mut rig = committed(64, 1);
    let before = rig.blocks();
    for key in 0..u64::from(INTERVAL_MS) {
        assert_eq!(rig.put(key, 1), STORED);
    }
    // The first record is 10 ms old only in the next turn but one, because a put takes a turn.
    while rig.blocks() == before {
        rig.turn(1);
    }
    let delay = rig.delay_max();
    assert_eq!(delay, Duration::from_millis(INTERVAL_MS.into()), "neither early nor late");
    assert_eq!(rig.blocks(), before + 1, "they share a block");
}

#[test]
fn a_record_is_on_its_way_in_time_while_a_flush_is_in_flight() {
    let mut rig = committed(64, 1);
    rig.devices[0].medium().held = vec![Kind::Flush];
    assert_eq!(rig.put(1, 1), STORED);
    let commit = rig.submit(Time::NEVER, Action::Commit);
    rig.turn(5);
    for round in 0..20 {
        let before = rig.blocks();
        assert_eq!(rig.put(2, 1), STORED);
        rig.turn(INTERVAL_MS);
        assert_eq!(rig.blocks(), before + 1, "round {round}");
    }
    assert_eq!(rig.taken(commit), [], "the flush is still in flight");
    assert!(rig.delay_max() <= Duration::from_millis(INTERVAL_MS.into()), "{:?}", rig.delay_max());
    let devices = rig.devices.iter().map(|device| device.after_power_cut(true)).collect();
    let mut rig = Rig::open(devices, options(Durability::Restart));
    for key in [1, 2] {
        assert_eq!(rig.get(key, 1), Ok(Outcome::Hit { bytes: UNIT_BYTES }), "a kill keeps {key}");
    }
}

#[test]
fn a_record_is_on_its_way_in_time_while_the_blocks_before_it_are_in_flight() {
    let mut rig = committed(256, 60);
    // Deletes write nothing but their records.
    rig.devices[0].depth = 128;
    rig.devices[0].medium().held = vec![Kind::Write, Kind::Flush];
    for key in 0..28u64 {
        let before = rig.blocks();
        assert_eq!(rig.wait(Action::Delete(key.into())), DELETED);
        rig.turn(INTERVAL_MS);
        assert_eq!(rig.blocks(), before + 1, "after {key} blocks in flight");
    }
    assert!(rig.delay_max() <= Duration::from_millis(INTERVAL_MS.into()), "{:?}", rig.delay_max());
}

#[test]
fn an_acknowledgement_waits_where_the_journal_has_no_room_to_send_its_block_in_time() {
    let long = |number: u64| {
        let key = Key::new(&[&[9; 500][..], &number.to_be_bytes()].concat()).expect("a key");
        Action::Put(PutItem { key, ..item(number, 1) })
    };
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let slow = |rig: &mut Rig, commands: usize| {
        rig.devices[0].medium().commands_per_poll = Some(commands);
        rig.turn(1);
    };
    slow(&mut rig, 0);
    // As many as there is room reserved for in the journal.
    let mut tags = Vec::new();
    while rig.shard.waiting() == 0 {
        tags.push(rig.submit(Time::NEVER, long(tags.len() as u64)));
    }
    // Each put ends alone, so that its block would be sealed for it alone.
    let mut stored_late = false;
    for _ in 0..100 {
        let before = rig.shard.stats().objects;
        slow(&mut rig, 1);
        stored_late |= rig.shard.stats().objects > before && rig.answers.is_empty();
        (0..INTERVAL_MS).for_each(|_| slow(&mut rig, 0));
        rig.answers.clear();
    }
    assert!(stored_late, "no acknowledgement waited");
    rig.devices[0].medium().commands_per_poll = None;
    rig.turn(100);
    assert_eq!((rig.shard.waiting(), rig.shard.stats().objects), (0, tags.len() as u64));
    assert!(rig.delay_max() <= Duration::from_millis(INTERVAL_MS.into()), "{:?}", rig.delay_max());
}
