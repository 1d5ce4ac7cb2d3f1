//! Many at once, too much, too late, and in the middle of something else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::reactor::Cores;
use adit_kvstore::shard::Failure;
use adit_kvstore::store::{OpenOptions, PutWith, RefuseReason};
use adit_kvstore::{Error, Store};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    many_threads_see_only_what_was_put,
    memory_that_is_used_up_comes_back_when_a_value_is_dropped,
    waiting_for_memory_ends_with_the_timeout,
    what_is_cancelled_gives_its_memory_back,
    a_store_that_closes_under_load_answers_everybody,
    a_store_that_is_dropped_in_the_middle_comes_back,
);

fn many_threads_see_only_what_was_put(rig: &Rig) {
    rig.format(2);
    let options = OpenOptions { cores: Cores::Count(2), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = store.clone();
            scope.spawn(move || {
                let base = thread * 1000;
                for round in 0..60u64 {
                    let (number, len) = (base + round % 20, 1000 + 977 * round as usize);
                    let stamp = data(base + round, len);
                    assert!(store.put(key(number), &stamp).wait().expect("put").is_stored());
                    let value = store.get(key(number)).wait().expect("got").expect("there");
                    assert_eq!(value[..], stamp, "round {round} of thread {thread}");
                }
            });
        }
    });
    assert_eq!(store.close().expect("closed").objects, 80);
}

fn memory_that_is_used_up_comes_back_when_a_value_is_dropped(rig: &Rig) {
    let store = rig.format(1).open();
    let len = 3 << 20;
    for number in 0..3 {
        store.put(key(number), data(number, len)).wait().expect("put");
    }
    // Eight megabytes hold two values of three.
    let held = [0, 1].map(|n| store.get(key(n)).wait().expect("got").expect("there"));
    let third = store.get(key(2));
    let third = third.wait_timeout(Duration::from_millis(50)).expect_err("no memory");
    let busy = store.try_put(key(9), vec![1; len], &PutWith::default()).expect_err("no memory");
    assert!(matches!(busy.why, RefuseReason::Busy));
    assert_eq!(busy.data.bytes(), len as u64, "it comes back");
    drop(held);
    assert_eq!(third.wait().expect("got").expect("there")[..], data(2, len));
    let put = store.try_put(busy.key, busy.data, &PutWith::default()).expect("room");
    assert!(put.wait().expect("put").is_stored());
    let never = store.put(key(8), vec![1; 9 << 20]).wait().expect_err("more than there is");
    assert!(never.to_string().contains("raise pool_bytes"), "{never}");
}

fn waiting_for_memory_ends_with_the_timeout(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { timeout: Duration::from_millis(200), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 100_000)).wait().expect("put");
    let all = store.buffer(8 << 20).expect("all of it");
    let is_timeout = |error: &Error| matches!(error, Error::Timeout { .. });
    let get = store.get(key(1)).wait().expect_err("no memory");
    assert!(is_timeout(&get.error) && get.to_string().contains("200 ms"), "{get}");
    let put = store.put(key(2), &[1; 5000]).wait().expect_err("no memory");
    assert!(is_timeout(&put.error), "{put}");
    assert!(is_timeout(&store.buffer(1).expect_err("no memory")));
    drop(all);
    assert!(store.get(key(1)).wait().expect("got").is_some());
}

fn what_is_cancelled_gives_its_memory_back(rig: &Rig) {
    let store = rig.format(2).open();
    let object = data(1, 1 << 20);
    store.put(key(1), &object).wait().expect("put");
    for _ in 0..200 {
        drop(store.get(key(1)));
        drop(store.put(key(2), &object));
    }
    // All of it is there again, in one piece.
    assert_eq!(store.buffer(8 << 20).expect("all of it").len(), 8 << 20);
}

fn a_store_that_closes_under_load_answers_everybody(rig: &Rig) {
    let store = rig.format(2).open();
    let (puts, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, puts, refused) = (store.clone(), &puts, &refused);
            scope.spawn(move || {
                for round in 0.. {
                    let number = thread << 32 | round;
                    match store.put(key(number), data(number, 3000)).wait() {
                        Ok(_) => puts.fetch_add(1, Ordering::Relaxed),
                        Err(unfinished) => {
                            assert_eq!(unfinished.failure(), Some(&Failure::Closed));
                            refused.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                    };
                }
            });
        }
        while puts.load(Ordering::Relaxed) < 50 {
            std::thread::yield_now();
        }
        let other = store.clone();
        let stats = store.close().expect("closed");
        assert!(stats.puts >= 50);
        let again = other.close().expect_err("closed already");
        assert!(matches!(again, Error::Failed(Failure::Closed)));
    });
    assert_eq!(refused.into_inner(), 3);
    let found: u64 = rig.open().recoveries().iter().map(|recovery| recovery.objects).sum();
    assert_eq!(found, puts.into_inner(), "what was acknowledged before a clean stop");
}

fn a_store_that_is_dropped_in_the_middle_comes_back(rig: &Rig) {
    let store = rig.format(1).open();
    let pendings: Vec<_> =
        (0..50).map(|number| store.put(key(number), data(number, 10_000))).collect();
    let writer = store.reserve(key(99), 100_000, &PutWith::default()).wait().expect("room");
    let lease = store.lease(&[key(0)], Duration::from_secs(60)).expect("leased");
    drop(store);
    for pending in pendings {
        assert!(pending.wait().expect("it was sent before").is_stored());
    }
    let closed = writer.fill(0, &[1; 100_000]).wait().expect_err("closed");
    assert_eq!(closed.failure(), Some(&Failure::Closed));
    drop((writer, lease));
    let store = rig.open();
    for number in 0..50 {
        let value = store.get(key(number)).wait().expect("got").expect("there");
        assert_eq!(value[..], data(number, 10_000));
    }
    assert!(!store.exists(key(99)).wait().expect("known"), "never committed");
}

#[test]
fn a_store_is_opened_once_at_a_time() {
    let rig = Rig::file();
    let store = rig.format(1).open();
    for opened in [Store::open(&rig.options()).err(), Store::open_local(&rig.options()).err()] {
        let message = opened.expect("refused").to_string();
        assert!(message.contains("another process or handle has it open"), "{message}");
    }
    drop(store);
    drop(Store::open_local(&rig.options()).expect("it was closed"));
    drop(rig.open());
}

#[test]
fn options_that_cannot_be_are_refused_with_what_to_do() {
    let rig = Rig::soft();
    rig.format(1);
    let refused = |change: fn(&mut OpenOptions)| {
        let mut options = rig.options();
        change(&mut options);
        Store::open(&options).expect_err("refused").to_string()
    };
    assert!(refused(|options| options.pool_bytes = 5).contains("pool_bytes"));
    assert!(refused(|options| options.mailbox_depth = 0).contains("mailbox_depth"));
    assert!(refused(|options| options.queue_depth = 0).contains("queue_depth"));
    assert!(refused(|options| options.timeout = Duration::ZERO).contains("timeout"));
    assert!(refused(|options| options.devices.clear()).contains("name at least one device"));
    assert!(refused(|options| options.cores = Cores::List(vec![])).contains("none asked for"));
}
