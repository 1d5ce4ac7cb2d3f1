//! Ages of objects after an opening: from checkpoints, from the journal, and from the last checkpoint of a clean stop.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, UNITS, form, format, is_checkpointing, next_checkpoint_at, options};
use crate::model::key::Key;
use crate::model::object::ObjectId;
use crate::model::options::{Durability, PolicyKind};
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, ShardOptions};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// Each object of this many is hot.
const HOT_STEP: usize = 8;
const COMMITTED: Result<Outcome, crate::shard::Failure> = Ok(Outcome::Committed);

fn id(rig: &Rig, key: u64) -> Option<ObjectId> {
    rig.shard.parts.objects.index().find(Key::from(key).as_bytes())
}

/// Returns how long ago an object was used.
fn age(rig: &Rig, key: u64) -> Option<u8> {
    Some(rig.shard.parts.objects.order().age(id(rig, key)?))
}

fn there(rig: &Rig, keys: u64) -> Vec<u64> {
    (0..keys).filter(|key| id(rig, *key).is_some()).collect()
}

fn checkpoints(rig: &Rig) -> u64 {
    rig.shard.stats().checkpoints
}

/// Opens a shard that has to evict when it has about 230 objects of `units`.
fn rig(units: u64, policy: PolicyKind) -> Rig {
    let devices = vec![TestDevice::new("memory:0", 240 * units + UNITS)];
    format(&devices, &form(64));
    Rig::open(devices, with(policy))
}

fn with(policy: PolicyKind) -> ShardOptions {
    ShardOptions { policy, ..options(Durability::Restart) }
}

fn evicted(rig: &Rig) -> u64 {
    rig.shard.stats().evictions.objects()
}

/// Puts objects with keys from `first` on until `count` were evicted. Returns the key behind the last.
fn put_until_evicted(rig: &mut Rig, first: u64, units: u64, count: u64) -> u64 {
    let before = evicted(rig);
    (first..)
        .find(|key| {
            assert_eq!(rig.put(*key, units), STORED);
            evicted(rig) - before >= count
        })
        .expect("a device is full at some time")
        + 1
}

fn use_all(rig: &mut Rig, keys: &[u64], units: u64) {
    for key in keys {
        assert!(matches!(rig.get(*key, units), Ok(Outcome::Hit { .. })), "{key}");
    }
}

/// Lets time pass, with a few turns at its end.
fn pass(rig: &mut Rig, time: Duration) {
    rig.now = rig.now + time;
    rig.turn(50);
}

fn close(rig: &mut Rig) {
    rig.shard.keep_ages(rig.now, SECOND * 5);
    while !rig.shard.is_idle() {
        rig.turn(1);
    }
}

#[test]
fn a_checkpoint_of_the_ages_lets_hot_objects_outlive_cold_ones_after_a_power_cut() {
    for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo] {
        let mut rig = rig(32, policy);
        let end = put_until_evicted(&mut rig, 0, 32, 1);
        let keys = there(&rig, end);
        pass(&mut rig, 15 * MINUTE);
        let before = checkpoints(&rig);
        let hot: Vec<u64> = keys.iter().copied().step_by(HOT_STEP).collect();
        use_all(&mut rig, &hot, 32);
        use_all(&mut rig, &hot, 32);
        let due = next_checkpoint_at(&rig.shard);
        assert!(due > rig.now && due != Time::NEVER, "ages moved");
        let turn = rig.shard.poll(rig.now, &mut |_| ());
        assert!(turn.next <= due, "the thread wakes up for it");
        let left = due.since(rig.now);
        assert!(left <= 8 * MINUTE, "as objects of 128 KiB allow: {left:?}");
        pass(&mut rig, left - SECOND);
        assert_eq!(checkpoints(&rig), before, "not yet");
        pass(&mut rig, SECOND);
        assert_eq!(checkpoints(&rig), before + 1);
        pass(&mut rig, 60 * MINUTE);
        assert_eq!(checkpoints(&rig), before + 1, "nothing was used since");
        assert_eq!(rig.put(end, 32), STORED, "what follows is in the journal");
        assert_eq!(rig.wait(Action::Commit), COMMITTED);
        let mut rig = rig.reopened(with(policy));
        assert_eq!(checkpoints(&rig), 0);
        put_until_evicted(&mut rig, end + 1, 32, keys.len() as u64 / 2);
        let lost = hot.iter().filter(|key| id(&rig, **key).is_none()).count();
        assert_eq!(lost, 0, "of {} hot objects by {policy}", hot.len());
    }
}

#[test]
fn objects_of_the_journal_go_in_the_order_of_their_puts() {
    let mut rig = rig(1, PolicyKind::Lru);
    let end = put_until_evicted(&mut rig, 0, 1, 1);
    let keys = there(&rig, end);
    for key in keys.iter().rev() {
        assert_eq!(rig.put(*key, 1), STORED, "replaced");
    }
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    let mut rig = rig.reopened(with(PolicyKind::Lru));
    let keys: Vec<u64> = keys.into_iter().filter(|key| id(&rig, *key).is_some()).collect();
    let ages: Vec<u8> = keys.iter().map(|key| age(&rig, *key).expect("it is there")).collect();
    assert!(ages.is_sorted(), "the first was put last: {ages:?}");
    put_until_evicted(&mut rig, end, 1, keys.len() as u64 / 2);
    assert!(keys[..keys.len() / 3].iter().all(|key| id(&rig, *key).is_some()));
    assert!(keys[keys.len() * 2 / 3..].iter().all(|key| id(&rig, *key).is_none()));
}

#[test]
fn a_last_checkpoint_keeps_each_age_and_is_taken_only_if_objects_were_used() {
    let mut rig = rig(1, PolicyKind::Lru);
    let end = put_until_evicted(&mut rig, 0, 1, 100);
    let keys = there(&rig, end);
    let hot: Vec<u64> = keys.iter().copied().step_by(3).collect();
    use_all(&mut rig, &hot, 1);
    let before = checkpoints(&rig);
    let ages = |rig: &Rig| keys.iter().map(|key| age(rig, *key)).collect::<Vec<_>>();
    let kept = ages(&rig);
    assert!(kept.iter().max() > kept.iter().min(), "{kept:?}");
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    close(&mut rig);
    assert_eq!(checkpoints(&rig), before + 1);
    for _ in 0..2 {
        rig = rig.reopened(with(PolicyKind::Lru));
        assert_eq!(ages(&rig), kept);
        close(&mut rig);
        assert_eq!(checkpoints(&rig), 0, "nothing was used");
    }
}

#[test]
fn a_last_checkpoint_may_take_seconds() {
    let mut rig = rig(1, PolicyKind::Lru);
    let end = put_until_evicted(&mut rig, 0, 1, 1);
    let keys = there(&rig, end);
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    use_all(&mut rig, &keys[..keys.len() / 2], 1);
    let ages = |rig: &Rig| keys.iter().map(|key| age(rig, *key)).collect::<Vec<_>>();
    let (before, kept) = (checkpoints(&rig), ages(&rig));
    rig.devices[0].medium().held = vec![Kind::Write];
    rig.shard.keep_ages(rig.now, SECOND * 5);
    rig.turn(2000);
    rig.devices[0].medium().held.clear();
    while !rig.shard.is_idle() {
        rig.turn(1);
    }
    assert_eq!(checkpoints(&rig), before + 1);
    assert_eq!(ages(&rig.reopened(with(PolicyKind::Lru))), kept);
}

#[test]
fn a_last_checkpoint_that_takes_long_is_abandoned() {
    for held in [Kind::Flush, Kind::Write] {
        let mut rig = rig(1, PolicyKind::Lru);
        let end = put_until_evicted(&mut rig, 0, 1, 1);
        let keys = there(&rig, end);
        assert_eq!(rig.wait(Action::Commit), COMMITTED);
        use_all(&mut rig, &keys, 1);
        let before = checkpoints(&rig);
        rig.devices[0].medium().held = vec![held];
        rig.shard.keep_ages(rig.now, Duration::from_millis(250));
        rig.turn(249);
        assert!(is_checkpointing(&rig.shard), "in time");
        rig.turn(2);
        assert!(!is_checkpointing(&rig.shard));
        rig.devices[0].medium().held.clear();
        rig.turn(5);
        assert!(rig.shard.is_idle(), "only what was in flight ends");
        assert_eq!(checkpoints(&rig), before);
        let rig = rig.reopened(with(PolicyKind::Lru));
        assert_eq!(there(&rig, end), keys);
    }
}

#[test]
fn checkpoints_of_the_ages_write_a_bounded_part_of_the_capacity_in_a_day() {
    for (units, most) in [(1, 24), (32, 240)] {
        let mut rig = rig(units, PolicyKind::Lru);
        let end = put_until_evicted(&mut rig, 0, units, 1);
        let keys = there(&rig, end);
        pass(&mut rig, 24 * 60 * MINUTE);
        let before = checkpoints(&rig);
        for _ in 0..24 * 60 {
            use_all(&mut rig, &keys[..keys.len() / 8], units);
            pass(&mut rig, MINUTE);
        }
        let taken = checkpoints(&rig) - before;
        let bytes = taken * rig.shard.parts.objects.record_bytes();
        assert!((1..=most).contains(&taken), "{taken} for objects of {units} units");
        let capacity_bytes = rig.capacity() * UNIT_BYTES;
        assert!(bytes <= capacity_bytes / 10 + bytes / taken, "{bytes} of {capacity_bytes}");
    }
}
