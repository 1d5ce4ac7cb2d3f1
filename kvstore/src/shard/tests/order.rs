//! Changes of one key whose commands complete in another order than they were sent.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{Kind, memory};
use super::{Rig, STORED, get, item, options};
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, FillItem, Outcome, Part, PutOptions, ReserveItem};

const DURABILITIES: [Durability; 3] =
    [Durability::Volatile, Durability::Restart, Durability::Durable];

/// Returns a store of two devices, of which the first has not carried out a put of key 1 yet, and the put's tag.
fn with_a_slow_put(durability: Durability) -> (Rig, u64) {
    let mut rig = Rig::new(2, 64, options(durability));
    rig.devices[0].medium().held = vec![Kind::Write];
    let slow = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
    rig.turn(3);
    (rig, slow)
}

impl Rig {
    /// Lets the first device go on.
    fn release(&mut self) {
        self.devices[0].medium().held.clear();
        self.turn(100);
    }

    fn units_of(&mut self, key: u64) -> Option<u64> {
        let found = self.shard.info(self.now, &key.into());
        found.map(|info| info.bytes / UNIT_BYTES)
    }
}

#[test]
fn the_put_that_was_submitted_last_wins_whichever_is_written_first() {
    for durability in DURABILITIES {
        let (mut rig, slow) = with_a_slow_put(durability);
        let tags: Vec<u64> =
            (3..6).map(|units| rig.submit(Time::NEVER, Action::Put(item(1, units)))).collect();
        rig.turn(100);
        assert_eq!(rig.units_of(1), None, "{durability:?}: none overtakes the first");
        rig.release();
        for tag in [&[slow], &tags[..]].concat() {
            assert_eq!(rig.taken(tag), [STORED], "{durability:?}");
        }
        assert_eq!(rig.get(1, 5), Ok(Outcome::Hit { bytes: 5 * UNIT_BYTES }), "{durability:?}");
        assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        rig.turn(20);
        assert_eq!(rig.shard.stats().used_units, 5, "{durability:?}: the others' room is free");
    }
}

#[test]
fn a_put_that_fails_makes_way_for_those_behind_it() {
    for durability in DURABILITIES {
        let (mut rig, slow) = with_a_slow_put(durability);
        let next = rig.submit(Time::NEVER, Action::Put(item(1, 3)));
        rig.turn(100);
        rig.fail_next_data();
        rig.release();
        assert!(rig.taken(slow)[0].is_err());
        assert_eq!(rig.taken(next), [STORED], "{durability:?}");
        assert_eq!(rig.units_of(1), Some(3), "{durability:?}");
    }
}

#[test]
fn a_delete_removes_what_was_put_before_it_and_nothing_that_was_put_after_it() {
    for durability in DURABILITIES {
        let (mut rig, slow) = with_a_slow_put(durability);
        let delete = rig.submit(Time::NEVER, Action::Delete(1u64.into()));
        rig.turn(20);
        assert_eq!(rig.taken(delete), [], "{durability:?}: it is a delete of that put");
        rig.release();
        assert_eq!(
            (rig.taken(slow), rig.taken(delete)),
            (vec![STORED], vec![Ok(Outcome::Deleted)])
        );
        assert_eq!(rig.units_of(1), None, "{durability:?}");
        rig.devices[0].medium().held = vec![Kind::Write];
        // One of these is on the slow device.
        let tags = [2, 3].map(|units| rig.submit(Time::NEVER, Action::Put(item(1, units))));
        let delete = rig.submit(Time::NEVER, Action::Delete(1u64.into()));
        let last = [4, 5].map(|units| rig.submit(Time::NEVER, Action::Put(item(1, units))));
        rig.turn(20);
        rig.release();
        assert_eq!(rig.taken(delete), [Ok(Outcome::Deleted)]);
        for tag in [tags, last].concat() {
            assert_eq!(rig.taken(tag), [STORED], "{durability:?}");
        }
        assert_eq!(rig.units_of(1), Some(5), "{durability:?}");
    }
}

#[test]
fn a_delete_that_waits_for_a_put_does_not_hold_up_other_keys() {
    for durability in [Durability::Volatile, Durability::Restart] {
        let (mut rig, _) = with_a_slow_put(durability);
        let _delete = rig.submit(Time::NEVER, Action::Delete(1u64.into()));
        // One of these is on the device that works.
        let tags = [8, 9].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
        rig.turn(20);
        let stored = tags.into_iter().filter(|tag| rig.taken(*tag) == [STORED]).count();
        assert_eq!(stored, 1, "{durability:?}");
    }
}

#[test]
fn a_writer_takes_effect_when_it_is_sealed_and_not_before_earlier_puts() {
    for durability in DURABILITIES {
        let mut rig = Rig::new(2, 64, options(durability));
        let reserve = ReserveItem { key: 1u64.into(), bytes: 4096, options: PutOptions::default() };
        let Ok(Outcome::Reserved { writer, .. }) = rig.wait(Action::Reserve(reserve)) else {
            panic!("there is room")
        };
        let fill = FillItem { writer, part: Part::All, data: AnyBuffer::One(memory(4096)) };
        assert_eq!(rig.wait(Action::Fill(fill)), Ok(Outcome::Filled));
        rig.devices.iter().for_each(|device| device.medium().held = vec![Kind::Write]);
        let put = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
        let sealed = rig.submit(Time::NEVER, Action::Seal(writer));
        rig.turn(20);
        assert_eq!(rig.taken(sealed), [], "{durability:?}");
        rig.devices.iter().for_each(|device| device.medium().held.clear());
        rig.turn(100);
        assert_eq!((rig.taken(put), rig.taken(sealed)), (vec![STORED], vec![STORED]));
        assert_eq!(rig.wait(get(1, 1)), Ok(Outcome::Hit { bytes: 4096 }), "{durability:?}");
    }
}

#[test]
fn a_put_that_waits_for_room_is_not_overtaken_by_one_of_its_key_that_needs_less() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    assert_eq!(rig.put(9, all), STORED);
    rig.devices[0].medium().held = vec![Kind::Flush];
    let tags = [all - 8, 3].map(|units| rig.submit(Time::NEVER, Action::Put(item(1, units))));
    rig.turn(20);
    rig.release();
    assert_eq!(tags.map(|tag| rig.taken(tag)), [[STORED], [STORED]]);
    assert_eq!(rig.units_of(1), Some(3));
}

/// Returns a durable store with a put of key 1, which is there, that waits for a flush: the first, of its data, or the
/// second, of its record.
fn with_an_unflushed_put(flushes: u32) -> (Rig, u64) {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    assert_eq!(rig.put(1, 1), STORED);
    let put = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
    if flushes == 2 {
        let before = rig.shard.stats().journal_bytes;
        while rig.shard.stats().journal_bytes == before {
            rig.turn(1);
        }
    }
    rig.devices[0].medium().held = vec![Kind::Flush];
    rig.turn(20);
    (rig, put)
}

#[test]
fn a_delete_waits_until_the_put_before_it_is_durable() {
    let of_a_new_key = || {
        let mut rig = Rig::new(1, 64, options(Durability::Durable));
        rig.devices[0].medium().held = vec![Kind::Flush];
        let put = rig.submit(Time::NEVER, Action::Put(item(1, 2)));
        rig.turn(20);
        (rig, put)
    };
    for (mut rig, put) in [of_a_new_key(), with_an_unflushed_put(1), with_an_unflushed_put(2)] {
        let delete = rig.submit(Time::NEVER, Action::Delete(1u64.into()));
        rig.turn(20);
        assert_eq!((rig.taken(put), rig.taken(delete)), (vec![], vec![]));
        rig.release();
        assert_eq!((rig.taken(put), rig.taken(delete)), (vec![STORED], vec![Ok(Outcome::Deleted)]));
        assert_eq!(rig.units_of(1), None);
    }
}

#[test]
fn a_put_that_fails_with_its_device_is_behind_a_later_one_though_it_comes_back_with_it() {
    let (mut rig, put) = with_an_unflushed_put(2);
    rig.devices[0].medium().is_dead = true;
    rig.turn(3);
    let answers = rig.taken(put);
    assert!(answers.len() == 1 && answers[0].is_err(), "it is answered when its device fails");
    rig.devices[0].medium().is_dead = false;
    rig.devices[0].medium().held.clear();
    rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
    let later = rig.submit(Time::NEVER, Action::Put(item(1, 3)));
    rig.turn(100);
    assert_eq!(rig.taken(later), [STORED]);
    assert_eq!(rig.units_of(1), Some(3));
}
