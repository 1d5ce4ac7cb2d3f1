//! A device that lost its volatile cache between its failure and its return.

use std::time::Duration;

use adit_driver::Time;

use super::device::Kind;
use super::{Rig, STORED, UNITS, device_failed, get, hit, item, options};
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome};

const HIT: Result<Outcome, crate::shard::Failure> = Ok(Outcome::Hit { bytes: UNIT_BYTES });

impl Rig {
    /// Fails the device, drops its unflushed data, and reattaches it.
    pub(super) fn lose_cache(&mut self, device: usize) {
        self.devices[device].medium().is_dead = true;
        self.turn(3);
        self.devices[device].medium().lose_cache();
        self.devices[device].medium().is_dead = false;
        let lane = self.devices[device].lane();
        self.shard.attach(device as u8, lane).expect("it failed and is idle");
    }

    /// Returns how many of the one-unit objects with these keys are hits.
    fn hits(&mut self, keys: std::ops::Range<u64>) -> usize {
        keys.filter(|key| self.wait(get(*key, 1)) == HIT).count()
    }
}

#[test]
fn a_device_that_failed_is_replaced_by_one_of_its_size() {
    let mut rig = Rig::new(2, 64, options(Durability::Restart));
    rig.devices[1].medium().is_dead = true;
    rig.turn(3);
    let failed = |rig: &Rig| [0, 1, 2].map(|device| rig.shard.has_failed(device));
    assert_eq!(failed(&rig), [false, true, false], "there are two");
    let larger = rig.devices[1].resized(UNITS + 1);
    assert!(rig.shard.attach(1, larger.lane()).is_err());
    assert_eq!(failed(&rig), [false, true, false]);
    rig.devices[1].medium().is_dead = false;
    rig.shard.attach(1, rig.devices[1].lane()).expect("it failed and is idle");
    assert_eq!(failed(&rig), [false; 3]);
}

#[test]
fn a_put_that_waited_for_its_turn_while_its_device_lost_its_cache_fails() {
    let mut rig = Rig::new(2, 64, options(Durability::Durable));
    rig.devices[0].medium().held = vec![Kind::Write];
    // The first goes to device 0, the next to device 1.
    let first = rig.submit(Time::NEVER, Action::Put(item(1, 1)));
    let second = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
    rig.turn(5);
    rig.lose_cache(1);
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    assert_eq!(rig.taken(first), [STORED]);
    let answers = rig.taken(second);
    assert!(answers.len() == 1 && device_failed(1, &answers[0]), "{answers:?}");
    assert_eq!(rig.get(1, 1), hit(1));
}

#[test]
fn what_is_durable_after_the_journals_device_lost_its_cache_is_there_at_the_next_opening() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 64, options(durability));
        for key in 0..10 {
            assert_eq!(rig.put(key, 1), STORED);
        }
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        // Written but not flushed: the records of some puts, and of unanswered deletes.
        rig.devices[0].medium().held = vec![Kind::Flush];
        for key in 10..14 {
            rig.submit(Time::NEVER, Action::Put(item(key, 1)));
            rig.submit(Time::NEVER, Action::Delete((key - 10).into()));
        }
        rig.turn(40);
        rig.devices[0].medium().held.clear();
        rig.lose_cache(0);
        rig.settle();
        for key in 20..30 {
            assert_eq!(rig.put(key, 1), STORED);
        }
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        let mut rig = rig.reopened(options(durability));
        assert_eq!(rig.hits(20..30), 10, "{durability:?}");
        assert_eq!(rig.hits(4..10), 6, "{durability:?}");
        let blocks_behind = rig.recovery.recovered.as_ref().map(|found| found.blocks_behind);
        assert_eq!(blocks_behind, Some(0), "{durability:?}");
    }
}

#[test]
fn a_flush_that_another_device_ends_after_the_journals_came_back_says_nothing_of_it() {
    let mut rig = Rig::new(2, 64, options(Durability::Durable));
    rig.devices[1].medium().held = vec![Kind::Flush];
    let tags = [0u64, 1].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(20);
    rig.lose_cache(0);
    let tag = rig.submit(Time::NEVER, Action::Put(item(2, 1)));
    rig.turn(20);
    assert_eq!(rig.taken(tag), [], "its device may be the one that has not flushed");
    rig.devices[1].medium().held.clear();
    rig.turn(50);
    assert_eq!(rig.taken(tag), [STORED]);
    assert_eq!(tags.map(|tag| rig.taken(tag).len()), [1, 1]);
    let mut rig = rig.reopened(options(Durability::Durable));
    assert_eq!(rig.hits(2..3), 1);
}

#[test]
fn a_journal_that_is_never_flushed_by_the_clock_is_flushed_before_it_takes_much_memory() {
    let never = Duration::from_secs(1 << 20);
    let rare = crate::shard::ShardOptions { flush_interval: never, ..options(Durability::Restart) };
    let mut rig = Rig::new(1, 64, rare);
    let before = rig.shard.stats().flushes;
    for _ in 0..40 {
        // One block each, because the clock seals what was appended.
        assert_eq!(rig.put(1, 1), STORED);
        rig.turn(15);
        let kept =
            rig.shard.parts.log.journal().map(crate::media::journal::Journal::undurable_blocks);
        assert!(kept.is_some_and(|blocks| blocks <= 17));
    }
    assert!(rig.shard.stats().flushes > before);
}
