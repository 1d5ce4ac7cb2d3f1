//! What a reader of removals learns: all that goes, once, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use adit_driver::Time;

use super::device::memory;
use super::{Rig, STORED, item, options};
use crate::catalog::removals::Removed;
use crate::model::key::Key;
use crate::model::options::{Durability, PolicyKind};
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, PutItem, PutOptions, Selection, ShardOptions, TouchItem};

/// Keys of a run; the store has room for fewer objects.
const KEYS: u64 = 60;

struct Reader {
    from: u64,
}

impl Reader {
    fn new(rig: &Rig) -> Reader {
        Reader { from: rig.shard.parts.objects.removals().read(b"", None, 1).next }
    }

    /// Returns the keys that went since the last call.
    fn read(&mut self, rig: &Rig) -> Vec<u64> {
        let read = rig.shard.parts.objects.removals().read(b"", Some(self.from), usize::MAX);
        let Removed { keys, next, missed_some } = read;
        assert!(!missed_some);
        self.from = next;
        keys.iter().map(number).collect()
    }
}

fn number(key: &Key) -> u64 {
    (0..KEYS).find(|number| Key::from(*number) == *key).expect("a key of the run")
}

fn there(rig: &Rig) -> BTreeSet<u64> {
    (0..KEYS)
        .filter(|key| rig.shard.parts.objects.index().find(Key::from(*key).as_bytes()).is_some())
        .collect()
}

fn few(policy: PolicyKind) -> ShardOptions {
    ShardOptions { policy, capacity_objects: Some(20), ..options(Durability::Restart) }
}

/// Puts, replaces, deletes, sweeps, touches, lets expire and damages objects; returns the removals told.
fn told_of_a_run(mut state: u64, policy: PolicyKind) -> u64 {
    let mut rig = Rig::new(1, 64, few(policy));
    let mut reader = Reader::new(&rig);
    let (mut before, mut told) = (BTreeSet::new(), 0);
    for _ in 0..400 {
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (key, what, more) = (draw(KEYS), draw(20), draw(3));
        let mut put = None;
        match what {
            0..12 => {
                let options =
                    PutOptions { ttl_s: (more == 0).then_some(2), ..PutOptions::default() };
                let item = PutItem { options, ..item(key, 1 + more) };
                put = Some(key);
                assert_eq!(rig.wait(Action::Put(item)), STORED);
            }
            12..14 => drop(rig.wait(Action::Delete(key.into()))),
            14 => {
                let item = TouchItem { key: key.into(), ttl_s: Some(1) };
                drop(rig.wait(Action::Touch(item)));
            }
            15 => {
                let first = Selection::Prefix(Key::from(key).as_bytes()[..8].into());
                drop(rig.wait(Action::DeleteWhere(first)));
            }
            16 if before.contains(&key) => {
                let id =
                    rig.shard.parts.objects.index().find(Key::from(key).as_bytes()).expect("there");
                let place = rig.shard.parts.objects.index().object(id).place;
                let at = (place.unit * UNIT_BYTES) as usize;
                rig.devices[0].medium().bytes[at] ^= 1;
                assert_eq!(rig.get(key, 4), Ok(Outcome::Miss), "it is damaged");
            }
            _ => {
                rig.now = rig.now + Duration::from_millis(700);
                rig.turn(3);
            }
        }
        let after = there(&rig);
        let mut gone: Vec<u64> = before.difference(&after).copied().collect();
        let mut heard = reader.read(&rig);
        told += heard.len() as u64;
        heard.sort_unstable();
        // An object may go for the room of the one that replaces it.
        let is_replaced = put.filter(|key| before.contains(key) && heard.contains(key));
        gone.extend(is_replaced);
        gone.sort_unstable();
        assert_eq!(heard, gone, "{what} of {key}");
        before = after;
    }
    let stats = rig.shard.stats();
    assert!(stats.evictions.objects() > 20 && stats.expirations > 5 && stats.deletes > 0);
    assert!(stats.misses_corrupt > 0);
    told
}

#[test]
fn all_that_goes_is_told_once_and_what_is_replaced_is_not() {
    for (seed, policy) in [(1, PolicyKind::Lru), (2, PolicyKind::S3Fifo), (3, PolicyKind::Lru)] {
        let told = told_of_a_run(seed, policy);
        assert!(told > 100, "{told}");
    }
}

#[test]
fn a_device_that_fails_is_told_as_removals_that_were_missed() {
    let mut rig = Rig::new(2, 64, options(Durability::Restart));
    let mut reader = Reader::new(&rig);
    assert_eq!(rig.put(1, 1), STORED);
    assert_eq!(reader.read(&rig), Vec::<u64>::new());
    rig.shard.parts.lanes[1].fail("a test");
    rig.turn(1);
    let removals = rig.shard.parts.objects.removals().clone();
    let read = removals.read(b"", Some(reader.from), 9);
    assert!(read.missed_some && read.keys.is_empty());
    assert!(!removals.read(b"", Some(read.next), 9).missed_some);
}

/// A use that reads nothing: the object outlives others, its expiry is as it was, and no byte moves.
#[test]
fn what_is_refreshed_outlives_others_and_expires_as_before() {
    for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo] {
        let mut rig = Rig::new(1, 64, few(policy));
        let with = PutOptions { ttl_s: Some(1000), ..PutOptions::default() };
        let data = adit_driver::memory::AnyBuffer::One(memory(UNIT_BYTES as usize));
        let (key, bytes) = (Key::from(0u64), UNIT_BYTES);
        let put = Action::Put(PutItem { key, bytes, data, options: with });
        assert_eq!(rig.wait(put), STORED);
        for key in 1..KEYS {
            let moved =
                |rig: &Rig| (rig.shard.stats().bytes_to_device, rig.shard.stats().bytes_read);
            let before = moved(&rig);
            let found = rig.shard.refresh_many(rig.now, &[0u64.into(), KEYS.into()]);
            assert_eq!((found, moved(&rig)), (vec![true, false], before));
            assert_eq!(rig.put(key, 1), STORED);
        }
        let info = rig.shard.info(rig.now, &0u64.into()).expect("it outlived the others");
        assert!(info.ttl_s.is_some_and(|left| left > 900), "{policy:?}");
        assert_eq!(rig.shard.stats().objects, 20);
        rig.now = Time::ZERO + Duration::from_secs(1001);
        assert_eq!(rig.shard.refresh_many(rig.now, &[0u64.into()]), [false], "it has expired");
    }
}
