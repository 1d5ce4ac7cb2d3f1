//! A journal of which a flushed block is damaged: what later records say about the objects that it ended.

use adit_driver::Time;

use super::opening::{block, object, put};
use super::{Rig, STORED, get, options, surveyed};
use crate::media::format;
use crate::media::record::Record;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Outcome, ShardOptions};

const JOURNAL_UNITS: u64 = 32;

/// Returns a shard whose changes are durable one by one, so that each has a block of its own, from 1 on.
fn rig() -> Rig {
    Rig::new(1, JOURNAL_UNITS, options(Durability::Durable))
}

/// Opens the shard again, keeping what is outdated, after a bit of a block of its journal has flipped.
fn damaged(rig: Rig, block: u64) -> Rig {
    damaged_and_opened(rig, block, true)
}

fn damaged_and_opened(rig: Rig, block: u64, keep_outdated: bool) -> Rig {
    let at = (1 + block % JOURNAL_UNITS) * UNIT_BYTES + 100;
    rig.devices[0].medium().bytes[at as usize] ^= 1;
    let rig = rig.reopened(ShardOptions { keep_outdated, ..options(Durability::Durable) });
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

#[test]
fn objects_beside_one_that_was_put_since_stay_also_in_slabs() {
    let mut rig = rig();
    let (id, slab) = rig.slab();
    let start = rig.share().start;
    let under = block("under", id, start, 0);
    let before = block("before", id, start + slab, 0);
    let short = put("short", object(start + 2 * slab, 2));
    rig.record_puts(&[under, before, short]);
    let end = Record::Delete { key: under.key, place: under.object.place };
    let lost = rig.record([end]);
    let over = put("over", object(start, slab));
    let behind = put("behind", object(start + 2 * slab + 2, 1));
    rig.record_puts(&[over, behind]);
    let rig = damaged(rig, lost);
    let keys = ["under", "before", "short", "over", "behind"];
    assert_eq!(keys.map(|key| rig.holds(key)), [false, true, true, true, true]);
    assert_eq!(rig.recovery.dropped, 1);
}

#[test]
fn an_object_whose_next_version_or_delete_is_lost_is_a_miss_and_stays_one() {
    let mut rig = rig();
    for (key, units) in [(1, 2), (2, 1), (3, 1), (1, 3), (4, 1)] {
        assert_eq!(rig.put(key, units), STORED);
    }
    // Block 4 replaces object 1. For all that is left, it may have been 2 or 3.
    let at = ((1 + 4) * UNIT_BYTES + 100) as usize;
    rig.devices[0].medium().bytes[at] ^= 1;
    let (listed, faults) = surveyed(&rig.devices[0]);
    assert_eq!((listed, faults.len(), faults[0].objects_lost), (1, 1, 3));
    assert!(faults[0].code == "journal-lost" && faults[0].text.contains("3 objects"));
    rig.devices[0].medium().bytes[at] ^= 1;
    let mut rig = damaged_and_opened(rig, 4, false);
    assert_eq!((rig.recovery.outdated, rig.shard.stats().journal_outdated_objects), (3, 3));
    for (key, units) in [(1, 2), (1, 3), (2, 1), (3, 1)] {
        assert_eq!(rig.wait(get(key, units)), Ok(Outcome::Miss), "{key}");
    }
    assert_eq!(rig.get(4, 1), Ok(Outcome::Hit { bytes: UNIT_BYTES }));
    // At once, so that it also holds if the drive reads the block the next time.
    rig.devices[0].medium().bytes[at] ^= 1;
    let mut rig =
        rig.reopened(ShardOptions { keep_outdated: true, ..options(Durability::Durable) });
    assert_eq!(rig.wait(get(1, 3)), Ok(Outcome::Miss));
    assert_eq!((rig.recovery.objects, rig.recovery.outdated), (1, 0));
}

#[test]
fn what_an_opening_knew_to_be_lost_the_next_one_knows() {
    let mut rig = rig();
    for key in 1..=3 {
        assert_eq!(rig.put(key, 1), STORED);
    }
    let rig = damaged(rig, 2);
    // That was known from block 3 alone, until the opening.
    rig.devices[0].medium().bytes[(4 * UNIT_BYTES + 100) as usize] ^= 1;
    let kept = ShardOptions { keep_outdated: true, ..options(Durability::Durable) };
    let mut rig = rig.reopened(kept);
    let recovered = rig.recovery.recovered.as_ref().expect("it has a journal");
    assert_eq!((recovered.lost_blocks, recovered.next.sequence), (2, 6));
    assert_eq!(rig.get(1, 1), Ok(Outcome::Hit { bytes: UNIT_BYTES }));
}

#[test]
fn a_shard_that_lost_its_whole_index_says_so() {
    let mut rig = rig();
    // The journal goes round, so that a checkpoint is all there is of its beginning.
    for round in 0..60 {
        assert_eq!(rig.put(round % 3, 1), STORED);
        rig.turn(20);
    }
    assert!(rig.shard.stats().checkpoints > 0);
    let mut lanes = [rig.devices[0].lane()];
    let set = format::read_set(&mut lanes, &mut || Time::ZERO).expect("a store");
    for slot in set.geometry().areas(0).slots {
        rig.devices[0].medium().bytes[(slot.start * UNIT_BYTES + 20) as usize] ^= 1;
    }
    let (listed, faults) = surveyed(&rig.devices[0]);
    assert!(listed == 0 && faults.iter().any(|fault| fault.code == "index-lost"), "{faults:?}");
    let rig = rig.reopened(options(Durability::Durable));
    let recovered = rig.recovery.recovered.as_ref().expect("it has a journal");
    assert!(recovered.is_index_lost() && recovered.is_damaged());
    assert_eq!(rig.recovery.objects, 0);
}
