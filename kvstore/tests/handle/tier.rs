//! The memory tier behind a handle: values that share its bytes, how large it is, and what is counted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Action, GetItem, Outcome, Part, PutItem, PutOptions, Request};
use adit_kvstore::store::{Feed, Local, OpenOptions};
use adit_kvstore::{Error, Key, Store};
use nix::sys::eventfd::EventFd;

use crate::on_each_path;
use crate::rig::{Rig, data, key};

const MIB: u64 = 1 << 20;

on_each_path!(
    values_share_the_bytes_in_memory_and_outlive_their_object,
    ranges_and_parts_come_from_memory_too,
    a_tier_changes_its_size_while_readers_and_writers_are_at_work,
    a_local_store_has_a_tier_as_well,
    a_tier_that_grew_in_steps_has_room_for_objects_longer_than_a_step,
    an_object_in_memory_is_read_without_the_store_s_thread,
    an_answer_that_is_thrown_away_unread_counts_as_read,
);

fn open(rig: &Rig, shards: u16, tier_bytes: u64) -> Store {
    rig.format(shards);
    Store::open(&OpenOptions { tier_bytes, ..rig.options() }).expect("a store")
}

fn put(store: &Store, number: u64, bytes: &[u8]) {
    assert!(store.put(key(number), bytes).wait().expect("an answer").is_stored());
}

fn values_share_the_bytes_in_memory_and_outlive_their_object(rig: &Rig) {
    let store = open(rig, 1, 4 * MIB);
    let (old, new) = (data(1, 200_001), data(2, 150_000));
    put(&store, 1, &old);
    let get = || store.get(key(1)).wait().expect("an answer");
    assert_eq!(get().as_deref(), Some(&old[..]));
    let [first, second] = [get(), get()].map(|value| value.expect("a hit"));
    assert_eq!((&first[..], &second[..], first.object_bytes()), (&old[..], &old[..], 200_001));
    assert!(std::ptr::eq(first.as_ptr(), second.as_ptr()), "one copy in memory");
    put(&store, 1, &new);
    assert_eq!(get().as_deref(), Some(&new[..]));
    assert_eq!(get().as_deref(), Some(&new[..]));
    assert_eq!((&first[..], &second[..]), (&old[..], &old[..]), "what is held stays");
    assert!(store.delete(key(1)).wait().expect("an answer"));
    assert!(get().is_none());
    let stats = store.stats().wait().expect("counters");
    assert_eq!((stats.tier_hits, stats.tier_admissions, stats.tier_invalidations), (3, 2, 2));
    assert_eq!((stats.gets, stats.hits, stats.misses), (6, 5, 1));
    store.close().wait().expect("closed");
    assert_eq!(&first[..], &old[..], "also when the store is gone");
}

fn ranges_and_parts_come_from_memory_too(rig: &Rig) {
    let store = open(rig, 1, 8 * MIB);
    let bytes = data(3, 300_000);
    put(&store, 3, &bytes);
    assert!(store.get(key(3)).wait().expect("an answer").is_some());
    for range in [0..300_000, 5..6, 131_000..140_000, 299_999..400_000] {
        let value = store.get_range(key(3), range.clone()).wait().expect("an answer");
        let wanted = &bytes[range.start as usize..range.end.min(300_000) as usize];
        assert_eq!(value.as_deref(), Some(wanted), "{range:?}");
    }
    assert!(store.get_range(key(3), 300_000..300_001).wait().is_err(), "it begins at the end");
    let into = store.allocate(1 << 20).expect("memory");
    let read = store.get_into(key(3), Part::Bytes(128 << 10..256 << 10), into);
    let read = read.wait().expect("an answer");
    assert_eq!(read.bytes, Some(128 << 10));
    let AnyBuffer::One(into) = read.memory else { panic!("one was given") };
    assert_eq!(&into[..128 << 10], &bytes[128 << 10..256 << 10]);
    let stats = store.stats().wait().expect("counters");
    assert_eq!((stats.tier_hits, stats.hits), (5, 6));
    let samples = samples(&store);
    for (name, value) in [
        ("adit_kv_tier_hits_total", stats.tier_hits),
        ("adit_kv_tier_hit_bytes_total", stats.tier_hit_bytes),
        ("adit_kv_tier_admissions_total", 1),
        ("adit_kv_tier_evictions_total", 0),
        ("adit_kv_tier_invalidations_total", 0),
        ("adit_kv_tier_objects", 1),
        ("adit_kv_tier_used_bytes", 303_104),
        ("adit_kv_tier_bytes", 8 * MIB),
    ] {
        assert_eq!(samples.get(name), Some(&(value as f64)), "{name}");
    }
}

fn samples(store: &Store) -> BTreeMap<String, f64> {
    let text = store.prometheus().wait().expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.rsplit_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

/// Writers replace objects in turn while readers check that each is one version, and no older than the last that was
/// acknowledged before the read.
fn a_tier_changes_its_size_while_readers_and_writers_are_at_work(rig: &Rig) {
    const KEYS: u64 = 24;
    let store = open(rig, 2, 2 * MIB);
    let write = |store: &Store, number: u64, version: u64| {
        put(store, number, &data(number << 32 | version, 40_000));
    };
    (0..KEYS).for_each(|number| write(&store, number, 0));
    let acknowledged: Arc<Vec<AtomicU64>> =
        Arc::new((0..KEYS).map(|_| Default::default()).collect());
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2u64)
        .map(|seed| {
            let (store, acknowledged) = (store.clone(), Arc::clone(&acknowledged));
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                let (mut number, mut reads) = (seed, 0);
                while !is_over.load(Ordering::SeqCst) {
                    number = (number * 5 + 1) % KEYS;
                    let least = acknowledged[number as usize].load(Ordering::SeqCst);
                    let value = store.get(key(number)).wait().expect("an answer").expect("a hit");
                    let is_right = (least..least + 50)
                        .any(|version| value[..] == data(number << 32 | version, 40_000)[..]);
                    assert!(is_right, "object {number}, from version {least} on");
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    for round in 1..40u64 {
        for number in (round % 3..KEYS).step_by(3) {
            write(&store, number, round);
            acknowledged[number as usize].store(round, Ordering::SeqCst);
        }
        let wanted = [0, 2 * MIB, 9 * MIB, 4 * MIB][round as usize % 4];
        assert_eq!(store.set_tier(wanted).expect("memory"), wanted);
        assert_eq!(store.stats().wait().expect("counters").tier_bytes, wanted);
    }
    is_over.store(true, Ordering::SeqCst);
    let reads: u64 = readers.into_iter().map(|reader| reader.join().expect("right")).sum();
    let stats = store.stats().wait().expect("counters");
    assert!(stats.tier_hits > 0 && stats.tier_invalidations > 0, "{reads} reads: {stats:?}");
    store.close().wait().expect("closed");
}

fn a_local_store_has_a_tier_as_well(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { tier_bytes: MIB, ..rig.options() };
    let mut local = Store::open_local(&options).expect("a store");
    let memory = |local: &Local, fill: u8| {
        let mut memory = local.allocate(8192).expect("memory");
        drop(memory.split_off(8192));
        memory.fill(fill);
        AnyBuffer::One(memory)
    };
    let run = |local: &mut Local, action| {
        local.submit(local.now(), Request { reply: 1, deadline: Time::NEVER, action });
        let mut ended = None;
        while ended.is_none() {
            let now = local.now();
            local.poll(now, &mut |done| ended = Some(done.result));
        }
        ended.expect("it ended").expect("no failure")
    };
    let (name, bytes): (Key, u64) = (key(1), 8192);
    let (data, options) = (memory(&local, 4), PutOptions::default());
    let put = PutItem { key: name.clone(), bytes, data, options };
    assert_eq!(run(&mut local, Action::Put(put)), Outcome::Stored);
    for _ in 0..3 {
        let get =
            GetItem { key: name.clone(), part: Part::All, into: memory(&local, 0), version: None };
        assert_eq!(run(&mut local, Action::Get(get)), Outcome::Hit { bytes });
    }
    assert_eq!(local.stats().tier_hits, 2);
    assert_eq!(local.set_tier(0).expect("none"), 0);
    assert_eq!((local.stats().tier_objects, local.stats().tier_bytes), (0, 0));
}

#[test]
fn a_store_with_a_tier_is_opened_again_as_soon_as_it_is_dropped() {
    let rig = Rig::file();
    drop(open(&rig, 2, 8 * MIB));
    for round in 0..20 {
        let options = OpenOptions { tier_bytes: 8 * MIB, ..rig.options() };
        let store = Store::open(&options).expect("nothing has its file");
        if round % 2 == 0 {
            // Its thread ends with the tier, and another follows the next one.
            assert_eq!(store.set_tier(0).expect("none"), 0);
            assert_eq!(store.set_tier(4 * MIB).expect("memory"), 4 * MIB);
        }
        if round % 3 == 0 {
            store.close().wait().expect("closed");
        }
    }
}

fn a_tier_that_grew_in_steps_has_room_for_objects_longer_than_a_step(rig: &Rig) {
    let store = open(rig, 1, 2 * MIB);
    let bytes = data(7, 5 << 20);
    put(&store, 7, &bytes);
    for mebibytes in (4..=40).step_by(4) {
        assert_eq!(store.set_tier(mebibytes * MIB).expect("memory"), mebibytes * MIB);
    }
    for _ in 0..2 {
        let value = store.get(key(7)).wait().expect("an answer");
        assert_eq!(value.as_deref(), Some(&bytes[..]));
    }
    let stats = store.stats().wait().expect("counters");
    assert_eq!((stats.tier_bytes, stats.tier_hits), (40 * MIB, 1));
}

#[test]
fn a_tier_of_less_than_a_shard_has_use_for_is_refused_before_anything_is_written() {
    let rig = Rig::file();
    rig.format(2);
    let before = std::fs::read(rig.path()).expect("read");
    let options = OpenOptions { tier_bytes: MIB, ..rig.options() };
    for opened in [Store::open(&options).map(drop), Store::open_local(&options).map(drop)] {
        let why = opened.expect_err("too little");
        let is_invalid = matches!(why, Error::Invalid { .. });
        assert!(is_invalid && why.to_string().contains("tier_bytes"), "{why}");
    }
    assert!(std::fs::read(rig.path()).expect("read") == before, "no session began");
}

/// A feed in whose turn the store's thread stays until it is let go.
struct Gate {
    holds: Sender<()>,
    lets_go: Receiver<()>,
    bell: EventFd,
}

impl Feed for Gate {
    fn turn(&mut self) -> Option<usize> {
        self.holds.send(()).ok()?;
        // Ends with the test at the latest.
        let _ = self.lets_go.recv();
        None
    }

    fn announce(&mut self) -> bool {
        true
    }

    fn resume(&mut self) {}

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn an_object_in_memory_is_read_without_the_store_s_thread(rig: &Rig) {
    let store = open(rig, 1, 8 * MIB);
    let bytes = data(4, 300_000);
    put(&store, 4, &bytes);
    assert!(store.get(key(4)).wait().expect("an answer").is_some());
    let ((holds, held), (let_go, lets_go)) = (channel(), channel());
    let bell = EventFd::new().expect("eventfd");
    let attached = store.attach_feed(Box::new(Gate { holds, lets_go, bell }));
    held.recv().expect("the thread is held");
    let into = || AnyBuffer::One(store.allocate(1 << 20).expect("memory"));
    let value = store.get(key(4)).try_wait().expect("at once").expect("an answer");
    assert_eq!(value.as_deref(), Some(&bytes[..]));
    let value = store.get_range(key(4), 131_000..140_000).try_wait().expect("at once");
    assert_eq!(value.expect("an answer").as_deref(), Some(&bytes[131_000..140_000]));
    let read = store.get_into(key(4), Part::All, into()).try_wait().expect("at once");
    let read = read.expect("an answer");
    let (AnyBuffer::One(memory), Some(300_000)) = (read.memory, read.bytes) else {
        panic!("all of it in one buffer")
    };
    assert_eq!(memory[..300_000], bytes);
    let many = store.get_many([key(4), key(4)]).into_iter();
    assert!(many.map(|one| one.try_wait()).all(|one| one.is_ok()), "lists as well");
    // What is out of the ordinary, the thread answers.
    let odd = store.get_into(key(4), Part::Bytes(1..2), into());
    let miss = store.get(key(5)).try_wait().expect_err("the thread looks for it");
    let odd = odd.try_wait().expect_err("the thread refuses it");
    let_go.send(()).expect("it is held");
    assert!(miss.wait().expect("an answer").is_none() && odd.wait().is_err());
    drop(attached);
    let stats = store.stats().wait().expect("counters");
    assert_eq!((stats.tier_hits, stats.hits, stats.misses), (5, 6, 1));
    assert_eq!(stats.gets - stats.hits - stats.misses, 1, "the part that it does not have");
    assert_eq!(samples(&store)["adit_kv_request_seconds_count{request=\"get_hit\"}"], 6.0);
}

fn an_answer_that_is_thrown_away_unread_counts_as_read(rig: &Rig) {
    let store = open(rig, 1, 0);
    put(&store, 6, &data(6, 5000));
    let pending = store.get(key(6));
    // The thread has answered what came before.
    assert!(store.get(key(6)).wait().expect("an answer").is_some());
    drop(pending);
    let stats = store.stats().wait().expect("counters");
    assert_eq!((stats.gets, stats.hits, stats.bytes_read), (2, 2, 10_000));
}
