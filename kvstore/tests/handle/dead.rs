//! A thread of the store that panics: what its callers are told, and when.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use adit_driver::runtime::Cores;
use adit_kvstore::evict::{Policy, PolicyMaker};
use adit_kvstore::shard::Failure;
use adit_kvstore::{Error, ObjectId, OpenOptions, PolicyKind, Store};

use crate::rig::{Rig, data, key};

/// How long what must not wait for a deadline may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Panics at the first object.
struct Fatal;

impl Policy for Fatal {
    fn inserted(&mut self, _: ObjectId, _: u64) {
        panic!("as arranged");
    }
    fn touched(&mut self, _: ObjectId) {}
    fn removed(&mut self, _: ObjectId) {}
    fn evicted(&mut self, _: ObjectId, _: u64) {}
    fn victim(&mut self, _: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        None
    }
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// Opens a store whose first shard's thread dies of its first object.
fn open(rig: &Rig, cores: Cores) -> Store {
    let built = AtomicU32::new(0);
    let maker = PolicyMaker::new(move |objects_max| match built.fetch_add(1, Ordering::Relaxed) {
        0 => Box::new(Fatal),
        _ => PolicyKind::Lru.build(objects_max),
    });
    let timeout = Duration::from_secs(600);
    let (custom_policy, cores) = (Some(maker), Some(cores));
    let options = OpenOptions { custom_policy, cores, timeout, ..rig.options() };
    Store::open(&options).expect("a store")
}

/// Puts objects; returns how many were stored. The others fail at once, as the store's thread has ended.
fn put_some(store: &Store) -> usize {
    let puts: Vec<_> = (0..32).map(|number| store.put(key(number), data(number, 5000))).collect();
    let answers = puts.into_iter().map(|put| put.wait_timeout(AT_ONCE).expect("told at once"));
    let refusals = answers.filter_map(Result::err);
    32 - refusals.inspect(|why| assert_eq!(why.failure(), Some(&Failure::Closed), "{why}")).count()
}

fn assert_died(error: &Error) {
    let Error::Died { thread, why } = error else { panic!("{error}") };
    assert_eq!((&**thread, &**why), ("adit-kv-0", "as arranged"));
}

#[test]
fn a_store_whose_thread_died_refuses_at_once_and_says_why_until_it_is_opened_again() {
    let rig = Rig::soft();
    let store = open(rig.format(2), Cores::Unpinned(1));
    store.check().expect("it lives");
    let handle = store.clone();
    // The other shard of the thread may be faster.
    assert!(put_some(&store) < 32);
    assert_eq!(put_some(&store), 0);
    assert_died(&store.check().expect_err("it died"));
    let closed = store.close().wait_timeout(AT_ONCE).expect("it ends").expect_err("it died");
    assert_died(&closed.error);
    assert_died(&handle.check().expect_err("it died"));
    drop(handle);
    let again = rig.open();
    again.put(key(1), b"x").wait().expect("put");
    again.close().wait().expect("closed");
}

#[test]
fn the_other_threads_of_a_store_go_on() {
    let rig = Rig::soft();
    let store = open(rig.format(2), Cores::Unpinned(2));
    assert!((1..32).contains(&put_some(&store)));
    assert_died(&store.check().expect_err("one died"));
    let closed = store.close().wait().expect_err("one died");
    assert_died(&closed.error);
}

#[test]
fn a_thread_that_dies_while_it_opens_its_shards_ends_the_opening() {
    let rig = Rig::soft();
    rig.format(2);
    let custom_policy = Some(PolicyMaker::new(|_| panic!("as arranged")));
    let options = OpenOptions { custom_policy, ..rig.options() };
    let (sender, opened) = mpsc::channel();
    std::thread::spawn(move || sender.send(Store::open(&options).map(drop)));
    let opened = opened.recv_timeout(AT_ONCE).expect("it does not wait for a dead thread");
    assert_died(&opened.expect_err("it died"));
}
