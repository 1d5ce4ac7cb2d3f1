//! Damage to the journal of a closed store: the objects found at the next opening, and the blocks counted as lost.

use std::os::unix::fs::FileExt;

use adit_kvstore::internals::block::{BlockKind, BlockReader, JOURNAL_BLOCK_BYTES};
use adit_kvstore::internals::geometry::Geometry;
use adit_kvstore::internals::record::Record;
use adit_kvstore::shard::Recovery;
use adit_kvstore::store::OpenOptions;
use adit_kvstore::{Key, Store, UNIT_BYTES};

use super::rig::{Rig, data, key};

/// Objects of the first round; each second one is put again in the second.
const OBJECTS: u64 = 2_000;
const BYTES: usize = 100;
/// Objects that come last.
const LAST: u64 = 20;

/// A block of the journal on the media: its unit, its sequence, and the keys that it names.
struct Block {
    unit: u64,
    sequence: u64,
    keys: Vec<Key>,
}

/// Returns all blocks of the first shard's journal, by sequence.
fn blocks(rig: &Rig, geometry: &Geometry) -> Vec<Block> {
    let file = std::fs::File::open(rig.path()).expect("the store's file");
    let mut blocks = Vec::new();
    for unit in geometry.journal(0).1 {
        let mut bytes = vec![0; JOURNAL_BLOCK_BYTES];
        file.read_exact_at(&mut bytes, unit * UNIT_BYTES).expect("a unit");
        let Ok(block) = BlockReader::open(BlockKind::Journal, &bytes) else { continue };
        let key = |record: Record<'_>| match record {
            Record::Put(put) => Some(Key::new(put.key).expect("a key")),
            Record::Delete { key, .. } => Some(Key::new(key).expect("a key")),
            _ => None,
        };
        let keys = block.records().filter_map(|record| key(record.expect("whole"))).collect();
        blocks.push(Block { unit, sequence: block.stamp.sequence, keys });
    }
    blocks.sort_by_key(|block| block.sequence);
    blocks
}

fn flip(rig: &Rig, unit: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(rig.path());
    let file = file.expect("the store's file");
    let mut byte = [0];
    let at = unit * UNIT_BYTES + 1000;
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 4], at).expect("a byte");
}

fn put(store: &Store, numbers: impl Iterator<Item = u64>, round: u64) {
    let puts: Vec<_> =
        numbers.map(|number| store.put(key(number), data(number + round, BYTES))).collect();
    puts.into_iter().for_each(|put| drop(put.wait().expect("stored")));
}

/// Makes a store with a journal of many flushed blocks, and returns its geometry, and a copy of it before it is closed.
fn filled(rig: &Rig) -> (Geometry, Rig) {
    rig.format(1);
    let store = rig.open();
    put(&store, 0..OBJECTS, 0);
    store.commit().wait().expect("flushed");
    put(&store, (0..OBJECTS).step_by(2), OBJECTS);
    put_last(&store);
    let (geometry, copy) = (store.set().geometry().clone(), rig.copy());
    store.close().wait().expect("closed");
    (geometry, copy)
}

/// Puts the last objects, in two blocks: too few for another checkpoint when the store is closed.
fn put_last(store: &Store) {
    for first in [OBJECTS, OBJECTS + LAST / 2] {
        store.commit().wait().expect("flushed");
        put(store, first..first + LAST / 2, 0);
    }
    store.commit().wait().expect("flushed");
}

/// What an opening found.
#[derive(PartialEq, Eq)]
struct Opened {
    lost: u64,
    outdated: u64,
    values: Vec<Option<Vec<u8>>>,
}

/// Opens the store, and returns how many blocks were lost, how many objects they made outdated, and what each key has.
fn found(rig: &Rig, keep_outdated: bool) -> Opened {
    let store = Store::open(&OpenOptions { keep_outdated, ..rig.options() }).expect("a store");
    let lost = |recovery: &Recovery| recovery.recovered.as_ref().map_or(0, |it| it.lost_blocks);
    let lost = store.recoveries().iter().map(lost).sum();
    let outdated = store.recoveries().iter().map(|recovery| recovery.outdated).sum();
    let stats = store.stats().wait().expect("figures");
    let text = store.prometheus().wait().expect("figures");
    let counted = (stats.journal_lost_blocks, stats.journal_outdated_objects);
    assert_eq!(counted, (lost, outdated), "the figures tell what the opening found");
    for (name, value) in [("lost_blocks", lost), ("outdated_objects", outdated)] {
        assert!(text.contains(&format!("adit_kv_journal_{name}_total {value}\n")), "{text}");
    }
    let get = |number| store.get(key(number)).wait().expect("answered").map(|v| v.to_vec());
    let values = (0..OBJECTS + LAST).map(get).collect();
    store.close().wait().expect("closed");
    Opened { lost, outdated, values }
}

fn newest(number: u64) -> Vec<u8> {
    let is_again = number < OBJECTS && number.is_multiple_of(2);
    data(if is_again { number + OBJECTS } else { number }, BYTES)
}

/// Checks that all is there but what these keys were put last as: they may be missing or have their first value.
fn assert_costs_only(keys: &[Key], values: &[Option<Vec<u8>>]) {
    let mut kept = 0;
    for (number, value) in (0..).zip(values) {
        if keys.contains(&key(number)) {
            let first = data(number, BYTES);
            let is_known = |value: &Vec<u8>| [&first, &newest(number)].contains(&value);
            assert!(value.as_ref().is_none_or(is_known), "{number}");
        } else {
            assert_eq!(value.as_ref(), Some(&newest(number)), "{number}");
            kept += 1;
        }
    }
    assert!(kept + keys.len() >= values.len(), "a block names few keys");
}

#[test]
fn a_flipped_bit_in_the_journal_makes_what_came_before_it_a_miss_and_no_older_version() {
    let (geometry, rig) = filled(&Rig::file());
    let blocks = blocks(&rig, &geometry);
    let (at, objects) = (blocks.len() / 2, OBJECTS + LAST);
    let (hit, behind) = (&blocks[at], &blocks[at + 1..]);
    assert!(hit.keys.iter().any(|known| (0..OBJECTS).any(|number| *known == key(number))));
    flip(&rig, hit.unit);
    let Opened { lost, outdated, values } = found(&rig, false);
    assert_eq!(lost, 1, "block {}", hit.sequence);
    let mut misses = 0;
    for (number, value) in (0..).zip(&values) {
        match value {
            Some(value) => assert_eq!(*value, newest(number), "{number}: the newest, or a miss"),
            None => misses += 1,
        }
        let is_behind = behind.iter().any(|block| block.keys.contains(&key(number)));
        assert_eq!(value.is_some(), is_behind, "{number}: what was put behind the block stays");
    }
    assert!(misses < objects && outdated > 0 && outdated <= misses, "{outdated} of {misses}");
    let again = found(&rig, true);
    assert_eq!((again.lost, again.outdated), (0, 0), "what was dropped stays so");
    assert!(again.values == values);
}

#[test]
fn a_flipped_bit_in_the_journal_costs_one_block_if_what_is_outdated_is_kept() {
    let (geometry, rig) = filled(&Rig::file());
    let blocks = blocks(&rig, &geometry);
    let hit = &blocks[blocks.len() / 2];
    assert!(blocks.len() > 20 && !hit.keys.is_empty());
    flip(&rig, hit.unit);
    let first = found(&rig, true);
    assert_eq!(first.lost, 1, "block {}", hit.sequence);
    assert!(first.outdated > 0);
    assert_costs_only(&hit.keys, &first.values);
    let again = found(&rig, true);
    assert!((again.lost, again.values) == (0, first.values), "the state is one again");
}

#[test]
fn damage_to_the_end_of_the_journal_after_a_clean_stop_is_told() {
    for keep_outdated in [false, true] {
        let rig = Rig::file();
        let (geometry, _) = filled(&rig);
        let store = rig.open();
        put_last(&store);
        store.close().wait().expect("closed");
        let blocks = blocks(&rig, &geometry);
        let [.., hit, last] = &blocks[..] else { panic!("there are blocks") };
        [hit, last].into_iter().for_each(|block| flip(&rig, block.unit));
        let Opened { lost, outdated, values } = found(&rig, keep_outdated);
        assert_eq!(lost, 2);
        if keep_outdated {
            assert_costs_only(&[&hit.keys[..], &last.keys[..]].concat(), &values);
        } else {
            // Any of them may have been replaced there.
            assert!(outdated >= OBJECTS && values.iter().all(Option::is_none), "{outdated}");
        }
    }
}

#[test]
fn without_damage_nothing_is_lost() {
    let rig = Rig::file();
    filled(&rig);
    for _ in 0..2 {
        let Opened { lost, outdated, values } = found(&rig, false);
        assert_eq!((lost, outdated), (0, 0));
        assert_costs_only(&[], &values);
    }
}

#[test]
fn a_torn_end_of_a_store_that_was_not_closed_is_a_cut() {
    let rig = Rig::file();
    let (geometry, _) = filled(&rig);
    // Its last changes are written and never called flushed, as if the process was killed.
    let store = rig.open();
    put(&store, 0..200, 7 * OBJECTS);
    while store.stats().wait().expect("figures").journal_bytes == 0 {
        std::thread::yield_now();
    }
    let copy = rig.copy();
    store.close().wait().expect("closed");
    let last = blocks(&copy, &geometry).pop().expect("a block");
    flip(&copy, last.unit);
    assert_eq!(found(&copy, false).lost, 0);
}
