//! When devices are flushed, and which answers fail with a device.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, UNITS, device_failed, form, format, item, options};
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Failure, Outcome, ShardOptions};

const DELETED: Result<Outcome, Failure> = Ok(Outcome::Deleted);
const COMMITTED: Result<Outcome, Failure> = Ok(Outcome::Committed);

/// Returns a store of one device with `keys` objects of one unit, all of it durable. Its clock never flushes.
fn committed(keys: u64) -> Rig {
    let devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    format(&devices, &form(64));
    let never = Duration::from_secs(1 << 20);
    let options = ShardOptions { flush_interval: never, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    assert!((0..keys).all(|key| rig.put(key, 1) == STORED));
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    rig.settle();
    rig
}

/// Returns a durable store of two devices, with objects 0 and 1, one on each.
fn durable_pair() -> Rig {
    let mut rig = Rig::new(2, 64, options(Durability::Durable));
    let tags = [0u64, 1].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(50);
    assert_eq!(tags.map(|tag| rig.taken(tag)), [[STORED], [STORED]]);
    rig
}

impl Rig {
    /// Returns the devices of the keys whose puts with these tags are answered as stored.
    fn stored(&mut self, keys: [u64; 2], tags: [u64; 2]) -> Vec<Option<u8>> {
        let stored: Vec<u64> = (keys.into_iter().zip(tags))
            .filter(|(_, tag)| self.taken(*tag) == [STORED])
            .map(|(key, _)| key)
            .collect();
        let device = |key: u64| self.shard.info(self.now, &key.into()).map(|info| info.device);
        stored.into_iter().map(device).collect()
    }
}

#[test]
fn blocks_of_a_journal_beyond_a_boundary_are_a_write_of_their_own() {
    let mut device = TestDevice::new("memory:0", 8 * UNITS);
    device.boundary_bytes = 2 * UNIT_BYTES;
    let devices = vec![device.clone()];
    format(&devices, &form(64));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    let keys = 0..1000u64;
    assert!(keys.clone().all(|key| rig.put(key, 1) == STORED));
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    rig.settle();
    let before = rig.shard.stats().journal_bytes;
    // One turn seals several blocks, and the commands of a write end in several.
    device.medium().commands_per_poll = Some(1);
    let tags: Vec<u64> =
        keys.map(|key| rig.submit(Time::NEVER, Action::Delete(key.into()))).collect();
    rig.turn(100);
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    // Some were evicted by later puts.
    let are_gone = |tag| matches!(rig.taken(tag)[..], [Ok(Outcome::Deleted | Outcome::Miss)]);
    assert!(tags.into_iter().all(are_gone));
    let blocks = (rig.shard.stats().journal_bytes - before) / UNIT_BYTES;
    assert!(blocks > 1, "{blocks} blocks, so that a write meets a boundary");
}

#[test]
fn buried_space_is_worth_a_flush_above_a_sixty_fourth_of_the_capacity_or_if_it_is_waited_for() {
    let mut rig = committed(40);
    let most = rig.capacity() / 64;
    assert!((3..39).contains(&most));
    let before = rig.shard.stats().flushes;
    for key in 0..most {
        assert_eq!(rig.wait(Action::Delete(key.into())), DELETED);
    }
    rig.turn(30);
    assert_eq!(rig.shard.stats().flushes, before, "little is buried, and nothing waits for it");
    assert_eq!(rig.wait(Action::Delete(most.into())), DELETED);
    rig.turn(30);
    let after = rig.shard.stats().flushes;
    assert!(after > before && rig.shard.parts.objects.spaces().buried_units() <= most);
    rig.turn(30);
    assert_eq!(rig.shard.stats().flushes, after, "little is buried again");
    let put = rig.submit(Time::NEVER, Action::Put(item(100, rig.capacity())));
    rig.turn(100);
    assert_eq!(rig.taken(put), [STORED], "it waited for the room of all others");
    assert!(rig.shard.stats().flushes > after);
}

#[test]
fn what_is_written_is_flushed_by_the_clock_or_when_an_answer_waits_for_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    rig.turn(1);
    let (before, at) = (rig.shard.stats().flushes, rig.now);
    assert_eq!(rig.put(1, 1), STORED);
    // The clock of the flush begins with the last one, at the opening.
    while rig.now < Time::ZERO + Duration::from_millis(990) {
        rig.turn(1);
        assert_eq!(rig.shard.stats().flushes, before);
    }
    assert!(rig.now.since(at) > Duration::from_millis(900));
    rig.turn(20);
    assert_eq!(rig.shard.stats().flushes, before + 1);
    assert_eq!(rig.put(1, 1), STORED);
    rig.turn(30);
    assert_eq!(rig.shard.stats().flushes, before + 1);
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    assert_eq!(rig.shard.stats().flushes, before + 2);
}

#[test]
fn only_devices_that_were_written_to_and_the_journals_are_flushed() {
    let mut rig = Rig::new(3, 64, options(Durability::Restart));
    let flushes = |rig: &mut Rig| {
        let before = rig.shard.stats().flushes;
        assert_eq!(rig.wait(Action::Commit), COMMITTED);
        rig.turn(3);
        rig.shard.stats().flushes - before
    };
    assert!((0..3).all(|key| rig.put(key, 1) == STORED));
    assert_eq!(flushes(&mut rig), 3, "each has an object");
    assert_eq!(rig.wait(Action::Delete(0u64.into())), DELETED);
    assert_eq!(flushes(&mut rig), 1, "a record is all there is");
    let device = |key: u64| rig.shard.info(rig.now, &key.into()).expect("it is there").device;
    let other = [1, 2].map(device).into_iter().find(|device| *device != 0);
    let other = other.expect("two of them are not the journal's");
    rig.devices[usize::from(other)].medium().is_dead = true;
    rig.turn(3);
    assert_eq!(rig.put(4, 1), STORED);
    assert_eq!(rig.put(5, 1), STORED);
    assert_eq!(flushes(&mut rig), 2, "all that work");
}

#[test]
fn only_what_lies_on_a_failed_device_fails_with_it() {
    let mut rig = durable_pair();
    let before = rig.shard.stats().journal_bytes;
    let tags = [2u64, 3].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    while rig.shard.stats().journal_bytes == before {
        rig.turn(1);
    }
    // Their data is flushed, and their records are not.
    rig.devices[0].medium().held = vec![Kind::Flush];
    let delete = rig.submit(Time::NEVER, Action::Delete(0u64.into()));
    let commit = rig.submit(Time::NEVER, Action::Commit);
    rig.turn(20);
    rig.devices[1].medium().is_dead = true;
    rig.turn(3);
    let answers: Vec<_> = tags.iter().flat_map(|tag| rig.taken(*tag)).collect();
    assert!(answers.len() == 1 && device_failed(1, &answers[0]), "{answers:?}");
    assert_eq!(
        (rig.taken(delete), rig.taken(commit)),
        (vec![], vec![]),
        "nothing of theirs is lost"
    );
    rig.devices[0].medium().held.clear();
    rig.turn(30);
    let stored = rig.stored([2, 3], tags);
    assert_eq!(stored, [Some(0)], "what lies on the device that works");
    assert_eq!((rig.taken(delete), rig.taken(commit)), (vec![DELETED], vec![COMMITTED]));
}

#[test]
fn a_commit_fails_with_a_device_that_has_not_flushed_and_a_delete_does_not() {
    let mut rig = durable_pair();
    // The second device ends its flush, and is written to again.
    rig.devices[0].medium().held = vec![Kind::Flush];
    let first = [2u64, 3].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(10);
    // The records of what replaces objects wait for another flush.
    let second = [0u64, 1].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    let delete = rig.submit(Time::NEVER, Action::Delete(9u64.into()));
    let commit = rig.submit(Time::NEVER, Action::Commit);
    rig.turn(10);
    assert!(rig.shard.parts.lanes[1].is_dirty);
    rig.devices[1].medium().is_dead = true;
    rig.turn(3);
    let answers = rig.taken(commit);
    assert!(answers.len() == 1 && device_failed(1, &answers[0]), "{answers:?}");
    assert_eq!(rig.taken(delete), []);
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    assert_eq!(rig.taken(delete), [Ok(Outcome::Miss)]);
    for (keys, tags) in [([2, 3], first), ([0, 1], second)] {
        assert_eq!(rig.stored(keys, tags), [Some(0)], "the other lay on the device that failed");
    }
}
