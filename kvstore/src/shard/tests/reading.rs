//! What a shard says of its objects: prefixes, scans, lengths, misses, and when it next has to look at its clock.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{Kind, memory};
use super::slabs::block;
use super::{Rig, SHAPE, STORED, get, item, layout, options};
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Arriving, Failure, Found, GetItem, Hashed, Outcome, Part, PutItem, PutOptions, Request,
};

#[test]
fn a_prefix_ends_at_the_first_miss_in_whichever_group_it_is() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let keys: Vec<Key> = (0..124u64).map(Key::from).collect();
    let count = rig.capacity().min(124) as usize;
    assert!(count > 65);
    assert!((0..count as u64).all(|key| rig.put(key, 1) == STORED));
    let prefix = |rig: &mut Rig, from: usize| rig.shard.lookup_prefix(rig.now, &keys[from..]);
    assert_eq!((prefix(&mut rig, 0), prefix(&mut rig, 3)), (count, count - 3));
    assert_eq!(rig.shard.lookup_prefix(rig.now, &[]), 0);
    for missing in [100, 70, 63, 1, 0] {
        assert_eq!(rig.wait(Action::Delete(keys[missing].clone())), Ok(Outcome::Deleted));
        assert_eq!(prefix(&mut rig, 0), missing);
    }
    assert_eq!(prefix(&mut rig, 65), 5, "between two misses");
}

#[test]
fn a_scan_returns_each_object_once_in_pieces_of_its_limit() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert!((0..10).all(|key| rig.put(key, 1) == STORED));
    assert_eq!(rig.wait(Action::Delete(4u64.into())), Ok(Outcome::Deleted));
    for limit in [1, 4, 9, 10] {
        let (mut found, mut from, mut pieces) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (infos, next) = rig.shard.scan(rig.now, &[], at, limit);
            assert!(infos.len() == limit || next.is_none());
            found.extend(infos.into_iter().map(|info| info.key));
            (from, pieces) = (next, pieces + 1);
        }
        found.sort();
        let mut keys: Vec<Key> = (0..10u64).filter(|key| *key != 4).map(Key::from).collect();
        keys.sort();
        assert_eq!((found, pieces), (keys, 9usize.div_ceil(limit)), "{limit} at a time");
    }
}

#[test]
fn the_clock_is_looked_at_when_the_next_object_expires() {
    let wall = crate::shard::ShardOptions {
        wall_at_zero: Duration::from_secs(1000),
        ..options(Durability::Volatile)
    };
    let mut rig = Rig::new(1, 64, wall);
    for (key, ttl_s) in [(1, 9), (2, 5)] {
        let options = PutOptions { ttl_s: Some(ttl_s), ..PutOptions::default() };
        assert_eq!(rig.wait(Action::Put(PutItem { options, ..item(key, 1) })), STORED);
    }
    rig.turn(2);
    let next = |rig: &mut Rig| rig.shard.poll(rig.now, &mut |_| ()).next;
    assert_eq!(next(&mut rig), Time::ZERO + Duration::from_secs(5));
    rig.now = Time::ZERO + Duration::from_secs(5);
    rig.turn(3);
    assert_eq!(rig.shard.stats().expirations, 1);
    assert_eq!(next(&mut rig), Time::ZERO + Duration::from_secs(9));
    rig.now = Time::ZERO + Duration::from_secs(9);
    rig.turn(3);
    assert_eq!(rig.shard.stats().expirations, 2);
    assert!(next(&mut rig) > rig.now, "nothing is left that expires");
}

#[test]
fn a_get_is_told_the_length_of_an_object_and_of_a_block_with_its_padding() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let id = layout(&mut rig, SHAPE, 1);
    let bytes = 2 * UNIT_BYTES - 96;
    let object = PutItem { bytes, ..item(1, 2) };
    assert_eq!(rig.wait(Action::Put(object)), STORED);
    assert_eq!(rig.wait(Action::Put(block(2, id))), STORED);
    let mut found = Vec::new();
    for key in 1..4 {
        let (reply, deadline) = (key, Time::NEVER);
        let request = Request { reply, deadline, action: get(key, 2) };
        let request = Arriving::one(Hashed::new(rig.shard.parts.objects.index().hasher(), request));
        rig.shard.accept(rig.now, request, |_, each, resident| {
            assert!(resident.is_none(), "nothing is in memory");
            found.push(each);
            false
        });
    }
    let device = 0;
    let block = Found { device, bytes: 2 * UNIT_BYTES, piece_bytes: UNIT_BYTES };
    assert_eq!(found, [Found { device, bytes, piece_bytes: 128 << 10 }, block]);
    assert_eq!(rig.shard.stats().misses, 1, "nothing is found of the third");
}

#[test]
fn a_range_of_an_object_is_whole_pieces() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let piece: u64 = 128 << 10;
    let bytes = 2 * piece + 5000;
    let units = bytes.div_ceil(UNIT_BYTES);
    assert_eq!(rig.wait(Action::Put(PutItem { bytes, ..item(1, units) })), STORED);
    let mut range = |start: u64, end: u64| {
        let into = AnyBuffer::One(memory((units * UNIT_BYTES) as usize));
        let (key, part) = (1u64.into(), Part::Bytes(start..end));
        rig.wait(Action::Get(GetItem { key, part, into, version: None }))
    };
    let refused = Err(Failure::Part(
        "a range begins and ends where pieces of the object do, or at its end".into(),
    ));
    for (start, end) in [(1, piece), (UNIT_BYTES, bytes), (0, piece + 1), (piece, bytes - 1)] {
        assert_eq!(range(start, end), refused, "{start} to {end}");
    }
    for (start, end) in [(0, piece), (piece, bytes), (piece, 2 * piece), (2 * piece, u64::MAX)] {
        let bytes = end.min(bytes) - start;
        assert_eq!(range(start, end), Ok(Outcome::Hit { bytes }), "{start} to {end}");
    }
    assert_eq!(
        range(bytes, u64::MAX),
        Err(Failure::Part("the range has no bytes of the object".into()))
    );
}

#[test]
fn an_object_that_cannot_be_removed_yet_does_not_keep_its_thread_awake() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let options = PutOptions { ttl_s: Some(5), ..PutOptions::default() };
    assert_eq!(rig.wait(Action::Put(PutItem { options, ..item(1, 1) })), STORED);
    rig.fill_journal();
    rig.devices[0].medium().is_dead = true;
    rig.now = Time::ZERO + Duration::from_secs(5);
    rig.turn(3);
    rig.now = Time::ZERO + Duration::from_secs(5);
    assert_eq!(rig.shard.poll(rig.now, &mut |_| ()).next, Time::NEVER);
    assert_eq!(rig.shard.stats().expirations, 0, "its record has no room");
}

#[test]
fn a_get_into_too_little_memory_is_refused() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert_eq!(rig.put(1, 3), STORED);
    let (needs, has) = (3 * UNIT_BYTES, 2 * UNIT_BYTES);
    assert_eq!(rig.get(1, 2), Err(Failure::Memory { needs, has }));
    assert_eq!(rig.get(1, 3), Ok(Outcome::Hit { bytes: needs }));
}

#[test]
fn a_version_that_cannot_be_read_any_more_does_not_cost_the_one_that_replaced_it() {
    for is_replaced in [true, false] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        assert_eq!((rig.put(1, 1), rig.put(2, 1)), (STORED, STORED));
        rig.devices[0].medium().held = vec![Kind::Read];
        let read = rig.submit(Time::NEVER, get(1, 1));
        rig.turn(2);
        if is_replaced {
            assert_eq!(rig.put(1, 2), STORED);
        } else {
            assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
        }
        // More often than a command is tried.
        rig.devices[0].medium().failing = vec![(Kind::Read, 9)];
        rig.devices[0].medium().held.clear();
        rig.turn(5);
        rig.devices[0].medium().failing.clear();
        assert_eq!(rig.taken(read), [Ok(Outcome::Miss)]);
        assert_eq!(rig.shard.stats().misses_corrupt, 1);
        let (objects, bytes) = (1 + u64::from(is_replaced), 2 * UNIT_BYTES);
        assert_eq!(rig.shard.stats().objects, objects);
        let left = if is_replaced { Outcome::Hit { bytes } } else { Outcome::Miss };
        assert_eq!(rig.get(1, 2), Ok(left));
    }
}
