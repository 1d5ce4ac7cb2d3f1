//! When puts of a `durable` store are recorded, acknowledged and visible: after one flush if their key is new, which
//! covers data and record, and after two if it is there; and what comes back after a cut, a failure or damage.

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, device_failed, hit, item, options};
use crate::media::record::record_bytes;
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Failure, Outcome};

const MISS: Result<Outcome, Failure> = Ok(Outcome::Miss);

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

    /// Polls without time passing.
    fn still(&mut self, turns: u32) {
        for _ in 0..turns {
            let answers = &mut self.answers;
            self.shard.poll(self.now, &mut |done| answers.push(done));
        }
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
    let (flushes, blocks) = (rig.shard.stats().flushes, rig.blocks());
    let tags: Vec<u64> =
        (10..42u64).map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1)))).collect();
    rig.still(6);
    assert!(tags.into_iter().all(|tag| rig.taken(tag) == [STORED]));
    assert_eq!(rig.shard.stats().flushes - flushes, 1);
    assert!(rig.blocks() - blocks <= 2, "their records share blocks");
}

#[test]
fn a_put_of_a_new_key_is_recorded_while_its_data_are_written_and_answered_without_the_clock() {
    let mut rig = durable(1);
    rig.still(4);
    for key in [1, 2] {
        let before = rig.blocks();
        rig.devices[0].medium().held = vec![Kind::Write, Kind::Flush];
        let tag = rig.submit(Time::NEVER, Action::Put(item(key, 4)));
        rig.still(1);
        assert_eq!(rig.blocks(), before + 1, "data and record are in flight together");
        rig.devices[0].medium().held = vec![Kind::Flush];
        rig.still(2);
        assert_eq!(rig.taken(tag), [], "neither is flushed");
        rig.let_go();
        rig.still(1);
        assert_eq!(rig.taken(tag), [STORED]);
    }
}

#[test]
fn a_group_waits_for_as_many_puts_as_the_last_one_had_and_no_longer_than_its_first_data() {
    let mut rig = durable(1);
    let put = |rig: &mut Rig, key: u64| rig.submit(Time::NEVER, Action::Put(item(key, 1)));
    let group: Vec<u64> = (0..3).map(|key| put(&mut rig, key)).collect();
    rig.still(6);
    assert!(group.into_iter().all(|tag| rig.taken(tag) == [STORED]));
    let before = rig.blocks();
    rig.devices[0].medium().held = vec![Kind::Write];
    let group = [3, 4, 5].map(|key| {
        assert_eq!(rig.blocks(), before, "others may follow");
        let tag = put(&mut rig, key);
        rig.still(2);
        tag
    });
    assert_eq!(rig.blocks(), before + 1, "all are there");
    rig.let_go();
    rig.still(6);
    assert!(group.into_iter().all(|tag| rig.taken(tag) == [STORED]));
    let flushes = rig.shard.stats().flushes;
    let alone = put(&mut rig, 6);
    rig.still(6);
    assert_eq!((rig.taken(alone), rig.shard.stats().flushes - flushes), (vec![STORED], 1));
    rig.devices[0].medium().held = vec![Kind::Write];
    put(&mut rig, 7);
    rig.still(1);
    assert_eq!(rig.blocks(), before + 3, "after one alone the next waits for none");
}

#[test]
fn puts_that_waited_for_a_flush_share_the_next_with_those_that_come_at_its_end() {
    let mut rig = durable(1);
    rig.hold_flushes();
    let put = |rig: &mut Rig, key: u64| {
        let tag = rig.submit(Time::NEVER, Action::Put(item(key, 1)));
        rig.still(3);
        tag
    };
    let first = put(&mut rig, 1);
    let flushes = rig.shard.stats().flushes;
    let second = put(&mut rig, 2);
    rig.let_go();
    rig.still(1);
    assert_eq!([first, second].map(|tag| rig.taken(tag)), [vec![STORED], vec![]]);
    // The caller of the first goes on.
    let third = put(&mut rig, 3);
    rig.still(3);
    assert_eq!([second, third].map(|tag| rig.taken(tag)), [[STORED], [STORED]]);
    assert_eq!(rig.shard.stats().flushes, flushes + 1);
    // Now none does.
    let fourth = put(&mut rig, 4);
    rig.still(6);
    assert_eq!(rig.taken(fourth), [STORED], "it waits for no more");
}

#[test]
fn no_flush_covers_a_record_whose_data_are_being_written() {
    let mut rig = durable(2);
    assert!((0..2).all(|key| rig.put(key, 1) == STORED));
    let (before, flushed) = (rig.shard.stats().flushes, rig.shard.flushed_end());
    rig.devices[1].medium().held = vec![Kind::Write];
    // One on each device, and a delete behind them.
    let tags = [2u64, 3].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(5);
    let delete = rig.submit(Time::NEVER, Action::Delete(0u64.into()));
    rig.turn(50);
    assert_eq!((rig.shard.stats().flushes, rig.shard.flushed_end()), (before, flushed));
    assert_eq!([tags[0], tags[1], delete].map(|tag| rig.taken(tag)), [vec![], vec![], vec![]]);
    // A cut now takes nothing that was acknowledged.
    let devices = rig.devices.iter().map(|device| device.after_power_cut(true)).collect();
    let mut cut = Rig::open(devices, options(Durability::Durable));
    assert_eq!(cut.get(1, 1), hit(1));
    rig.let_go();
    rig.turn(50);
    assert_eq!(tags.map(|tag| rig.taken(tag)), [[STORED], [STORED]]);
    assert_eq!(rig.taken(delete), [Ok(Outcome::Deleted)]);
}

#[test]
fn a_cut_may_take_the_data_of_a_new_key_which_is_then_a_counted_miss() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 2), STORED);
    let (before, start) = (rig.shard.stats().journal_bytes, rig.data_start());
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
fn a_record_whose_data_cannot_be_written_is_taken_back() {
    let mut rig = durable(1);
    assert_eq!(rig.put(1, 4), STORED);
    let (before, used) = (rig.blocks(), rig.shard.stats().used_units);
    rig.fail_next_data();
    rig.hold_flushes();
    let tag = rig.submit(Time::NEVER, Action::Put(item(2, 5)));
    rig.turn(50);
    assert_eq!(rig.taken(tag), [], "a kill could still bring it back");
    // A put behind it is not taken back.
    let next = rig.submit(Time::NEVER, Action::Put(item(2, 3)));
    rig.turn(50);
    rig.let_go();
    rig.turn(50);
    let failed = rig.taken(tag);
    assert!(failed.len() == 1 && device_failed(0, &failed[0]), "{failed:?}");
    assert!(rig.blocks() > before, "it was recorded");
    assert_eq!((rig.taken(next), rig.get(2, 3)), (vec![STORED], hit(3)));
    rig.fail_next_data();
    assert!(device_failed(0, &rig.wait(Action::Put(item(3, 5)))));
    assert_eq!(rig.put(4, 1), STORED);
    assert_eq!(rig.shard.stats().used_units, used + 4, "the room of both is free again");
    let mut cut =
        Rig::open(vec![rig.devices[0].after_power_cut(false)], options(Durability::Durable));
    let found = [1, 2, 3, 4].map(|key| cut.get(key, 5));
    assert_eq!(found, [hit(4), hit(3), MISS, hit(1)]);
    assert_eq!(cut.shard.stats().misses_corrupt, 0);
    assert_eq!((rig.put(3, 5), rig.get(3, 5)), (STORED, hit(5)));
    assert_eq!(rig.flushes_of(Action::Put(item(5, 5))), 1, "the reservations are released");
}

#[test]
fn without_room_to_take_it_back_a_put_is_recorded_when_its_data_are_written() {
    let mut rig = durable(1);
    let key_bytes = Key::from(1u64).as_bytes().len();
    let [record, removal] = [1, 0].map(|checksums| record_bytes(key_bytes, checksums) as u64);
    let mut reserved = 0;
    while rig.shard.parts.log.has_room(record + removal) {
        rig.shard.parts.log.reserve(1);
        reserved += 1;
    }
    let before = rig.blocks();
    rig.devices[0].medium().held = vec![Kind::Write];
    let tag = rig.submit(Time::NEVER, Action::Put(item(1, 4)));
    rig.still(3);
    assert!(!rig.shard.parts.log.journal().expect("one").has_unsealed(), "it is not recorded");
    assert_eq!(rig.blocks(), before);
    rig.let_go();
    rig.turn(50);
    assert_eq!((rig.taken(tag), rig.blocks()), (vec![STORED], before + 1));
    rig.shard.parts.log.unreserve(reserved);
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
fn a_cut_amid_put_remove_put_leaves_the_last_acknowledged_or_nothing_and_never_the_first() {
    // Whether the removal is durable before the second put begins, and what the cut takes: its data or nothing.
    for (is_removed, is_lost) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut rig = durable(1);
        assert_eq!((rig.put(1, 2), rig.put(2, 1)), (STORED, STORED));
        let start = rig.data_start();
        if is_removed {
            assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
        }
        rig.hold_flushes();
        let delete = (!is_removed).then(|| rig.submit(Time::NEVER, Action::Delete(1u64.into())));
        let tag = rig.submit(Time::NEVER, Action::Put(item(1, 4)));
        rig.turn(20);
        assert!(delete.into_iter().chain([tag]).all(|tag| rig.taken(tag).is_empty()));
        let lost = |unit: u64| is_lost && unit >= start + 3;
        let devices = vec![rig.devices[0].after_loss(lost)];
        let mut cut = Rig::open(devices, options(Durability::Durable));
        let expected = if is_lost { MISS } else { hit(4) };
        assert_eq!((cut.get(1, 4), cut.get(2, 1)), (expected, hit(1)));
        // All that is not flushed, records included.
        let mut cut =
            Rig::open(vec![rig.devices[0].after_power_cut(false)], options(Durability::Durable));
        assert_eq!(cut.get(1, 4), if is_removed { MISS } else { hit(2) });
        rig.let_go();
        rig.turn(50);
        assert_eq!((rig.taken(tag), rig.get(1, 4)), (vec![STORED], hit(4)));
        // Acknowledged and then damaged.
        let damaged = rig.devices[0].after_power_cut(true);
        let (from, to) = ((start + 3) * UNIT_BYTES, (start + 7) * UNIT_BYTES);
        damaged.medium().bytes[from as usize..to as usize].fill(0xee);
        let mut cut = Rig::open(vec![damaged], options(Durability::Durable));
        assert_eq!(cut.get(1, 4), MISS);
    }
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
