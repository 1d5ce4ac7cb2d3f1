//! Evictions: their counters, and their number for the watermarks, on expiry and for records.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, UNITS, form, format, get, item, options};
use crate::media::record::record_bytes;
use crate::model::key::Key;
use crate::model::options::{Durability, Watermarks};
use crate::model::place::UNIT_BYTES;
use crate::shard::room::Eviction as Attempt;
use crate::shard::{Action, Evicted, Failure, Outcome, PutItem, PutOptions, ShardOptions};

const DELETED: Result<Outcome, Failure> = Ok(Outcome::Deleted);

fn what_else(rig: &Rig) -> Attempt {
    rig.shard.parts.room.what_else(&rig.shard.parts.objects)
}

#[test]
fn the_bytes_of_records_are_those_of_the_objects_that_are_there() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let each = record_bytes(8, 1) as u64;
    let bytes = |rig: &Rig| rig.shard.parts.objects.record_bytes();
    assert_eq!((bytes(&rig), rig.put(1, 1)), (0, STORED));
    assert_eq!((bytes(&rig), rig.put(1, 1)), (each, STORED), "replaced");
    assert_eq!((bytes(&rig), rig.put(2, 1)), (each, STORED));
    let long = Key::new(&[7; 100]).expect("a key");
    let put = Action::Put(PutItem { key: long.clone(), ..item(3, 1) });
    assert_eq!((bytes(&rig), rig.wait(put)), (2 * each, STORED));
    assert_eq!(bytes(&rig), 3 * each + 92, "a longer key");
    assert_eq!(rig.wait(Action::Delete(long)), DELETED);
    assert_eq!((bytes(&rig), rig.wait(Action::Delete(1u64.into()))), (2 * each, DELETED));
    assert_eq!((bytes(&rig), rig.put(9, rig.capacity())), (each, STORED));
    assert_eq!(bytes(&rig), record_bytes(8, 0) as u64 + 4 * sums(&rig, 9), "one was evicted");
    assert_eq!((rig.shard.parts.room.coming(), rig.shard.parts.room.coming_record_bytes()), (0, 0));
    assert_eq!(rig.shard.stats().deletes, 2);
}

fn sums(rig: &Rig, key: u64) -> u64 {
    let id = rig.shard.parts.objects.index().find(Key::from(key).as_bytes()).expect("it is there");
    rig.shard.parts.objects.index().checksums(id).len() as u64
}

#[test]
fn objects_that_go_for_space_are_counted_with_their_padding_and_for_their_tenants() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let all = rig.capacity();
    let id = rig.shard.tenant(rig.now, "a").expect("a tenant");
    let put = |key: u64, units: u64| {
        let options = PutOptions { tenant: id, ..PutOptions::default() };
        // A byte less than whole units.
        Action::Put(PutItem { options, bytes: units * UNIT_BYTES - 1, ..item(key, units) })
    };
    assert_eq!((rig.wait(put(1, 3)), rig.wait(put(2, all - 3))), (STORED, STORED));
    assert_eq!(
        (rig.wait(get(1, 3)), rig.put(3, all)),
        (Ok(Outcome::Hit { bytes: 3 * UNIT_BYTES - 1 }), STORED)
    );
    let stats = rig.shard.stats();
    assert_eq!(stats.evictions.space, Evicted { objects: 2, bytes: all * UNIT_BYTES });
    let tenants = rig.shard.tenants().stats();
    let of =
        |at: usize| (tenants[at].puts, tenants[at].gets, tenants[at].hits, tenants[at].evictions);
    assert_eq!((of(0), of(1)), ((1, 0, 0, 0), (2, 1, 1, 2)));
}

#[test]
fn objects_that_go_for_records_are_counted_apart() {
    let few = ShardOptions { capacity_objects: Some(3), ..options(Durability::Restart) };
    let mut rig = Rig::new(1, 64, few);
    assert!((0..5).all(|key| rig.put(key, 2) == STORED));
    let gone = rig.shard.stats().evictions;
    assert_eq!(gone.records, Evicted { objects: 2, bytes: 4 * UNIT_BYTES });
    assert_eq!(gone.objects(), 2);
}

#[test]
fn above_the_high_watermark_objects_go_until_the_low_one_is_reached() {
    let watermarks = Watermarks { high: 900, low: 500 };
    for durability in [Durability::Volatile, Durability::Restart] {
        let some = ShardOptions { watermarks, ..options(durability) };
        let mut rig = Rig::new(1, 64, some);
        let (high, low) = (rig.capacity() * 900 / 1000, rig.capacity() * 500 / 1000);
        for key in 0..high {
            assert_eq!(rig.put(key, 1), STORED);
        }
        rig.turn(3);
        assert_eq!(rig.shard.stats().evictions.objects(), 0, "{durability:?}: {high} units");
        assert_eq!(rig.put(1000, 1), STORED);
        rig.turn(3);
        let stats = rig.shard.stats();
        assert_eq!((stats.objects, stats.evictions.space.objects), (low, high + 1 - low));
    }
}

#[test]
fn expired_objects_go_in_turn_and_are_no_evictions() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    for key in 0..100u64 {
        let ttl_s = Some(if key < 90 { 2 } else { 5 });
        let options = PutOptions { ttl_s, ..PutOptions::default() };
        assert_eq!(rig.wait(Action::Put(PutItem { options, ..item(key, 1) })), STORED);
    }
    assert_eq!(rig.shard.info(rig.now, &1u64.into()).expect("it is there").ttl_s, Some(2));
    rig.now = Time::ZERO + Duration::from_millis(1990);
    rig.turn(1);
    assert_eq!((rig.shard.stats().expirations, rig.shard.exists(rig.now, &1u64.into())), (0, true));
    rig.now = Time::ZERO + Duration::from_secs(2);
    assert!(!rig.shard.exists(rig.now, &1u64.into()), "not found, even before it is removed");
    rig.turn(1);
    assert_eq!(rig.shard.stats().expirations, 64, "as many as a turn removes");
    rig.turn(1);
    let stats = rig.shard.stats();
    assert_eq!((stats.expirations, stats.objects, stats.evictions.objects()), (90, 10, 0));
}

#[test]
fn with_nothing_to_evict_what_sinks_or_is_discarded_is_waited_for() {
    let mut devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    devices[0].deallocates = true;
    format(&devices, &form(64));
    let at_once = Duration::ZERO;
    let options = ShardOptions { discard_after: at_once, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    let all = rig.capacity();
    assert_eq!((what_else(&rig), rig.put(1, all)), (Attempt::Nothing, STORED));
    assert_eq!(what_else(&rig), Attempt::Nothing);
    rig.devices[0].medium().held = vec![Kind::Flush, Kind::Deallocate];
    assert_eq!(rig.wait(Action::Delete(1u64.into())), DELETED);
    assert_eq!(
        (rig.shard.parts.objects.spaces().sinking_units(), what_else(&rig)),
        (all, Attempt::Wait)
    );
    rig.devices[0].medium().held = vec![Kind::Deallocate];
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(10);
    assert_eq!(
        (rig.shard.parts.objects.spaces().sinking_units(), what_else(&rig)),
        (0, Attempt::Wait)
    );
    assert!(rig.shard.parts.objects.spaces().discarding_units() > 0);
    rig.devices[0].medium().held.clear();
    rig.turn(10);
    assert_eq!(
        (rig.shard.parts.objects.spaces().discarding_units(), what_else(&rig)),
        (0, Attempt::Nothing)
    );
}

#[test]
fn an_expiry_waits_for_room_in_the_journal() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let options = PutOptions { ttl_s: Some(1), ..PutOptions::default() };
    assert_eq!(rig.wait(Action::Put(PutItem { options, ..item(1, 1) })), STORED);
    rig.fill_journal();
    rig.now = Time::ZERO + Duration::from_secs(2);
    let (objects, log) = (&mut rig.shard.parts.objects, &mut rig.shard.parts.log);
    objects.expire(log, rig.now);
    assert_eq!(rig.shard.stats().expirations, 0);
    rig.turn(200);
    assert_eq!(rig.shard.stats().expirations, 1, "a checkpoint made room");
}
