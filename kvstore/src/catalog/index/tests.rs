use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::model::object::{LayoutId, TenantId, Version};
use crate::model::place::Place;

fn hasher() -> KeyHasher {
    KeyHasher::new([11; 16])
}

fn index(objects_max: u32) -> Index {
    Index::new(objects_max, hasher()).expect("a capacity")
}

fn object(unit: u64) -> Object {
    Object {
        place: Place { device: (unit % 3) as u8, unit },
        bytes: unit % 9000,
        layout: LayoutId((unit % 5) as u8),
        tenant: TenantId((unit % 7) as u8),
        version: Version(unit * 1000),
    }
}

/// Returns keys around the length limit of an entry; those of one length have a common prefix.
fn key(number: u64) -> Vec<u8> {
    let mut key = vec![b'k'; [8, 31, 32, 33, 500][(number % 5) as usize]];
    let at = key.len() - 8;
    key[at..].copy_from_slice(&number.to_le_bytes());
    key
}

fn sums(number: u64) -> Vec<u32> {
    (0..[1, 1, 2, 512][(number % 4) as usize]).map(|piece| piece ^ number as u32).collect()
}

#[test]
fn an_object_costs_at_most_63_bytes_and_a_little() {
    let mut index = index(100_000);
    for number in 0..100_000_u64 {
        let key = [number; 4].map(u64::to_le_bytes).concat();
        index.insert(&key, object(number), &[9]).expect("room");
    }
    assert_eq!(index.len(), index.capacity());
    assert!(index.memory_bytes() <= 63 * 100_000 + 64, "{} bytes", index.memory_bytes());
}

#[test]
fn long_keys_and_lists_of_checksums_are_counted_and_given_back() {
    let mut index = index(10);
    let bytes_before = index.memory_bytes();
    let id = index.insert(&[1; 512], object(1), &[0; 512]).expect("room");
    assert!(index.memory_bytes() >= bytes_before + 512 + 4 * 512);
    index.remove(id);
    assert!(index.memory_bytes() < bytes_before + 512);
}

#[test]
fn an_object_replaced_again_and_again_takes_no_more_memory() {
    let mut index = index(1);
    let id = index.insert(&[1; 512], object(1), &[0; 512]).expect("room");
    index.replace(id, object(2), &[1; 512]);
    let bytes_before = index.memory_bytes();
    for unit in 0..100 {
        index.replace(id, object(unit), &[2; 512]);
    }
    assert_eq!(index.memory_bytes(), bytes_before);
}

#[test]
fn a_full_index_refuses_until_one_is_removed() {
    let mut index = index(2);
    let first = index.insert(b"a", object(1), &[1]).expect("room");
    index.insert(b"b", object(2), &[2]).expect("room");
    assert_eq!(index.insert(b"c", object(3), &[3]), Err(Refused::Full));
    index.remove(first);
    assert_eq!(index.insert(b"c", object(3), &[3]), Ok(first));
    assert_eq!(index.find(b"a"), None);
}

#[test]
fn a_key_that_is_present_is_refused_and_named() {
    let mut index = index(2);
    let id = index.insert(b"a", object(1), &[1]).expect("room");
    assert_eq!(index.insert(b"a", object(2), &[2]), Err(Refused::Present(id)));
    assert_eq!((index.len(), index.object(id)), (1, object(1)));
}

#[test]
fn capacities_that_cannot_be_say_what_to_do() {
    for objects_max in [0, IDS_MAX + 1] {
        let why = Index::new(objects_max, hasher()).expect_err("no capacity").to_string();
        assert!(why.contains("use more shards"), "{why}");
    }
    assert_eq!(index(IDS_MAX).capacity(), IDS_MAX);
}

#[test]
#[should_panic(expected = "there is no object 0")]
fn an_object_is_removed_once() {
    let mut index = index(1);
    let id = index.insert(b"a", object(1), &[1]).expect("room");
    index.remove(id);
    index.remove(id);
}

#[test]
fn long_keys_that_begin_alike_are_different_objects() {
    let mut index = index(2);
    let mut other = [5; 33];
    other[32] = 6;
    let ids = [[5; 33], other].map(|key| index.insert(&key, object(1), &[1]).expect("room"));
    assert_eq!([index.find(&[5; 33]), index.find(&other)], ids.map(Some));
    assert_eq!(index.find(&[5; 32]), None);
}

#[test]
fn another_hash_key_hashes_otherwise() {
    let other = Index::new(1, KeyHasher::new([7; 16])).expect("a capacity");
    assert_ne!(index(1).hash(b"key"), other.hash(b"key"));
}

#[test]
fn objects_that_wait_are_linked_when_they_are_many() {
    const OBJECTS: u64 = 3000;
    let mut loading = Loading::new(OBJECTS as u32, 1100, hasher()).expect("a capacity");
    loading.expect(OBJECTS);
    let mut gone = 0;
    for number in 0..2 * OBJECTS {
        let key = (number % OBJECTS).to_le_bytes();
        let new = NewObject { key: &key, object: object(number), checksums: &[7] };
        loading.put(new, &mut |_| gone += 1).expect("an earlier one of its key goes");
    }
    assert!(gone > 0, "some were linked");
    let index = loading.linked(&mut |_| gone += 1);
    assert_eq!((gone, u64::from(index.len())), (OBJECTS, OBJECTS));
    for number in 0..OBJECTS {
        let id = index.find(&number.to_le_bytes()).expect("it was put");
        assert_eq!(index.object(id), object(OBJECTS + number), "the last counts");
    }
}

#[test]
fn many_are_found_as_one_by_one() {
    let mut index = index(100);
    for number in 0..100 {
        index.insert(&key(number), object(number), &sums(number)).expect("room");
    }
    let keys: Vec<_> = (0..200).map(|number| Key::new(&key(number)).expect("a key")).collect();
    let mut found = Vec::new();
    index.find_many(&keys, &mut found);
    let one_by_one: Vec<_> = keys.iter().map(|key| index.find(key.as_bytes())).collect();
    assert_eq!(found, one_by_one);
    assert_eq!(found.iter().flatten().count(), 100);
}

/// An operation on an index.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Insert, or replace.
    Put {
        key: u64,
        object: u64,
    },
    Remove {
        key: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..60_u64, 0..1000_u64).prop_map(|(key, object)| Step::Put { key, object }),
        2 => (0..60_u64).prop_map(|key| Step::Remove { key }),
    ]
}

/// The expected keys, each with the number of its object.
type Model = BTreeMap<Vec<u8>, u64>;

fn put(index: &mut Index, model: &mut Model, key: Vec<u8>, number: u64) {
    match index.find(&key) {
        Some(id) => {
            let was = index.replace(id, object(number), &sums(number));
            assert_eq!(Some(was), model.insert(key, number).map(object));
        }
        None => match index.insert(&key, object(number), &sums(number)) {
            Ok(_) => assert_eq!(model.insert(key, number), None),
            Err(refused) => assert_eq!((refused, model.len()), (Refused::Full, 40)),
        },
    }
}

/// Adds an object, which may be refused only if the index is full.
fn load(
    loading: &mut Loading,
    model: &mut Model,
    ids: &mut BTreeMap<ObjectId, Vec<u8>>,
    key: Vec<u8>,
    number: u64,
) {
    let capacity = loading.index().capacity() as usize;
    let checksums = sums(number);
    let new = NewObject { key: &key, object: object(number), checksums: &checksums };
    match loading.put(new, &mut |id| drop(ids.remove(&id))) {
        Some(id) => {
            ids.insert(id, key.clone());
            model.insert(key, number);
        }
        None => assert!(!model.contains_key(&key) && model.len() == capacity),
    }
}

fn remove(index: &mut Index, model: &mut Model, key: &[u8]) {
    let removed = index.find(key).map(|id| index.remove(id));
    assert_eq!(removed, model.remove(key).map(object));
}

/// Returns the contents of the index by walking its ids.
fn contents(index: &Index) -> Model {
    let mut contents = Model::new();
    let mut from = 0;
    while let Some(id) = index.next_live(from) {
        let key = index.key_bytes(id).to_vec();
        assert_eq!((index.find(&key), index.key(id).as_bytes()), (Some(id), &key[..]));
        let number = index.object(id).place.unit;
        assert_eq!((index.object(id), &*index.checksums(id)), (object(number), &*sums(number)));
        contents.insert(key, number);
        from = id.0 + 1;
    }
    contents
}

proptest! {
    #[test]
    fn an_index_is_a_map(steps in vec(step(), 1..300)) {
        let mut index = index(40);
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Put { key: number, object } => {
                    put(&mut index, &mut model, key(number), object);
                }
                Step::Remove { key: number } => remove(&mut index, &mut model, &key(number)),
            }
            prop_assert_eq!(index.len() as usize, model.len());
        }
        prop_assert_eq!(contents(&index), model);
    }

    /// Waiting objects are found like those in the table, even with no entry free; freed ids are reported in time.
    #[test]
    fn an_index_being_loaded_is_a_map(
        steps in vec(step(), 1..300), spare in 0_u32..30, rounds in 1_usize..30,
    ) {
        let mut loading = Loading::new(40, spare, hasher()).expect("a capacity");
        let (mut model, mut ids) = (Model::new(), BTreeMap::new());
        for step in steps.iter().cycle().take(steps.len() * rounds) {
            match *step {
                Step::Put { key: number, object } => {
                    load(&mut loading, &mut model, &mut ids, key(number), object);
                }
                Step::Remove { key: number } => {
                    let found = loading.find(&key(number), &mut |id| drop(ids.remove(&id)));
                    prop_assert_eq!(found.is_some(), model.remove(&key(number)).is_some());
                    if let Some(id) = found {
                        loading.index_mut().remove(id);
                        ids.remove(&id);
                    }
                }
            }
        }
        loading.linked(&mut |id| drop(ids.remove(&id)));
        let mut index = loading.into_index();
        index.shed_spare(&mut |from, to| {
            let moved = ids.remove(&from).expect("it is known");
            assert_eq!(ids.insert(to, moved), None);
        });
        prop_assert_eq!(index.capacity(), if index.len() > 40 { 40 + spare } else { 40 });
        let known = ids.iter().map(|(id, key)| (index.key_bytes(*id).to_vec(), *id, key.clone()));
        prop_assert!(known.into_iter().all(|(is, _, was)| is == was));
        prop_assert_eq!(ids.len(), model.len());
        prop_assert_eq!(contents(&index), model.clone());
        // Free entries below the capacity are reused.
        for number in 0..u64::from(index.capacity() - index.len()) {
            index.insert(&(1000 + number).to_le_bytes(), object(number), &[1]).expect("room");
        }
        prop_assert_eq!(index.insert(b"one more", object(1), &[1]), Err(Refused::Full));
    }
}
