//! What clients learn of removals, and uses that read nothing.

use adit_kvshare::{Client, KvStore, PendingAnswer};
use adit_kvstore::Key;
use adit_kvstore::store::Removed;

use crate::rig::{Rig, data, key};

fn named(who: &str, number: u64) -> Key {
    Key::new(format!("{who}/{number}").as_bytes()).expect("a key")
}

/// Reads on to the end.
fn read(client: &Client, prefix: &[u8], from: &mut u64) -> (Vec<Key>, bool) {
    let (mut all, mut some_missed) = (Vec::new(), false);
    loop {
        let asked = client.removals(prefix, Some(*from), 1000).wait().expect("answered");
        let Removed { keys, next, missed_some } = asked;
        all.extend(keys);
        some_missed |= missed_some;
        if std::mem::replace(from, next) == next && !missed_some {
            all.sort();
            return (all, some_missed);
        }
    }
}

#[test]
fn a_client_learns_what_goes_of_its_keys_whoever_removes_it() {
    let rig = Rig::soft();
    let (mine, other) = (rig.client(), rig.client());
    let began = mine.removals(b"a/", None, 1000).wait().expect("answered");
    assert!(began.keys.is_empty() && !began.missed_some);
    let mut from = began.next;
    for number in 0..300 {
        for who in ["a", "b"] {
            mine.put(named(who, number), b"four").wait().expect("put");
        }
    }
    mine.put(named("a", 0), b"replaced").wait().expect("put");
    assert_eq!(read(&mine, b"a/", &mut from), (Vec::new(), false));
    let gone: Vec<Key> = (0..200).map(|number| named("a", number)).collect();
    other.delete_many(gone.clone()).into_iter().for_each(|one| assert!(one.wait().expect("asked")));
    rig.store.delete(named("a", 250)).wait().expect("deleted");
    assert_eq!(other.delete_prefix(named("b", 1)).wait().expect("asked"), 111);
    let mut all: Vec<Key> = gone.into_iter().chain([named("a", 250)]).collect();
    all.sort();
    assert_eq!(read(&mine, b"a/", &mut from), (all, false), "more than a page");
    assert_eq!(read(&mine, b"a/", &mut from), (Vec::new(), false), "once");
    assert_eq!(mine.removals(&[7; 600], Some(from), 1000).wait().expect("answered").next, from);
    // The pool has its memory back.
    assert!(mine.put(key(1), &data(1, 0, 3 << 20)).wait().expect("put").is_stored());
}

#[test]
fn a_position_of_another_opening_is_told_that_it_missed_some() {
    let position =
        |rig: &Rig| rig.client().removals(b"", None, 1000).wait().expect("answered").next;
    let (first, second) = (Rig::soft(), Rig::soft());
    let mut from = position(&first);
    assert_ne!(from, position(&second));
    let client = second.client();
    assert_eq!(read(&client, b"", &mut from), (Vec::new(), true));
    assert_eq!(read(&client, b"", &mut from), (Vec::new(), false));
}

#[test]
fn a_use_that_reads_nothing_says_what_is_there() {
    let rig = Rig::soft();
    let client = rig.client();
    client.put(key(1), b"four").wait().expect("put");
    let asked = client.refresh_many([key(1), key(2), key(1)]);
    let found: Vec<bool> = asked.into_iter().map(|one| one.wait().expect("asked")).collect();
    assert_eq!(found, [true, false, true]);
    assert_eq!(client.info(key(1)).wait().expect("asked").expect("there").ttl_s, None);
    assert_eq!(client.stats().expect("counted").0.gets, 0);
}
