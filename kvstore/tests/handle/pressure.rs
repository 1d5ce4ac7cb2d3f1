//! Load: many requests at once, too much, too late, and interrupted.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Cores;
use adit_kvstore::shard::{Failure, Part};
use adit_kvstore::store::{
    Answer, OpenOptions, Payload, Pending, PutWith, RefuseReason, Unfinished, Value,
};
use adit_kvstore::{Error, Key, Store};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    many_threads_see_only_what_was_put,
    memory_that_is_used_up_comes_back_when_a_value_is_dropped,
    only_a_buffer_waits_for_callers_and_until_the_timeout,
    a_request_that_is_given_up_gives_its_place_to_the_next,
    the_last_change_of_a_key_wins_whatever_the_one_before_waited_for,
    changes_that_follow_one_without_memory_do_not_keep_memory_from_it,
    a_try_is_refused_while_many_reads_wait_for_memory,
    a_batch_larger_than_the_pool_is_answered_whole,
    closing_refuses_what_waits_for_memory_at_once,
    a_store_can_be_opened_as_soon_as_its_last_handle_is_dropped,
    puts_that_wait_are_carried_out_though_no_future_is_polled,
    a_task_that_owns_the_store_may_be_dropped_by_its_waker,
    times_of_any_length_are_taken_or_refused,
    a_writer_that_could_not_be_committed_gives_its_room_back,
    what_is_cancelled_gives_its_memory_back,
    a_store_that_closes_under_load_answers_everybody,
    a_store_that_is_dropped_in_the_middle_comes_back,
);

fn many_threads_see_only_what_was_put(rig: &Rig) {
    rig.format(2);
    let options = OpenOptions { cores: Some(Cores::Count(2)), ..rig.options() };
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
    assert_eq!(store.close().wait().expect("closed").objects, 80);
}

fn memory_that_is_used_up_comes_back_when_a_value_is_dropped(rig: &Rig) {
    let store = rig.format(1).open();
    let len = 3 << 20;
    for number in 0..3 {
        store.put(key(number), data(number, len)).wait().expect("put");
    }
    // Eight megabytes hold two of three values.
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

fn only_a_buffer_waits_for_callers_and_until_the_timeout(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { timeout: Duration::from_millis(2000), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 100_000)).wait().expect("put");
    let all = store.buffer(8 << 20).wait().expect("all of it");
    let buffer = store.buffer(1);
    // A caller has all memory, and might wait for these.
    assert_eq!(store.get(key(1)).wait().expect("got").expect("there")[..], data(1, 100_000));
    assert!(store.put(key(2), &[1; 5000]).wait().expect("put").is_stored());
    let stats = store.stats().wait().expect("counted");
    assert_eq!((stats.spills, stats.spilled_bytes), (2, 105_000));
    let late = buffer.wait().expect_err("no memory");
    assert!(matches!(*late.error, Error::Timeout { .. }), "{late}");
    assert!(late.to_string().contains("waited 2000 ms for registered memory"), "{late}");
    drop(all);
    assert!(store.get(key(1)).wait().expect("got").is_some());
    assert_eq!(store.stats().wait().expect("counted").spills, 2, "no more than it takes");
}

fn a_request_that_is_given_up_gives_its_place_to_the_next(rig: &Rig) {
    let store = rig.format(1).open();
    let all = || store.buffer(8 << 20);
    let held = all().wait().expect("all of it");
    let [first, second, third] = [all(), all(), all()];
    drop(first);
    drop(held);
    let second = second.wait_timeout(Duration::from_secs(10)).expect("it is next");
    let fourth = all();
    drop(second.expect("memory"));
    // The third has its memory by now, or will have it, and does not want it.
    drop(third);
    let fourth = fourth.wait_timeout(Duration::from_secs(10)).expect("it is next");
    assert_eq!(fourth.expect("memory").len(), 8 << 20);
}

fn the_last_change_of_a_key_wins_whatever_the_one_before_waited_for(rig: &Rig) {
    let store = rig.format(1).open();
    let first = || store.put(key(1), data(1, 1 << 20));
    let small = data(2, 5000);
    // All memory but little is held, so the first put has to wait, and the others need not.
    let held = || store.buffer((8 << 20) - (64 << 10)).wait().expect("most of it");
    let check = || {
        let value = store.get(key(1)).wait().expect("got").expect("there");
        assert!(value[..] == small, "{} bytes, and not those submitted last", value.len());
    };

    let (all, one) = (held(), first());
    let second = store.put(key(1), &small);
    assert!(store.put(key(2), &small).wait().expect("put").is_stored(), "another key");
    drop(all);
    assert!(one.wait().expect("put").is_stored() && second.wait().expect("put").is_stored());
    check();

    let (all, one) = (held(), first());
    let deleted = store.delete(key(1));
    drop(all);
    assert!(one.wait().expect("put").is_stored() && deleted.wait().expect("deleted"));
    assert!(store.get(key(1)).wait().expect("got").is_none());

    let writer = store.reserve(key(1), 5000, &PutWith::default()).wait().expect("room");
    writer.fill(0, &small).wait().expect("written");
    let (all, one) = (held(), first());
    let sealed = writer.commit();
    drop(all);
    assert!(one.wait().expect("put").is_stored());
    sealed.wait().expect("committed");
    check();

    // One that is given up holds up none behind it.
    let (all, one) = (held(), first());
    let second = store.put(key(1), &small);
    drop(one);
    assert!(second.wait().expect("put").is_stored());
    drop(all);
    check();
}

fn changes_that_follow_one_without_memory_do_not_keep_memory_from_it(rig: &Rig) {
    let store = rig.format(1).open();
    let mut held: Vec<_> =
        (0..8).map(|_| store.buffer(1 << 20).wait().expect("an eighth")).collect();
    let all = store.put(key(1), data(0, 6 << 20));
    // They take what comes back before the first has a chance to.
    let followers: Vec<_> = held
        .drain(..)
        .enumerate()
        .map(|(number, mut buffer)| {
            buffer.copy_from_slice(&data(number as u64, 1 << 20));
            store.put(key(1), buffer)
        })
        .collect();
    assert!(all.wait().expect("put").is_stored());
    for put in followers {
        assert!(put.wait().expect("put").is_stored());
    }
    let last = store.get(key(1)).wait().expect("got").expect("there");
    assert!(last[..] == data(7, 1 << 20), "{} bytes, and not those submitted last", last.len());
}

fn a_try_is_refused_while_many_reads_wait_for_memory(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { mailbox_depth: 8, queue_depth: 8, ..rig.options() };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let all = store.buffer(8 << 20).wait().expect("all of it");
    let mut waiting = Vec::new();
    let refused = loop {
        match store.try_get(key(1)) {
            Ok(pending) => waiting.push(pending),
            Err(why) => break why,
        }
        assert!(waiting.len() < 10_000, "they are more than may wait");
    };
    assert!(matches!(refused, RefuseReason::Busy), "{refused}");
    assert!(waiting.len() >= 8, "{} wait", waiting.len());
    assert!(store.exists(key(1)).wait().expect("known"), "what needs no memory goes on");
    // A caller that can wait does.
    let last = store.get(key(1));
    drop(all);
    assert!(waiting.into_iter().all(|pending| pending.wait().expect("got").is_some()));
    assert!(last.wait().expect("got").is_some());
}

fn a_batch_larger_than_the_pool_is_answered_whole(rig: &Rig) {
    let store = rig.format(3).open();
    let len = 1 << 20;
    for number in 0..20 {
        store.put(key(number), data(number, len)).wait().expect("put");
    }
    let batch = || store.get_many((0..20).map(key));
    let is_right = |values: Vec<Answer<Option<Value>>>| {
        (0..).zip(values).all(|(number, value)| {
            value.expect("got").is_some_and(|value| value[..] == data(number, len))
        })
    };
    assert!(is_right(batch().wait()));
    assert!(is_right(batch().into_iter().map(Pending::wait).collect()));
    assert!(store.stats().wait().expect("counted").spills > 0);
    let mut streamed = batch();
    let mut seen = 0;
    while let Some((number, value)) = streamed.next() {
        assert_eq!(value.expect("got").expect("there")[..], data(number as u64, len));
        seen += 1;
    }
    assert_eq!(seen, 20);
    let all = store.buffer(8 << 20).wait().expect("all of it is back");
    assert_eq!(all.len(), 8 << 20);
}

fn closing_refuses_what_waits_for_memory_at_once(rig: &Rig) {
    rig.format(1);
    // Longer than a test may take.
    let options = OpenOptions { timeout: Duration::from_secs(3600), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let all = store.buffer(8 << 20).wait().expect("all of it");
    let (get, put, buffer) = (store.get(key(1)), store.put(key(2), &[1; 5000]), store.buffer(1));
    let closed = store.close().wait_timeout(Duration::from_secs(30)).expect("in time");
    assert!((1..=2).contains(&closed.expect("what was acknowledged is durable").objects));
    let is_closed = |unfinished: Unfinished| unfinished.failure() == Some(&Failure::Closed);
    assert!(get.wait().err().is_some_and(is_closed), "it never had memory");
    assert!(put.wait().err().is_some_and(is_closed), "nor did this");
    assert!(buffer.wait().err().is_some_and(is_closed), "nor did this");
    drop(all);
}

fn a_store_can_be_opened_as_soon_as_its_last_handle_is_dropped(rig: &Rig) {
    rig.format(2);
    for round in 0..10 {
        let store = rig.open();
        for number in 0..round {
            assert!(store.exists(key(number)).wait().expect("known"), "{number} of {round}");
        }
        store.put(key(round), data(round, 100_000)).wait().expect("put");
    }
}

fn puts_that_wait_are_carried_out_though_no_future_is_polled(rig: &Rig) {
    let store = rig.format(1).open();
    let puts: Vec<_> =
        (0..64).map(|number| store.put(key(number), data(number, 1 << 20))).collect();
    // Eight fit in the memory. The last one is awaited first.
    for put in puts.into_iter().rev() {
        assert!(put.wait().expect("put").is_stored());
    }
    let stats = store.stats().wait().expect("counted");
    assert_eq!((stats.objects, stats.copied_bytes), (64, 64 << 20), "a vector is not copied twice");
}

/// A waker whose task holds the last handle, as after its runtime ends: the store's own thread drops it.
fn a_task_that_owns_the_store_may_be_dropped_by_its_waker(rig: &Rig) {
    struct Task(Mutex<Option<Store>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("no panic").take());
        }
    }
    let store = rig.format(2).open();
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let mut commit = store.commit();
    let task = Arc::new(Task(Mutex::new(Some(store))));
    let is_there = || task.0.lock().expect("no panic").is_some();
    match Pin::new(&mut commit).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task)))) {
        // The answer was faster, so the waker is not called.
        Poll::Ready(answer) => return answer.expect("committed"),
        Poll::Pending => {}
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_there() {
        assert!(Instant::now() < deadline, "the waker is called");
        std::thread::yield_now();
    }
    commit.wait().expect("committed");
    // The threads end by themselves and release the devices.
    let recovered = rig.open().recoveries()[0].clone();
    assert!(recovered.objects <= 1);
}

fn a_writer_that_could_not_be_committed_gives_its_room_back(rig: &Rig) {
    let store = rig.format(1).open();
    // There is room for two of them.
    for round in 0..10 {
        let writer = store.reserve(key(round), 100 << 20, &PutWith::default());
        let writer = writer.wait().expect("room");
        let commit = writer.commit();
        if round % 2 == 0 {
            let failure = commit.wait().expect_err("nothing was filled");
            assert!(matches!(failure.failure(), Some(Failure::Unfilled { .. })), "{failure}");
        }
    }
    let huge = store.reserve(key(1), u64::MAX, &PutWith::default()).wait();
    let huge = huge.expect_err("too large").to_string();
    assert!(huge.contains("an object has up to"), "{huge}");
}

fn times_of_any_length_are_taken_or_refused(rig: &Rig) {
    let store = rig.format(1).open();
    let with = PutWith { ttl: Some(Duration::MAX), ..PutWith::default() };
    assert!(store.put_with(key(1), &[1; 5000], &with).wait().expect("put").is_stored());
    drop(store.lease(&[key(1)], Duration::MAX).wait().expect("leased"));
    assert!(store.exists(key(1)).wait().expect("known"));
    drop(store);
    let options = OpenOptions { timeout: Duration::MAX, ..rig.options() };
    let message = Store::open(&options).expect_err("refused").to_string();
    assert!(message.contains("timeout"), "{message}");
}

fn what_is_cancelled_gives_its_memory_back(rig: &Rig) {
    let store = rig.format(2).open();
    let object = data(1, 1 << 20);
    store.put(key(1), &object).wait().expect("put");
    for _ in 0..200 {
        drop(store.get(key(1)));
        drop(store.put(key(2), &object));
    }
    // All of it is back, in one piece.
    assert_eq!(store.buffer(8 << 20).wait().expect("all of it").len(), 8 << 20);
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
        let stats = store.close().wait().expect("closed");
        assert!(stats.puts >= 50);
        let again = other.close().wait().expect_err("closed already");
        assert!(matches!(again.failure(), Some(Failure::Closed)));
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
    let lease = store.lease(&[key(0)], Duration::from_secs(60)).wait().expect("leased");
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
fn a_store_in_which_everything_is_leased_is_full_and_goes_on_afterwards() {
    let rig = Rig::soft();
    rig.format(1);
    let capacity_bytes = Some(64 << 12);
    let store = Store::open(&OpenOptions { capacity_bytes, ..rig.options() }).expect("a store");
    let keys: Vec<Key> = (0..8).map(key).collect();
    for number in 0..8 {
        store.put(key(number), data(number, 7 << 12)).wait().expect("put");
    }
    let lease = store.lease(&keys, Duration::from_secs(1000)).wait().expect("leased");
    assert_eq!(lease.count(), 8);
    let full = store.put(key(9), data(9, 20 << 12)).wait().expect_err("all is leased");
    assert_eq!(full.failure(), Some(&Failure::Full));
    assert!(full.to_string().contains("release leases or wait"), "{full}");
    drop(lease);
    assert!(store.put(key(9), data(9, 20 << 12)).wait().expect("room").is_stored());
}

#[test]
fn memory_that_no_device_knows_is_refused_and_comes_back() {
    let (rig, other) = (Rig::soft(), Rig::soft());
    let (store, stranger) = (rig.format(1).open(), other.format(1).open());
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let memory = || AnyBuffer::One(stranger.allocate(8192).expect("memory"));
    let put = store.put(key(2), Payload::lent(memory(), 5000)).wait().expect_err("a stranger's");
    let get = store.get_into(key(1), Part::All, memory()).wait().expect_err("a stranger's");
    for refused in [put, get] {
        assert_eq!(refused.failure(), Some(&Failure::Foreign { device: 0 }));
        assert!(refused.to_string().contains("use the store's memory"), "{refused}");
        assert!(matches!(refused.memory, AnyBuffer::One(_)), "it comes back");
    }
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
    assert!(
        refused(|options| options.cores = Some(Cores::List(vec![]))).contains("none asked for")
    );
}
