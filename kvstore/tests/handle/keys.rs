//! Conditional changes, versions, other expiries, calls for many keys, pages of a prefix, removals, and objects without bytes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Condition, Failure, Outcome, Part};
use adit_kvstore::store::{Payload, PutWith, Unfinished};
use adit_kvstore::{Durability, Error, Key, OpenOptions, Store, Version};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    of_increments_by_many_threads_none_is_lost,
    of_many_threads_that_put_if_absent_one_stores,
    a_range_is_of_the_version_that_it_was_told,
    versions_and_times_stay_after_a_restart,
    an_expiry_is_set_and_lifted_without_writing_data,
    many_keys_are_looked_up_and_removed_together,
    a_prefix_is_read_in_pages,
    what_goes_is_told_once_over_all_shards,
    an_object_without_bytes_passes_through_every_call,
);

fn found(unfinished: &Unfinished) -> Option<Version> {
    match &*unfinished.error {
        Error::Failed(Failure::Conflict { found }) => *found,
        other => panic!("{other}"),
    }
}

fn with(condition: Condition) -> PutWith {
    PutWith { condition, ..PutWith::default() }
}

fn open(rig: &Rig, durability: Durability) -> Store {
    Store::open(&OpenOptions { durability, ..rig.options() }).expect("a store")
}

/// Adds one to the number that is stored, whatever others do.
fn increment(store: &Store) {
    loop {
        let value = store.get(key(1)).wait().expect("read");
        let (number, condition) = match &value {
            None => (0, Condition::Absent),
            Some(value) => {
                let number = u64::from_le_bytes(value[..].try_into().expect("eight bytes"));
                (number, Condition::Version(value.version()))
            }
        };
        let put = store.put_with(key(1), (number + 1).to_le_bytes().to_vec(), &with(condition));
        match put.wait() {
            Ok(put) => {
                assert!(put.version > value.map(|value| value.version()), "versions rise");
                return;
            }
            Err(unfinished) => assert!(found(&unfinished) != value.map(|value| value.version())),
        }
    }
}

fn of_increments_by_many_threads_none_is_lost(rig: &Rig) {
    for (durability, rounds) in
        [(Durability::Volatile, 100), (Durability::Restart, 100), (Durability::Durable, 10)]
    {
        let store = open(rig.format(2), durability);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..rounds).for_each(|_| increment(&store)));
            }
        });
        let last = store.get(key(1)).wait().expect("read").expect("stored");
        assert_eq!(last[..], (4 * rounds as u64).to_le_bytes(), "{durability:?}");
        drop(last);
        store.close().wait().expect("closed");
    }
}

fn of_many_threads_that_put_if_absent_one_stores(rig: &Rig) {
    let store = rig.format(2).open();
    for number in 0..20 {
        let results: Vec<_> = std::thread::scope(|scope| {
            let put = |thread: u64| {
                let store = &store;
                let put = move || {
                    let bytes = data(thread, 100_000);
                    store.put_with(key(number), bytes, &with(Condition::Absent)).wait()
                };
                scope.spawn(put)
            };
            let threads: Vec<_> = (0..4).map(put).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let winner = results.iter().position(Result::is_ok).expect("one stores");
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let value = store.get(key(number)).wait().expect("read").expect("stored");
        assert_eq!(value[..], data(winner as u64, 100_000));
        let version = Some(value.version());
        assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|err| found(err) == version));
    }
}

fn a_range_is_of_the_version_that_it_was_told(rig: &Rig) {
    let store = rig.format(2).open();
    let bytes = data(1, 1 << 20);
    let first = store.put(key(1), bytes.clone()).wait().expect("stored").version.expect("one");
    let range = |range, version| store.get_range_if(key(1), range, version).wait();
    let begin = range(0..400_000, first).expect("read").expect("there");
    assert_eq!((&begin[..], begin.version()), (&bytes[..400_000], first));
    let second = store.put(key(1), data(2, 1 << 20)).wait().expect("stored").version;
    let refused = range(400_000..1 << 20, first).expect_err("it was replaced");
    assert_eq!(found(&refused), second);
    assert!(refused.to_string().contains(&second.expect("one").to_string()), "{refused}");
    let into = store.allocate(1 << 20).expect("memory");
    let refused = store.get_into_if(key(1), Part::All, into, first).wait().expect_err("replaced");
    let AnyBuffer::One(into) = refused.memory else { panic!("the memory comes back") };
    let read = store.get_into_if(key(1), Part::All, into, second.expect("one")).wait();
    let read = read.expect("read");
    assert_eq!((read.bytes, read.version), (Some(1 << 20), second));
    let gone = store.delete_if(key(1), first).wait().expect_err("another version");
    assert_eq!(found(&gone), second);
    assert!(store.delete_if(key(1), second.expect("one")).wait().expect("removed"));
    assert!(range(0..1, first).expect("a miss").is_none());
    let gone = store.delete_if(key(1), first).wait().expect_err("there is none");
    assert_eq!(found(&gone), None);
}

fn versions_and_times_stay_after_a_restart(rig: &Rig) {
    let before = SystemTime::now();
    let store = rig.format(2).open();
    let puts = store.put_many(
        (0..50).map(|number| (key(number), data(number, 5000))),
        &with(Condition::Absent),
    );
    let versions: Vec<Version> = puts
        .wait()
        .into_iter()
        .map(|put| put.expect("stored").version.expect("a version"))
        .collect();
    store.close().wait().expect("closed");
    let store = rig.open();
    for (number, version) in (0..).zip(&versions) {
        let info = store.info(key(number)).wait().expect("known").expect("there");
        assert_eq!(info.version, *version);
        let time = info.version.time().expect("a time");
        // The system's clock may be adjusted while this runs.
        let early = before.duration_since(time).unwrap_or_default();
        let late = time.duration_since(SystemTime::now()).unwrap_or_default();
        assert!(early < Duration::from_secs(60) && late < Duration::from_secs(60), "{time:?}");
    }
    let again = store.put_with(key(7), vec![1], &with(Condition::Version(versions[7])));
    assert!(again.wait().expect("stored").version > Some(versions[7]));
}

fn an_expiry_is_set_and_lifted_without_writing_data(rig: &Rig) {
    for durability in [Durability::Restart, Durability::Durable] {
        let store = open(rig.format(2), durability);
        (0..20).for_each(|number| {
            drop(store.put(key(number), data(number, 9000)).wait().expect("put"))
        });
        let written = store.stats().wait().expect("counted").bytes_written;
        assert!(store.touch(key(1), Duration::from_millis(99_500)).wait().expect("touched"));
        assert!(!store.touch(key(99), Duration::from_secs(9)).wait().expect("known"));
        let keys = (0..30).map(key);
        let touched = store.touch_many(keys, Duration::from_secs(1000)).wait();
        let touched: Vec<bool> = touched.into_iter().map(|answer| answer.expect("known")).collect();
        assert_eq!(touched, (0..30).map(|number| number < 20).collect::<Vec<_>>());
        assert!(store.touch(key(1), Duration::from_millis(99_500)).wait().expect("touched"));
        assert!(store.persist(key(2)).wait().expect("lifted"));
        let ttl = |store: &Store, number| {
            store.info(key(number)).wait().expect("known").expect("there").ttl_s
        };
        assert!((90..=100).contains(&ttl(&store, 1).expect("it expires")));
        assert_eq!(store.stats().wait().expect("counted").bytes_written, written);
        store.close().wait().expect("closed");
        let store = open(rig, durability);
        assert!((90..=100).contains(&ttl(&store, 1).expect("it expires")));
        assert_eq!(ttl(&store, 2), None);
        assert!((900..=1000).contains(&ttl(&store, 3).expect("it expires")));
        assert_eq!(store.get(key(1)).wait().expect("read").expect("there")[..], data(1, 9000));
        store.close().wait().expect("closed");
    }
}

fn many_keys_are_looked_up_and_removed_together(rig: &Rig) {
    let store = rig.format(4).open();
    for number in (0..100).step_by(3) {
        store.put(key(number), vec![1]).wait().expect("stored");
    }
    let keys: Vec<Key> = (0..100).map(key).collect();
    let there: Vec<bool> = (0..100).map(|number| number % 3 == 0).collect();
    let exist = |keys: &[Key]| -> Vec<bool> {
        let answers = store.exists_many(keys.iter().cloned()).wait();
        answers.into_iter().map(|answer| answer.expect("known")).collect()
    };
    assert_eq!(exist(&keys), there);
    assert_eq!(exist(&[]), Vec::<bool>::new());
    let removed = store.delete_many(keys.iter().take(50).cloned()).wait();
    let removed: Vec<bool> = removed.into_iter().map(|answer| answer.expect("known")).collect();
    assert_eq!(removed, there[..50]);
    let left: Vec<bool> = there.iter().enumerate().map(|(at, there)| at >= 50 && *there).collect();
    assert_eq!(exist(&keys), left);
    assert!(store.delete_many([]).wait().is_empty());
}

fn a_prefix_is_read_in_pages(rig: &Rig) {
    let store = rig.format(4).open();
    let named = |text: &str| Key::try_from(text).expect("a key");
    for number in 0..60 {
        let key = named(&format!("{}/{number}", ["a", "b", "c"][number % 3]));
        store.put(key, vec![1]).wait().expect("stored");
    }
    for (prefix, count) in [("b/", 20), ("", 60), ("d", 0)] {
        let (mut found, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let page = store.scan_prefix(prefix.as_bytes(), at, 3);
            let (page, next) = page.wait().expect("scanned");
            assert!(page.len() <= 3);
            found.extend(page.into_iter().map(|info| info.key));
            from = next;
        }
        assert!(found.iter().all(|key| key.as_bytes().starts_with(prefix.as_bytes())));
        found.sort();
        found.dedup();
        assert_eq!(found.len(), count, "{prefix}");
    }
}

fn an_object_without_bytes_passes_through_every_call(rig: &Rig) {
    let options = OpenOptions { tier_bytes: 8 << 20, ..rig.format(2).options() };
    let store = Store::open(&options).expect("a store");
    let empty = |value: Option<adit_kvstore::store::Value>| {
        value.is_some_and(|value| value.is_empty() && value.object_bytes() == 0)
    };
    let lent = store.allocate(4096).expect("memory");
    assert!(store.put(key(1), vec![]).wait().expect("put").is_stored());
    assert!(store.put(key(2), &[0u8; 0]).wait().expect("put").is_stored());
    let put = store.put(key(3), Payload::lent(lent, 0)).wait().expect("put");
    assert!(put.is_stored() && matches!(&put.memory, AnyBuffer::One(lent) if lent.len() == 4096));
    assert!(store.put(key(4), AnyBuffer::None).wait().expect("put").is_stored());
    let buffer = store.buffer(0).wait().expect("memory");
    assert!(store.put(key(5), buffer).wait().expect("put").is_stored());
    assert!(store.try_put(key(6), vec![], &PutWith::default()).expect("room").wait().is_ok());
    let batch = store
        .put_many([(key(7), vec![]), (key(8), vec![8]), (key(9), vec![])], &PutWith::default());
    assert!(batch.wait().into_iter().all(|put| put.expect("put").is_stored()));
    let writer = store.reserve(key(10), 0, &PutWith::default()).wait().expect("room");
    assert_eq!(writer.commit().wait().expect("sealed"), Outcome::Stored);
    let all: Vec<u64> = (1..=10).filter(|number| *number != 8).collect();
    let check = |store: &Store| {
        for number in &all {
            for _ in 0..3 {
                assert!(empty(store.get(key(*number)).wait().expect("read")), "{number}");
                assert!(empty(store.get_range(key(*number), 0..10).wait().expect("read")));
            }
            assert!(store.get_range(key(*number), 1..10).wait().is_err(), "behind its end");
            let info = store.info(key(*number)).wait().expect("known").expect("there");
            assert_eq!(info.bytes, 0);
            for memory in [AnyBuffer::None, AnyBuffer::One(store.allocate(4096).expect("memory"))] {
                let (part, has) = (Part::All, matches!(memory, AnyBuffer::One(_)));
                let read = store.get_into(key(*number), part, memory).wait().expect("read");
                assert_eq!(read.bytes, Some(0));
                assert_eq!(matches!(read.memory, AnyBuffer::One(_)), has, "it comes back");
            }
        }
        let values = store.get_many(all.iter().map(|number| key(*number))).wait();
        assert!(values.into_iter().all(|value| empty(value.expect("read"))));
        let keys: Vec<Key> = all.iter().map(|number| key(*number)).collect();
        let exist = store.exists_many(keys.iter().cloned()).wait();
        assert!(exist.into_iter().all(|answer| answer.expect("known")));
        assert_eq!(store.lookup_prefix(&keys).wait().expect("known"), keys.len());
        let lease = store.lease(&keys, Duration::from_secs(10)).wait().expect("leased");
        assert_eq!(lease.count(), keys.len());
    };
    check(&store);
    assert!(store.stats().wait().expect("counted").tier_hits > 0);
    store.close().wait().expect("closed");
    let store = Arc::new(rig.open());
    check(&store);
    assert!(store.put(key(1), vec![1; 10]).wait().expect("put").is_stored());
    assert!(store.put_with(key(1), vec![], &PutWith::default()).wait().expect("put").is_stored());
    assert!(empty(store.get(key(1)).wait().expect("read")));
    assert!(store.delete(key(1)).wait().expect("removed"));
}

fn what_goes_is_told_once_over_all_shards(rig: &Rig) {
    let store = Store::open(&OpenOptions { capacity_objects: Some(64), ..rig.format(2).options() });
    let store = store.expect("a store");
    let read = |from| store.removals(b"", from, 1000).wait().expect("read");
    let mut from = read(None).next;
    let keys = || (0..300).map(key);
    for key in keys() {
        store.put(key, data(1, 4096)).wait().expect("stored");
        // Those that were put last, and the first, which is used again and again.
        let used: Vec<bool> = store
            .refresh_many([self::key(0)])
            .into_iter()
            .map(|one| one.wait().expect("asked"))
            .collect();
        assert_eq!(used, [true]);
    }
    let removed = read(Some(from));
    assert!(!removed.missed_some);
    from = removed.next;
    let there: Vec<bool> =
        store.exists_many(keys()).into_iter().map(|one| one.wait().expect("asked")).collect();
    let mut told = removed.keys;
    told.sort();
    let mut gone: Vec<Key> =
        keys().zip(&there).filter(|(_, there)| !**there).map(|(key, _)| key).collect();
    gone.sort();
    assert_eq!(told, gone);
    assert!(there[0] && gone.len() >= 236, "{}", gone.len());
    assert_eq!(read(Some(from)).keys, []);
    store.close().wait().expect("closed");
    let store = rig.open();
    let read = store.removals(b"", Some(from), 1000).wait().expect("read");
    assert!(read.missed_some, "another opening");
    store.close().wait().expect("closed");
}
