//! Conditional changes, versions, other expiries, and objects without bytes.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{Kind, memory};
use super::{Rig, STORED, device_failed, form, format, get, item, options};
use crate::model::key::Key;
use crate::model::object::Version;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::tests::device::TestDevice;
use crate::shard::{
    Action, Condition, Failure, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, ReserveItem,
    ShardOptions, TouchItem,
};

const DURABILITIES: [Durability; 3] =
    [Durability::Volatile, Durability::Restart, Durability::Durable];
const MISS: Result<Outcome, Failure> = Ok(Outcome::Miss);
const TOUCHED: Result<Outcome, Failure> = Ok(Outcome::Touched);

/// Returns a put of `units` if the condition holds.
fn put_if(key: u64, units: u64, condition: Condition) -> PutItem {
    let options = PutOptions { condition, ..PutOptions::default() };
    PutItem { options, ..item(key, units) }
}

fn conflict(found: Option<Version>) -> Result<Outcome, Failure> {
    Err(Failure::Conflict { found })
}

fn touch(key: u64, ttl_s: Option<u64>) -> Action {
    Action::Touch(TouchItem { key: key.into(), ttl_s })
}

fn get_if(key: u64, units: u64, version: Version) -> Action {
    let into = AnyBuffer::One(memory((units * UNIT_BYTES) as usize));
    let (part, version) = (Part::All, Some(version));
    Action::Get(GetItem { key: key.into(), part, into, version })
}

fn at(seconds: u64, durability: Durability) -> ShardOptions {
    ShardOptions { wall_at_zero: Duration::from_secs(seconds), ..options(durability) }
}

impl Rig {
    fn put_if(&mut self, key: u64, condition: Condition) -> Result<Outcome, Failure> {
        self.wait(Action::Put(put_if(key, 1, condition)))
    }

    fn version(&self, key: u64) -> Option<Version> {
        self.shard.info(self.now, &key.into()).map(|info| info.version)
    }

    fn ttl_s(&self, key: u64) -> Option<u64> {
        self.shard.info(self.now, &key.into()).expect("it is there").ttl_s
    }
}

#[test]
fn a_condition_holds_for_the_version_that_is_there_and_for_no_other() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        let some = Condition::Version(Version(1));
        assert_eq!(rig.put_if(1, some), conflict(None), "{durability:?}");
        assert_eq!(rig.put_if(1, Condition::Absent), STORED);
        let first = rig.version(1);
        assert_eq!(rig.put_if(1, Condition::Absent), conflict(first));
        assert_eq!(rig.put_if(1, some), conflict(first));
        assert_eq!(rig.version(1), first, "nothing changed");
        assert_eq!(rig.put_if(1, Condition::Version(first.expect("stored"))), STORED);
        let second = rig.version(1);
        assert!(second > first, "{durability:?}: {second:?} after {first:?}");
        let delete =
            |version: Option<Version>| Action::DeleteIf(1u64.into(), version.expect("a version"));
        assert_eq!(rig.wait(delete(first)), conflict(second));
        assert_eq!(rig.wait(delete(second)), Ok(Outcome::Deleted));
        assert_eq!(rig.wait(delete(second)), conflict(None));
        rig.turn(2000);
        assert_eq!(rig.shard.stats().used_units, 0, "{durability:?}: all room is free");
    }
}

#[test]
fn what_is_certain_to_fail_writes_nothing_and_gives_its_memory_back() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert_eq!(rig.put(1, 4), STORED);
    let before = rig.shard.stats().bytes_to_device;
    let tag = rig.submit(Time::NEVER, Action::Put(put_if(1, 4, Condition::Absent)));
    rig.turn(1);
    let done = rig.answers.pop().expect("an answer");
    assert_eq!((done.reply, done.result), (tag, conflict(rig.version(1))));
    assert!(matches!(done.memory, AnyBuffer::One(memory) if memory.len() as u64 == 4 * UNIT_BYTES));
    assert_eq!(rig.shard.stats().bytes_to_device, before);
}

#[test]
fn an_answer_names_the_version_that_it_stored_or_read() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        let version = |rig: &mut Rig, action| {
            rig.submit(Time::NEVER, action);
            rig.turn(50);
            rig.answers.pop().expect("an answer").version
        };
        let stored = version(&mut rig, Action::Put(item(1, 2)));
        assert!(stored.is_some() && stored == rig.version(1), "{durability:?}");
        assert_eq!(version(&mut rig, get(1, 2)), stored);
        rig.shard.lend_to_tier([memory(64 << 12)]);
        assert_eq!(version(&mut rig, get(1, 2)), stored);
        assert_eq!(version(&mut rig, get(1, 2)), stored, "from memory");
        assert_eq!(rig.shard.stats().tier_hits, 1);
        assert_eq!(version(&mut rig, get(2, 2)), None, "a miss");
        let now = rig.version(1).expect("stored");
        let other = Version(now.0 + 1);
        assert_eq!(rig.wait(get_if(1, 2, now)), Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES }));
        assert_eq!(rig.wait(get_if(1, 2, other)), conflict(Some(now)));
        assert_eq!(rig.wait(get_if(2, 2, other)), MISS);
    }
}

#[test]
fn a_condition_is_checked_behind_the_changes_that_were_submitted_before() {
    for durability in DURABILITIES {
        for fails in [false, true] {
            let mut rig = Rig::new(2, 64, options(durability));
            rig.devices[0].medium().held = vec![Kind::Write];
            let slow = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
            rig.turn(3);
            let absent = rig.submit(Time::NEVER, Action::Put(put_if(1, 3, Condition::Absent)));
            rig.turn(30);
            assert_eq!(rig.taken(absent), [], "{durability:?}: nobody knows yet");
            if fails {
                rig.fail_next_data();
            }
            rig.devices[0].medium().held.clear();
            rig.turn(100);
            let (slow, absent) = (rig.taken(slow), rig.taken(absent));
            if fails {
                assert!(slow[0].is_err() && absent == [STORED], "{durability:?}: {absent:?}");
            } else {
                let found = rig.version(1);
                assert_eq!((slow, absent), (vec![STORED], vec![conflict(found)]), "{durability:?}");
            }
        }
    }
}

#[test]
fn of_many_conditional_puts_in_one_batch_one_is_stored() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        for condition in [Condition::Absent, Condition::Version(Version(0))] {
            let condition = match condition {
                Condition::Version(_) => Condition::Version(rig.version(1).expect("stored")),
                other => other,
            };
            let tag = rig.submit_puts((1..9).map(|units| put_if(1, units, condition)));
            rig.turn(200);
            let answers = rig.taken(tag);
            let found = rig.version(1);
            let (stored, others): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|answer| *answer == STORED);
            assert_eq!((stored.len(), others), (1, vec![conflict(found); 7]), "{durability:?}");
        }
    }
}

#[test]
fn a_durable_put_under_way_is_what_a_condition_is_about() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    rig.devices[0].medium().held = vec![Kind::Flush];
    let first = rig.submit(Time::NEVER, Action::Put(item(1, 1)));
    rig.turn(20);
    let absent = rig.submit(Time::NEVER, Action::Put(put_if(1, 2, Condition::Absent)));
    let touching = rig.submit(Time::NEVER, touch(1, Some(9)));
    rig.turn(20);
    assert_eq!((rig.version(1), rig.taken(absent), rig.taken(touching)), (None, vec![], vec![]));
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    let found = rig.version(1);
    assert_eq!((rig.taken(first), rig.taken(absent)), (vec![STORED], vec![conflict(found)]));
    assert_eq!((rig.taken(touching), rig.ttl_s(1)), (vec![TOUCHED], Some(9)));
}

#[test]
fn a_condition_on_a_put_that_a_lost_device_keeps_from_ending_fails_at_once() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    rig.devices[0].medium().held = vec![Kind::Flush];
    let first = rig.submit(Time::NEVER, Action::Put(item(1, 1)));
    rig.turn(20);
    let waiting = rig.submit(Time::NEVER, Action::Put(put_if(1, 1, Condition::Absent)));
    rig.turn(5);
    rig.devices[0].medium().is_dead = true;
    rig.turn(20);
    let later = rig.submit(Time::NEVER, Action::Put(put_if(1, 1, Condition::Absent)));
    let touching = rig.submit(Time::NEVER, touch(1, Some(5)));
    rig.turn(20);
    for tag in [first, waiting, later, touching] {
        let answers = rig.taken(tag);
        assert!(answers.len() == 1 && device_failed(0, &answers[0]), "{tag}: {answers:?}");
    }
}

#[test]
fn an_expired_object_is_absent() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        let short = PutOptions { ttl_s: Some(1), ..PutOptions::default() };
        assert_eq!(rig.wait(Action::Put(PutItem { options: short, ..item(1, 1) })), STORED);
        let was = rig.version(1).expect("stored");
        rig.now = rig.now + Duration::from_secs(5);
        assert_eq!(rig.put_if(1, Condition::Version(was)), conflict(None), "{durability:?}");
        assert_eq!(rig.wait(touch(1, Some(10))), MISS);
        assert_eq!(rig.put_if(1, Condition::Absent), STORED);
        assert!(rig.version(1) > Some(was));
    }
}

#[test]
fn a_writers_condition_is_checked_when_it_is_sealed() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        let reserve = |rig: &mut Rig| {
            let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
            let item = ReserveItem { key: 1u64.into(), bytes: 4096, options };
            rig.wait(Action::Reserve(item))
        };
        let writers = [(); 2].map(|()| match reserve(&mut rig) {
            Ok(Outcome::Reserved { writer, .. }) => writer,
            other => panic!("{other:?}"),
        });
        for writer in writers {
            let fill = FillItem { writer, part: Part::All, data: AnyBuffer::One(memory(4096)) };
            assert_eq!(rig.wait(Action::Fill(fill)), Ok(Outcome::Filled));
        }
        let sealed = writers.map(|writer| rig.wait(Action::Seal(writer)));
        let found = rig.version(1);
        assert_eq!(sealed, [STORED, conflict(found)], "{durability:?}");
        assert_eq!(reserve(&mut rig), conflict(found), "at once");
    }
}

#[test]
fn versions_survive_a_restart_and_rise_also_when_the_clock_was_set_back() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 64, at(1_000_000, durability));
        (0..40).for_each(|key| assert_eq!(rig.put(key, 1), STORED));
        let before: Vec<_> = (0..40).map(|key| rig.version(key)).collect();
        assert!(before.windows(2).all(|two| two[0] < two[1]), "{before:?}");
        let last = before[39].expect("stored");
        let when = last.time().expect("a time").duration_since(std::time::UNIX_EPOCH);
        assert_eq!(when.expect("after 1970").as_secs(), 1_000_000);
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        for earlier in [2_000_000, 500_000, 10] {
            rig = rig.reopened(at(earlier, durability));
            assert_eq!((0..40).map(|key| rig.version(key)).collect::<Vec<_>>(), before);
            assert_eq!(rig.put_if(3, Condition::Absent), conflict(before[3]));
        }
        // The clock stands before all of them.
        assert_eq!(rig.put_if(3, Condition::Version(before[3].expect("stored"))), STORED);
        assert_eq!(rig.version(3), Some(Version(last.0 + 1)));
    }
}

#[test]
fn versions_and_expiries_come_from_checkpoints_too() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    assert_eq!((rig.put(1, 1), rig.put(2, 1)), (STORED, STORED));
    assert_eq!(rig.wait(touch(2, Some(1000))), TOUCHED);
    let before = [1, 2].map(|key| rig.version(key));
    for round in 0..2000 {
        assert_eq!(rig.put(100 + round % 3, 1), STORED);
    }
    assert!(rig.shard.stats().checkpoints > 1, "the journal has gone round");
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let rig = rig.reopened(options(Durability::Restart));
    assert_eq!([1, 2].map(|key| rig.version(key)), before);
    assert_eq!((rig.ttl_s(1), rig.ttl_s(2).is_some()), (None, true));
}

#[test]
fn a_touch_sets_an_expiry_that_stays_and_nothing_else() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(1, 64, options(durability));
        assert_eq!(rig.wait(touch(1, Some(5))), MISS, "{durability:?}");
        assert_eq!(rig.put(1, 2), STORED);
        let (version, written) = (rig.version(1), rig.shard.stats().bytes_written);
        assert_eq!((rig.wait(touch(1, Some(5))), rig.ttl_s(1)), (TOUCHED, Some(5)));
        assert_eq!((rig.wait(touch(1, None)), rig.ttl_s(1)), (TOUCHED, None));
        assert_eq!((rig.wait(touch(1, Some(7))), rig.ttl_s(1)), (TOUCHED, Some(7)));
        assert_eq!((rig.version(1), rig.shard.stats().bytes_written), (version, written));
        assert_eq!(rig.get(1, 2), Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES }));
        if durability != Durability::Volatile {
            assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
            rig = rig.reopened(options(durability));
            assert_eq!((rig.version(1), rig.ttl_s(1)), (version, Some(7)), "{durability:?}");
            assert_eq!(rig.get(1, 2), Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES }));
        }
        rig.now = rig.now + Duration::from_secs(8);
        rig.turn(2);
        assert_eq!((rig.version(1), rig.shard.stats().expirations), (None, 1), "{durability:?}");
    }
}

#[test]
fn a_touch_waits_for_the_put_before_it_and_not_the_other_way() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(2, 64, options(durability));
        rig.devices[0].medium().held = vec![Kind::Write];
        let slow = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
        rig.turn(3);
        let touching = rig.submit(Time::NEVER, touch(1, Some(50)));
        let last = rig.submit(Time::NEVER, Action::Put(item(2, 1)));
        rig.turn(20);
        assert_eq!(rig.taken(touching), [], "{durability:?}");
        rig.devices[0].medium().held.clear();
        rig.turn(100);
        let answers = [slow, touching, last].map(|tag| rig.taken(tag).pop());
        assert_eq!(answers, [Some(STORED), Some(TOUCHED), Some(STORED)], "{durability:?}");
        assert_eq!(rig.ttl_s(1), Some(50));
    }
}

/// A power cut takes the data of an object, but not the record of its other expiry: what it replaced counts.
#[test]
fn a_touch_does_not_make_a_lost_put_count() {
    for is_lost in [true, false] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        assert_eq!(rig.put(1, 1), STORED);
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        assert_eq!(rig.put(1, 2), STORED);
        assert_eq!(rig.wait(touch(1, Some(90))), TOUCHED);
        // Blocks are written and not flushed.
        rig.turn(20);
        let start = rig.data_start();
        let cut = rig.devices[0].after_loss(|unit| is_lost && unit >= start);
        let mut rig = Rig::open(vec![cut], options(Durability::Restart));
        let (units, ttl_s) = if is_lost { (1, None) } else { (2, Some(90)) };
        assert_eq!(rig.get(1, units), Ok(Outcome::Hit { bytes: units * UNIT_BYTES }));
        assert_eq!(rig.ttl_s(1), ttl_s);
    }
}

#[test]
fn a_touch_goes_on_when_a_full_journal_has_room_again() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    assert_eq!(rig.put(1, 1), STORED);
    for round in 1..3000 {
        assert_eq!(rig.wait(touch(1, Some(round))), TOUCHED);
    }
    assert!(rig.shard.stats().checkpoints > 1);
    let rig = rig.reopened(options(Durability::Restart));
    assert!(rig.ttl_s(1) > Some(1));
}

#[test]
fn an_object_without_bytes_is_an_object() {
    let devices = vec![TestDevice::new("memory:0", 2048)];
    format(&devices, &form(64));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    let empty = |key| PutItem { bytes: 0, ..item(key, 1) };
    rig.shard.lend_to_tier([memory(64 << 12)]);
    assert_eq!(rig.wait(Action::Put(empty(1))), STORED);
    let hit = Ok(Outcome::Hit { bytes: 0 });
    for _ in 0..3 {
        assert_eq!(rig.get(1, 1), hit, "from the device, then from memory");
        let (key, part) = (1u64.into(), Part::Bytes(0..100));
        let into = AnyBuffer::One(memory(4096));
        assert_eq!(rig.wait(Action::Get(GetItem { key, part, into, version: None })), hit);
    }
    assert!(rig.shard.stats().tier_hits > 0);
    assert_eq!(rig.shard.stats().used_units, 1, "so that it has a place of its own");
    assert_eq!(rig.put_if(1, Condition::Absent), conflict(rig.version(1)));
    let planned =
        rig.shard.plan(rig.now, &[(1u64.into(), Part::All)], Time::NEVER).expect("planned");
    let planned_item = planned.items[0].as_ref().expect("it is there");
    assert!(planned_item.bytes() == 0 && planned_item.is_intact(&[]));
    rig.shard.release(planned.lease);
    // A writer has nothing to fill.
    let reserve = ReserveItem { key: 2u64.into(), bytes: 0, options: PutOptions::default() };
    let Ok(Outcome::Reserved { writer, .. }) = rig.wait(Action::Reserve(reserve)) else {
        panic!("there is room")
    };
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
    assert_eq!(rig.wait(touch(2, Some(100))), TOUCHED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let mut rig = rig.reopened(options(Durability::Restart));
    assert_eq!((rig.get(1, 1), rig.get(2, 1)), (hit.clone(), hit.clone()));
    assert_eq!(rig.put(1, 3), STORED);
    assert_eq!(rig.get(1, 3), Ok(Outcome::Hit { bytes: 3 * UNIT_BYTES }));
    assert_eq!(rig.wait(Action::Put(empty(1))), STORED);
    assert_eq!((rig.get(1, 1), rig.shard.stats().objects), (hit, 2));
    let (_, faults) = super::surveyed(&rig.devices[0]);
    assert_eq!(faults, []);
}

#[test]
fn a_scan_of_a_prefix_has_those_keys_in_pages_that_may_be_empty() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let named = |text: String| Key::new(text.as_bytes()).expect("a key");
    for number in 0..50 {
        let name = ["model/a/", "model/b/"][number % 2];
        let key = named(format!("{name}{number}"));
        assert_eq!(rig.wait(Action::Put(PutItem { key, ..item(1, 1) })), STORED);
    }
    for (prefix, count) in [("model/a/", 25), ("model/", 50), ("", 50), ("model/c", 0)] {
        for limit in [1, 7, 100] {
            let (mut found, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                let (page, next) = rig.shard.scan(rig.now, prefix.as_bytes(), at, limit);
                assert!(page.len() <= limit);
                assert!(page.iter().all(|info| info.key.as_bytes().starts_with(prefix.as_bytes())));
                found.extend(page.into_iter().map(|info| info.key));
                from = next;
            }
            found.sort();
            found.dedup();
            assert_eq!(found.len(), count, "{prefix}");
        }
    }
    let keys = ["model/a/0", "model/a/1", "model/b/1"].map(|text| named(text.to_owned()));
    assert_eq!(rig.shard.exists_many(rig.now, &keys), [true, false, true]);
}
