//! A store holds as many objects as it was formatted for, with keys as long as it was formatted for.

use std::collections::VecDeque;

use adit_kvstore::store::FormatStore;
use adit_kvstore::{Key, Store};

use crate::rig::Rig;

const OBJECTS: u64 = 8000;

/// Returns a key of `len` bytes, such as a digest in hexadecimal.
fn long_key(number: u64, len: usize) -> Key {
    let digits = format!("{:0len$x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Key::new(digits.as_bytes()).expect("a key")
}

/// Puts `count` objects of a byte with keys of `len` bytes. Returns how many are there then, and how many were evicted
/// because there was no room for their records.
fn held(options: &FormatStore, rig: &Rig, count: u64, len: usize) -> (u64, u64) {
    Store::format(options).expect("formatted");
    let store = rig.open();
    let mut pending = VecDeque::new();
    for number in 0..count {
        pending.push_back(store.put(long_key(number, len), vec![7]));
        if pending.len() == 64 {
            pending.pop_front().expect("one").wait().expect("put");
        }
    }
    for put in pending {
        put.wait().expect("put");
    }
    let stats = store.close().wait().expect("closed");
    (stats.objects, stats.evictions.records.objects)
}

fn formatted_for(rig: &Rig, objects: u64) -> FormatStore {
    let devices = rig.options().devices;
    FormatStore { devices, objects_max: Some(objects), overwrite: true, ..FormatStore::default() }
}

#[test]
fn objects_max_holds_for_digests_in_hexadecimal_by_default() {
    let rig = Rig::soft();
    assert_eq!(held(&formatted_for(&rig, OBJECTS), &rig, OBJECTS, 64), (OBJECTS, 0));
}

#[test]
fn objects_max_holds_for_keys_of_the_length_asked_for() {
    let rig = Rig::soft();
    let options = FormatStore { key_bytes: 300, ..formatted_for(&rig, OBJECTS) };
    assert_eq!(held(&options, &rig, OBJECTS, 300), (OBJECTS, 0));
    // Longer ones take the room of others, which is counted.
    let (objects, evicted) = held(&formatted_for(&rig, OBJECTS), &rig, OBJECTS, 300);
    assert!((1..OBJECTS).contains(&evicted), "{evicted} evicted");
    assert_eq!(objects + evicted, OBJECTS);
}

#[test]
fn several_shards_hold_objects_max_although_no_two_get_as_many() {
    let rig = Rig::soft();
    let options = FormatStore { shards: 4, ..formatted_for(&rig, OBJECTS) };
    assert_eq!(held(&options, &rig, OBJECTS, 64), (OBJECTS, 0));
}

#[test]
fn a_format_returns_what_the_store_has_room_for() {
    let rig = Rig::soft();
    let one = Store::format(&formatted_for(&rig, OBJECTS)).expect("formatted");
    assert_eq!(one.objects_max, OBJECTS);
    assert!((64..80).contains(&one.key_bytes), "{one:?}");
    let several = FormatStore { shards: 4, key_bytes: 512, ..formatted_for(&rig, OBJECTS) };
    let several = Store::format(&several).expect("formatted");
    assert!((OBJECTS..OBJECTS * 5 / 4).contains(&several.objects_max), "{several:?}");
    assert_eq!(several.key_bytes, 512);
}

#[test]
fn a_length_that_no_key_has_is_refused_with_those_that_keys_have() {
    let rig = Rig::soft();
    for key_bytes in [0, 513] {
        let options = FormatStore { key_bytes, ..formatted_for(&rig, OBJECTS) };
        let refused = Store::format(&options).expect_err("no such key").to_string();
        assert!(refused.contains("use 1 to 512 bytes"), "{refused}");
    }
}
