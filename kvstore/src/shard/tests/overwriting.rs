//! Objects that are replaced in a `restart` store before a power cut, which takes any part of what was not flushed.

use std::time::Duration;

use adit_driver::Time;

use super::device::TestDevice;
use super::{Rig, SHAPE, STORED, UNITS, form, format, get, hit, item, layout, options, surveyed};
use crate::model::layout::BlockShape;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, PutItem, PutOptions, ShardOptions};

/// Keys from 1 on: the data of key 0 is that of a blank device.
const KEYS: u64 = 6;

/// Returns a store with so much room that replaced objects are no reason to flush.
fn roomy() -> Rig {
    let devices = vec![TestDevice::new("memory:0", 16 * UNITS)];
    format(&devices, &form(64));
    Rig::open(devices, options(Durability::Restart))
}

/// Returns a store with a committed version of each key, and records of newer ones on the device that are not flushed.
fn overwritten() -> Rig {
    let mut rig = roomy();
    for key in 1..=KEYS {
        assert_eq!(rig.put(key, 2), STORED);
    }
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    for key in 1..=KEYS {
        assert_eq!(rig.put(key, 3), STORED);
    }
    rig.turn(20);
    rig
}

fn opened_without(rig: &Rig, is_lost: impl FnMut(u64) -> bool) -> Rig {
    Rig::open(vec![rig.devices[0].after_loss(is_lost)], options(Durability::Restart))
}

#[test]
fn an_overwritten_object_survives_a_cut() {
    let rig = overwritten();
    let start = rig.data_start();
    // The cut takes the data of some of the new versions and none of the records.
    for lost in 0..1u64 << KEYS {
        let is_lost = |unit: u64| unit >= start && lost >> ((unit - start) / 3 % KEYS) & 1 == 1;
        let mut rig = opened_without(&rig, is_lost);
        let found: Vec<bool> = (1..=KEYS).map(|key| rig.get(key, 3) == hit(3)).collect();
        let old = (1..=KEYS).filter(|key| rig.get(*key, 3) == hit(2)).count();
        let new = found.into_iter().filter(|is_new| *is_new).count();
        assert_eq!((old as u32, (old + new) as u64), (lost.count_ones(), KEYS), "{lost:b}");
        assert_eq!(rig.shard.stats().misses_corrupt, 0);
    }
}

#[test]
fn what_came_back_in_an_older_version_stays_so_at_the_next_opening() {
    let rig = overwritten();
    let start = rig.data_start();
    let mut rig = opened_without(&rig, |unit| unit >= start);
    assert_eq!(rig.recovery.recovered.as_ref().map(|found| found.reverted), Some(KEYS));
    assert_eq!(rig.shard.stats().checkpoints, 1, "the opening ends with a checkpoint");
    for round in 0..3 {
        for key in 1..=KEYS {
            assert_eq!(rig.get(key, 3), hit(2), "round {round}");
        }
        assert_eq!(surveyed(&rig.devices[0]).0, KEYS as usize + round as usize);
        // Takes the room of the lost versions.
        assert_eq!(rig.put(100 + round, 3 * KEYS), STORED);
        rig.turn(20);
        rig = rig.reopened_after_kill();
        assert_eq!(rig.recovery.recovered.as_ref().map(|found| found.reverted), Some(0));
        assert_eq!(rig.shard.stats().checkpoints, 0, "it needs none");
    }
}

impl Rig {
    /// Reopens the devices with all that was written.
    fn reopened_after_kill(self) -> Rig {
        Rig::open(vec![self.devices[0].after_power_cut(true)], options(Durability::Restart))
    }
}

#[test]
fn a_kill_keeps_the_newest_version() {
    let mut rig = overwritten().reopened_after_kill();
    for key in 1..=KEYS {
        assert_eq!(rig.get(key, 3), hit(3));
    }
}

#[test]
fn a_durable_version_that_is_damaged_is_a_miss_and_never_an_older_one() {
    // However soon after its answer the cut comes.
    for waits in [0, 1, 9, 30] {
        let mut rig = Rig::new(1, 64, options(Durability::Durable));
        assert_eq!((rig.put(1, 2), rig.put(1, 3)), (STORED, STORED));
        rig.turn(waits);
        let start = rig.data_start();
        let damaged = rig.devices[0].after_power_cut(true);
        let (from, to) = ((start + 2) * UNIT_BYTES, (start + 5) * UNIT_BYTES);
        damaged.medium().bytes[from as usize..to as usize].fill(0xee);
        let mut rig = Rig::open(vec![damaged], options(Durability::Durable));
        assert_eq!(rig.get(1, 3), Ok(Outcome::Miss), "after {waits} ms");
        assert_eq!(rig.shard.stats().misses_corrupt, 1);
    }
}

#[test]
fn a_delete_of_a_version_that_a_cut_took_does_not_bring_back_the_older_one() {
    let mut rig = overwritten();
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    rig.turn(20);
    let start = rig.data_start();
    let mut rig = opened_without(&rig, |unit| unit >= start);
    assert_eq!(rig.get(1, 3), Ok(Outcome::Miss));
    assert_eq!(rig.get(2, 3), hit(2));
}

#[test]
fn an_overwritten_kv_block_survives_a_cut() {
    let mut rig = roomy();
    let layout = layout(&mut rig, BlockShape { tensors_per_layer: 2, ..SHAPE }, 4);
    let block = |fill: u64| {
        let put = PutItem { key: 1u64.into(), ..item(fill, 4) };
        Action::Put(PutItem { options: PutOptions { layout, ..PutOptions::default() }, ..put })
    };
    assert_eq!(rig.wait(block(1)), STORED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    assert_eq!(rig.wait(block(2)), STORED);
    rig.turn(20);
    let start = rig.data_start();
    for (is_lost, first) in [(true, 1), (false, 2)] {
        let mut rig = opened_without(&rig, |unit| is_lost && unit >= start);
        let tag = rig.submit(Time::NEVER, get(1, 4));
        rig.turn(5);
        let done = rig.answers.pop().expect("an answer");
        assert_eq!((done.reply, done.result), (tag, hit(4)));
        let adit_driver::memory::AnyBuffer::One(memory) = done.memory else { panic!("one buffer") };
        assert_eq!(memory[0], first);
    }
}

#[test]
fn what_an_expired_object_replaced_never_comes_back() {
    let mut rig = roomy();
    let start = rig.data_start();
    assert_eq!((rig.put(1, 2), rig.put(2, 1)), (STORED, STORED));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let short = PutOptions { ttl_s: Some(1), ..PutOptions::default() };
    let put = PutItem { options: short, ..item(1, 3) };
    assert_eq!(rig.wait(Action::Put(put)), STORED);
    rig.turn(20);
    let later =
        ShardOptions { wall_at_zero: Duration::from_secs(10), ..options(Durability::Restart) };
    let mut rig = Rig::open(vec![rig.devices[0].after_power_cut(true)], later.clone());
    assert_eq!(rig.get(1, 3), Ok(Outcome::Miss));
    // As long as the expired object, whose place is the run that fits best.
    assert_eq!(rig.put(3, 3), STORED);
    // The cut takes the records of this session, and none of its data.
    let mut rig = Rig::open(vec![rig.devices[0].after_loss(|unit| unit < start)], later);
    assert_eq!((rig.get(1, 3), rig.get(3, 3)), (Ok(Outcome::Miss), Ok(Outcome::Miss)));
}

#[test]
fn a_flush_comes_before_much_is_replaced() {
    for (count, bytes) in [(1, 64 << 20), (4096, 1)] {
        let mut rig = roomy();
        assert_eq!(rig.put(1, 1), STORED);
        rig.turn(20);
        let before = rig.shard.stats().flushes;
        (0..count - 1).for_each(|_| rig.shard.parts.log.note_replaced(bytes));
        rig.turn(20);
        assert_eq!(rig.shard.stats().flushes, before, "{count} objects of {bytes} bytes");
        rig.shard.parts.log.note_replaced(bytes);
        assert_eq!(rig.put(2, 1), STORED);
        rig.turn(20);
        assert_eq!(rig.shard.stats().flushes, before + 1, "{count} objects of {bytes} bytes");
    }
}
