//! A journal of which a flushed block is damaged: what later records say about the objects that it ended.

use super::{Rig, STORED, get, options};
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome};

const JOURNAL_UNITS: u64 = 32;

/// Returns a shard whose changes are durable one by one, so that each has a block of its own, from 1 on.
fn rig() -> Rig {
    Rig::new(1, JOURNAL_UNITS, options(Durability::Durable))
}

/// Opens the shard again after a bit of a block of its journal has flipped.
fn damaged(rig: Rig, block: u64) -> Rig {
    let at = (1 + block % JOURNAL_UNITS) * UNIT_BYTES + 100;
    rig.devices[0].medium().bytes[at as usize] ^= 1;
    let rig = rig.reopened(options(Durability::Durable));
    let recovered = rig.recovery.recovered.as_ref().expect("it has a journal");
    assert_eq!((recovered.lost_blocks, rig.shard.stats().journal_lost_blocks), (1, 1));
    rig
}

fn delete(rig: &mut Rig, key: u64) {
    assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
}

#[test]
fn an_object_whose_end_is_lost_gives_way_to_the_one_that_took_its_units() {
    let mut rig = rig();
    let all = rig.capacity();
    assert_eq!(rig.put(1, all), STORED);
    delete(&mut rig, 1);
    assert_eq!(rig.put(2, all), STORED);
    let mut rig = damaged(rig, 2);
    assert_eq!((rig.get(1, all), rig.recovery.dropped), (Ok(Outcome::Miss), 1));
    assert_eq!(rig.get(2, all), Ok(Outcome::Hit { bytes: all * UNIT_BYTES }));
    // A checkpoint follows, after which the damage is of no account.
    rig.turn(50);
    let mut rig = rig.reopened(options(Durability::Durable));
    assert_eq!(rig.recovery.recovered.as_ref().map(|found| found.lost_blocks), Some(0));
    assert_eq!(rig.get(2, all), Ok(Outcome::Hit { bytes: all * UNIT_BYTES }));
}

#[test]
fn a_delete_of_a_version_whose_put_is_lost_removes_the_version_before() {
    let mut rig = rig();
    for (key, units) in [(1, 2), (1, 3)] {
        assert_eq!(rig.put(key, units), STORED);
    }
    delete(&mut rig, 1);
    assert_eq!(rig.put(2, 1), STORED);
    let mut rig = damaged(rig, 2);
    assert_eq!(rig.wait(get(1, 3)), Ok(Outcome::Miss));
    assert_eq!(rig.get(2, 1), Ok(Outcome::Hit { bytes: UNIT_BYTES }));
}
