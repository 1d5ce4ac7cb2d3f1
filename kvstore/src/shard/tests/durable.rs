//! When puts of a `durable` store are recorded, acknowledged and visible: after one flush if their key is new, after two
//! if it is there.

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::overwriting::data_start;
use super::{Rig, STORED, device_failed, item, options};
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Failure, Outcome};

const MISS: Result<Outcome, Failure> = Ok(Outcome::Miss);

fn hit(units: u64) -> Result<Outcome, Failure> {
    Ok(Outcome::Hit { bytes: units * UNIT_BYTES })
}

fn durable(devices: usize) -> Rig {
    Rig::new(devices, 64, options(Durability::Durable))
}

impl Rig {
    /// Returns how many flushes a change takes.
    fn flushes_of(&mut self, action: Action) -> u64 {
        let before = self.shard.stats().flushes;
        assert!(matches!(self.wait(action), Ok(Outcome::Stored | Outcome::Deleted)));
        self.shard.stats().flushes - before
    }

    /// Keeps flushes in flight on all devices.
    fn hold_flushes(&mut self) {
        self.devices.iter().for_each(|device| device.medium().held = vec![Kind::Flush]);
    }

    fn let_go(&mut self) {
        self.devices.iter().for_each(|device| device.medium().held.clear());
    }
}

#[test]
fn a_put_of_a_new_key_takes_one_flush_and_one_of_a_key_that_is_there_two() {
    let mut rig = durable(1);
    assert_eq!(rig.flushes_of(Action::Put(item(1, 4))), 1);
    assert_eq!(rig.flushes_of(Action::Put(item(1, 3))), 2);
    assert_eq!(rig.flushes_of(Action::Delete(1u64.into())), 1);
    assert_eq!(rig.flushes_of(Action::Put(item(1, 2))), 1, "it is new again");
    // Those in flight together share it.
    let before = rig.shard.stats().flushes;
    let tag = rig.submit_puts((10..20).map(|key| item(key, 1)));
    rig.turn(20);
    assert_eq!((rig.taken(tag), rig.shard.stats().flushes - before), (vec![STORED; 10], 1));
}

#[test]
fn a_cut_may_take_the_data_of_a_new_key_which_is_then_a_counted_miss() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 2), STORED);
    let (before, start) = (rig.shard.stats().journal_bytes, data_start(&rig));
    rig.hold_flushes();
    let tags = [2u64, 3].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 3))));
    rig.turn(20);
    assert!(rig.shard.stats().journal_bytes > before, "one flush is to cover data and record");
    for key in [2u64, 3] {
        assert!(rig.shard.info(rig.now, &key.into()).is_none(), "it is not durable yet");
    }
    assert_eq!(tags.map(|tag| rig.taken(tag)), [vec![], vec![]]);
    for lost in 0..4u64 {
        // Key 1 lies in the first two units of data, keys 2 and 3 in the next three each.
        let is_lost = |unit: u64| unit >= start && lost >> ((unit - start - 2) / 3) & 1 == 1;
        let devices = vec![rig.devices[0].after_loss(is_lost)];
        let mut rig = Rig::open(devices, options(Durability::Durable));
        let found = [2, 3].map(|key| rig.get(key, 3));
        assert_eq!(found, [0, 1].map(|bit| if lost >> bit & 1 == 1 { MISS } else { hit(3) }));
        assert_eq!(rig.shard.stats().misses_corrupt, u64::from(lost.count_ones()));
        assert_eq!(rig.get(1, 2), hit(2), "what was acknowledged is there");
        assert_eq!((rig.put(2, 4), rig.get(2, 4)), (STORED, hit(4)));
    }
}

#[test]
fn a_record_of_a_key_that_is_there_is_written_only_when_its_data_are_flushed() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 4), STORED);
    let before = rig.shard.stats().journal_bytes;
    rig.hold_flushes();
    let tag = rig.submit(Time::NEVER, Action::Put(item(1, 4)));
    rig.turn(50);
    assert_eq!(rig.shard.stats().journal_bytes, before, "a cut could take the data and leave it");
    assert!(!rig.shard.is_idle());
    rig.let_go();
    rig.turn(50);
    assert_eq!(rig.taken(tag), [STORED]);
    assert!(rig.shard.stats().journal_bytes > before);
}

#[test]
fn a_put_of_a_key_whose_first_put_is_not_durable_yet_counts_as_one_of_a_key_that_is_there() {
    let mut rig = durable(2);
    rig.hold_flushes();
    let first = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
    rig.turn(20);
    let before = rig.shard.stats().journal_bytes;
    assert!(before > 0);
    let tags = [3, 4].map(|units| rig.submit(Time::NEVER, Action::Put(item(1, units))));
    rig.turn(20);
    assert_eq!(rig.shard.stats().journal_bytes, before, "the first could not come back");
    // Another flush begins when the first has ended, and stays in flight.
    rig.let_go();
    while rig.taken(first) != [STORED] {
        rig.turn(1);
    }
    rig.hold_flushes();
    rig.turn(20);
    let after_cut = |device: &TestDevice| device.after_loss(|_| true);
    let mut cut =
        Rig::open(rig.devices.iter().map(after_cut).collect(), options(Durability::Durable));
    assert!(matches!(cut.get(1, 4), Ok(Outcome::Hit { .. })), "the first was acknowledged");
    rig.let_go();
    rig.turn(50);
    assert_eq!(tags.map(|tag| rig.taken(tag)), [[STORED], [STORED]]);
    assert_eq!(rig.get(1, 4), hit(4));
}

#[test]
fn a_put_that_waits_for_the_flush_of_its_data_is_given_back_when_the_device_is_lost() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 4), STORED);
    let used = rig.shard.stats().used_units;
    rig.hold_flushes();
    let tag = rig.submit(Time::NEVER, Action::Put(item(1, 5)));
    rig.turn(50);
    rig.devices[0].medium().is_dead = true;
    rig.turn(50);
    let answers = rig.taken(tag);
    assert!(answers.len() == 1 && device_failed(0, &answers[0]), "{answers:?}");
    rig.devices[0].medium().is_dead = false;
    rig.let_go();
    rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
    assert_eq!(rig.shard.stats().used_units, used, "it never was an object");
    assert_eq!(rig.get(1, 4), hit(4));
    assert_eq!(rig.flushes_of(Action::Put(item(1, 5))), 2, "nothing of its key is under way");
    assert_eq!(rig.flushes_of(Action::Delete(1u64.into())), 1);
    assert_eq!(rig.flushes_of(Action::Put(item(1, 5))), 1);
}

#[test]
fn a_put_whose_device_forgot_its_data_fails_and_is_a_miss_when_its_record_is_written_again() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 4), STORED);
    rig.hold_flushes();
    let tag = rig.submit(Time::NEVER, Action::Put(item(2, 4)));
    rig.turn(50);
    rig.let_go();
    rig.lose_cache(0);
    rig.settle();
    let answers = rig.taken(tag);
    assert!(answers.len() == 1 && device_failed(0, &answers[0]), "{answers:?}");
    assert_eq!((rig.get(2, 4), rig.get(1, 4)), (MISS, hit(4)));
    assert_eq!(rig.shard.stats().misses_corrupt, 1);
    assert_eq!((rig.put(2, 5), rig.get(2, 5)), (STORED, hit(5)));
    let mut rig = rig.reopened(options(Durability::Durable));
    assert_eq!((rig.get(2, 5), rig.get(1, 4)), (hit(5), hit(4)));
}
