//! Conditions, versions, other expiries and scans of clients.

use std::time::Duration;

use adit_kvshare::client::PutWith;
use adit_kvshare::{Client, Error, KvStore, PendingAnswer, StoredBytes, Unfinished};
use adit_kvstore::shard::{Condition, Failure, Part};
use adit_kvstore::{Key, Version};

use crate::rig::{Rig, data, key};

fn with(condition: Condition) -> PutWith {
    PutWith { condition, ..PutWith::default() }
}

/// Returns the version that a conflict names.
fn found(unfinished: &Unfinished) -> Option<Version> {
    match &*unfinished.error {
        Error::Failed(Failure::Conflict { found }) => *found,
        other => panic!("{other}"),
    }
}

#[test]
fn of_increments_by_several_clients_none_is_lost() {
    let rig = Rig::soft();
    let clients: Vec<Client> = (0..3).map(|_| rig.client()).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                let mut left = 40;
                while left > 0 {
                    let value = client.get(key(1)).wait().expect("got");
                    let (number, condition) =
                        value.as_ref().map_or((0, Condition::Absent), |value| {
                            let number =
                                u64::from_le_bytes(value.to_vec().try_into().expect("a number"));
                            (number, Condition::Version(value.version()))
                        });
                    let bytes = (number + 1).to_le_bytes();
                    match client.put_with(key(1), &bytes, &with(condition)).wait() {
                        Ok(put) => {
                            assert!(put.version > value.map(|value| value.version()));
                            left -= 1;
                        }
                        Err(refused) => {
                            assert_ne!(found(&refused), value.map(|value| value.version()));
                        }
                    }
                }
            });
        }
    });
    let value = clients[0].get(key(1)).wait().expect("got").expect("a hit");
    assert_eq!(value.to_vec(), 120u64.to_le_bytes());
}

#[test]
fn a_client_sees_versions_and_its_reads_and_removals_name_them() {
    let rig = Rig::soft();
    let client = rig.client();
    let put = client.put(key(1), &data(1, 0, 300_000)).wait().expect("put");
    let first = put.version.expect("a version");
    let ttl = Some(Duration::from_secs(1000));
    let second = client.put_with(
        key(1),
        &data(1, 1, 300_000),
        &PutWith { ttl, ..with(Condition::Version(first)) },
    );
    let second = second.wait().expect("put").version.expect("a version");
    let info = client.info(key(1)).wait().expect("asked").expect("there");
    assert_eq!((info.bytes, info.version), (300_000, second));
    assert!(info.ttl_s.is_some_and(|ttl_s| (900..=1000).contains(&ttl_s)));
    assert_eq!(client.info(key(2)).wait().expect("asked"), None);
    let into = client.allocate(300_000).expect("memory");
    let refused = client.get_into_if(key(1), Part::All, into, first).wait().expect_err("replaced");
    assert_eq!(found(&refused), Some(second));
    let into = refused.memory.expect("it comes back");
    let read = client.get_into_if(key(1), Part::Bytes(0..131_072), into, second).wait();
    let read = read.expect("read");
    assert_eq!((read.bytes, read.version), (Some(131_072), Some(second)));
    assert_eq!(
        read.memory.as_ref().expect("it comes back").to_vec()[..131_072],
        data(1, 1, 300_000)[..131_072]
    );
    let refused = client.delete_if(key(1), first).wait().expect_err("replaced");
    assert_eq!(found(&refused), Some(second));
    assert!(client.delete_if(key(1), second).wait().expect("removed"));
    let refused = client.delete_if(key(1), second).wait().expect_err("there is none");
    assert_eq!(found(&refused), None);
}

#[test]
fn a_client_sets_and_lifts_expiries_of_many_objects_and_removes_them() {
    let rig = Rig::file();
    let client = rig.client();
    (0..50).for_each(|number| drop(client.put(key(number), b"x").wait().expect("put")));
    let answers = |pendings: Vec<adit_kvshare::client::Pending<bool>>| -> Vec<bool> {
        pendings.into_iter().map(|pending| pending.wait().expect("answered")).collect()
    };
    let touched = answers(client.touch_many((40..60).map(key), Duration::from_millis(99_100)));
    assert_eq!(touched, (40..60).map(|number| number < 50).collect::<Vec<_>>());
    assert!(client.persist(key(41)).wait().expect("lifted"));
    assert!(client.touch(key(42), Duration::from_secs(5000)).wait().expect("set"));
    let ttl_s = |number| client.info(key(number)).wait().expect("asked").expect("there").ttl_s;
    assert_eq!([ttl_s(0), ttl_s(41)], [None, None]);
    assert!(ttl_s(40).is_some_and(|ttl_s| (90..=100).contains(&ttl_s)));
    assert!(ttl_s(42).is_some_and(|ttl_s| ttl_s > 4000));
    let removed = answers(client.delete_many((45..55).map(key)));
    assert_eq!(removed, (45..55).map(|number| number < 50).collect::<Vec<_>>());
    let there = answers(client.exists_many((40..50).map(key)));
    assert_eq!(there, (40..50).map(|number| number < 45).collect::<Vec<_>>());
}

#[test]
fn a_client_reads_pages_of_keys() {
    let rig = Rig::soft();
    let client = rig.client();
    let named = |number: u64| {
        let text = format!("{}/{number}/{}", ["a", "b"][number as usize % 2], "x".repeat(400));
        Key::new(text.as_bytes()).expect("a key")
    };
    let puts = (0..600).map(|number| (named(number), b"four"));
    client
        .put_many(puts, &PutWith::default())
        .into_iter()
        .for_each(|put| drop(put.wait().expect("put")));
    for (prefix, count) in [(&b"a/"[..], 300), (b"", 600), (b"c", 0), (&[0; 600], 0)] {
        let (mut found, mut from, mut pages) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (page, next) = client.scan_prefix(prefix, at, 1000).wait().expect("a page");
            (from, pages) = (next, pages + 1);
            found.extend(page);
        }
        assert!(found.iter().all(|one| one.bytes == 4 && one.version > Version::NONE));
        let mut keys: Vec<Key> = found.into_iter().map(|one| one.key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count, "{prefix:?}");
        assert!(count < 600 || pages > 4, "{pages} pages");
    }
    // The pool has its memory back.
    assert!(client.put(key(1), &data(1, 0, 3 << 20)).wait().expect("put").is_stored());
}

#[test]
fn an_object_without_bytes_goes_through_shared_memory() {
    for rig in [Rig::soft(), Rig::file()] {
        let client = rig.client();
        assert!(client.put(key(1), b"").wait().expect("put").is_stored());
        let span = client.allocate(4096).expect("memory");
        let put =
            client.put(key(2), adit_kvshare::client::Data::Span(span, 0)).wait().expect("put");
        assert!(put.is_stored());
        for number in [1, 2] {
            let value = client.get(key(number)).wait().expect("got").expect("a hit");
            assert!(value.is_empty());
            assert_eq!(
                client.info(key(number)).wait().expect("asked").map(|info| info.bytes),
                Some(0)
            );
        }
        let memory = put.memory.expect("it comes back");
        let read = client.get_into(key(1), Part::All, memory).wait().expect("read");
        assert_eq!((read.bytes, read.memory.map(|memory| memory.len())), (Some(0), Some(4096)));
    }
}
