//! What a shard says of its objects: prefixes, scans, and when it next has to look at its clock.

use std::time::Duration;

use adit_driver::Time;

use super::{Rig, STORED, item, options};
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::shard::{Action, Outcome, PutItem, PutOptions};

#[test]
fn a_prefix_ends_at_the_first_miss_in_whichever_group_it_is() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let keys: Vec<Key> = (0..124u64).map(Key::from).collect();
    let count = rig.capacity().min(124) as usize;
    assert!(count > 65);
    assert!((0..count as u64).all(|key| rig.put(key, 1) == STORED));
    let prefix = |rig: &Rig, from: usize| rig.shard.lookup_prefix(rig.now, &keys[from..]);
    assert_eq!((prefix(&rig, 0), prefix(&rig, 3)), (count, count - 3));
    assert_eq!(rig.shard.lookup_prefix(rig.now, &[]), 0);
    for missing in [100, 70, 63, 1, 0] {
        assert_eq!(rig.wait(Action::Delete(keys[missing].clone())), Ok(Outcome::Deleted));
        assert_eq!(prefix(&rig, 0), missing);
    }
    assert_eq!(prefix(&rig, 65), 5, "between two misses");
}

#[test]
fn a_scan_returns_each_object_once_in_pieces_of_its_limit() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert!((0..10).all(|key| rig.put(key, 1) == STORED));
    assert_eq!(rig.wait(Action::Delete(4u64.into())), Ok(Outcome::Deleted));
    for limit in [1, 4, 9, 10] {
        let (mut found, mut from, mut pieces) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (infos, next) = rig.shard.scan(rig.now, at, limit);
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
    let wall = crate::shard::ShardOptions { wall_s_at_zero: 1000, ..options(Durability::Volatile) };
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
