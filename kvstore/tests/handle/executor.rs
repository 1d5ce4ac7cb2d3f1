//! A server on one thread of an async runtime: no call parks it, and no request waits forever behind others.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Cores;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::Part;
use adit_kvstore::store::{DefinedLayout, OpenOptions, PutWith};
use adit_kvstore::{Error, Store};
use tokio::task::JoinSet;

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    gets_and_puts_of_more_than_the_pool_end_on_one_thread,
    a_miss_is_answered_while_others_wait_for_memory,
    a_small_get_is_not_behind_a_large_one_that_waits,
    dropping_the_last_handle_does_not_wait,
    no_call_waits_while_the_stores_thread_does,
    a_deadline_counts_from_the_call,
    a_lease_of_a_prefix_is_a_future,
);

const MIB: usize = 1 << 20;
/// Much more than it takes to make requests, and much less than a request may wait.
const SOON: Duration = Duration::from_secs(30);

/// Options of a store whose requests wait longer than a test may take.
fn patient(rig: &Rig) -> OpenOptions {
    OpenOptions { timeout: Duration::from_secs(3600), ..rig.options() }
}

/// Returns the contents of a large object, made quickly.
fn large(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(2 * MIB / 8)
}

/// Runs a test that might park forever on a thread of its own.
fn within(limit: Duration, what: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    match ended.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it did not end within {limit:?}"),
        _ => thread.join().expect("no panic"),
    }
}

/// Runs a future on a runtime of one thread.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}

fn gets_and_puts_of_more_than_the_pool_end_on_one_thread(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { pool_bytes: 64 * MIB, ..patient(rig) };
    let store = Store::open(&options).expect("a store");
    for number in 0..50 {
        let put = store.put(key(number), large(number)).wait().expect("put");
        assert!(put.is_stored());
    }
    within(Duration::from_secs(300), move || {
        run(async {
            let (mut gets, mut puts) = (JoinSet::new(), JoinSet::new());
            for number in 0..50 {
                let (getter, putter) = (store.clone(), store.clone());
                gets.spawn(async move { (number, getter.get(key(number)).await) });
                puts.spawn(async move { putter.put(key(100 + number), large(100 + number)).await });
            }
            // All values are held until the last has come, and all puts are awaited after that.
            for (number, value) in gets.join_all().await {
                assert_eq!(value.expect("got").expect("there")[..], large(number));
            }
            for put in puts.join_all().await {
                assert!(put.expect("put").is_stored());
            }
        });
    });
}

fn a_miss_is_answered_while_others_wait_for_memory(rig: &Rig) {
    let store = rig.format(1).open();
    store.put(key(1), data(1, 5000)).wait().expect("put");
    within(Duration::from_secs(300), move || {
        run(async {
            let all = store.get(key(1)).await.expect("got").expect("there");
            let mut held = vec![all];
            while held.len() < 1024 {
                held.push(store.get(key(1)).await.expect("got").expect("there"));
            }
            let begun = Instant::now();
            let waiting: Vec<_> = (0..3000).map(|_| store.get(key(1))).collect();
            let missing = tokio::time::timeout(SOON, store.get(key(2))).await;
            assert!(missing.expect("in time").expect("a miss").is_none());
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            drop(held);
            for pending in waiting {
                assert!(pending.await.expect("got").is_some());
            }
        });
    });
}

fn a_small_get_is_not_behind_a_large_one_that_waits(rig: &Rig) {
    rig.format(1);
    let store = Store::open(&patient(rig)).expect("a store");
    store.put(key(1), data(1, 5000)).wait().expect("put");
    within(Duration::from_secs(300), move || {
        run(async {
            let held = store.buffer(6 * MIB).await.expect("memory");
            // It waits for the first to be dropped, whatever happens.
            let large = store.buffer(7 * MIB);
            let small = tokio::time::timeout(SOON, store.get(key(1))).await;
            let small = small.expect("there is memory for it").expect("got");
            assert_eq!(small.expect("there")[..], data(1, 5000));
            let large = large.try_wait().expect_err("it waits");
            drop(held);
            assert_eq!(large.await.expect("memory").len(), 7 * MIB);
        });
    });
}

fn dropping_the_last_handle_does_not_wait(rig: &Rig) {
    rig.format(1);
    let store = Store::open(&patient(rig)).expect("a store");
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let all = store.buffer(8 * MIB).wait().expect("all of it");
    let (get, buffer) = (store.get(key(1)), store.buffer(1));
    let begun = Instant::now();
    drop(store);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // The store goes on to its end by itself.
    assert!(get.wait().is_err() && buffer.wait().is_err(), "they never had memory");
    drop(all);
    assert_eq!(rig.open().recoveries()[0].objects, 1);
}

/// Keeps the thread that wakes it until the test lets go.
#[derive(Default)]
struct Keeper {
    /// Whether it keeps a thread, and whether it has let go.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Keeper {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().expect("no panic"));
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool) {
        let state = self.state.lock().expect("no panic");
        let limit = Duration::from_secs(600);
        let waited = self.changed.wait_timeout_while(state, limit, |state| !until(state));
        assert!(!waited.expect("no panic").1.timed_out());
    }
}

impl Wake for Keeper {
    fn wake(self: Arc<Self>) {
        self.set(|state| state.0 = true);
        self.wait(|state| state.1);
    }
}

/// Keeps the only thread of a store.
fn keep_the_thread(store: &Store) -> Arc<Keeper> {
    loop {
        let keeper = Arc::new(Keeper::default());
        let mut stats = store.stats();
        let waker = Waker::from(Arc::clone(&keeper));
        if Pin::new(&mut stats).poll(&mut Context::from_waker(&waker)).is_pending() {
            keeper.wait(|state| state.0);
            return keeper;
        }
    }
}

fn no_call_waits_while_the_stores_thread_does(rig: &Rig) {
    rig.format(2);
    let options = OpenOptions { mailbox_depth: 1, ..patient(rig) };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 5000)).wait().expect("put");
    let layout = store.layout(layers()).wait().expect("defined");
    let (keys, with) = ([key(1), key(2)], PutWith::default());
    let writer = store.reserve(key(3), 5000, &with).wait().expect("room");
    let blocks = store.reserve_blocks(&layout, [key(4)], &with).wait().expect("room");
    let lease = store.lease(&keys, Duration::from_secs(60)).wait().expect("leased");
    let held = store.buffer(8 * MIB - 8192).wait().expect("memory");
    let keeper = keep_the_thread(&store);
    let begun = Instant::now();
    let calls = |number| Box::pin(make_every_call(&store, &layout, number, begun));
    let mut answers: Vec<_> = (10..13).map(calls).collect();
    // Each has made its requests when it is first polled.
    for answer in &mut answers {
        let mut context = Context::from_waker(Waker::noop());
        assert!(Future::poll(answer.as_mut(), &mut context).is_pending());
    }
    let filled = writer.fill(0, data(3, 5000));
    let put = blocks.put_layer(0, [vec![1; 8192]]);
    drop((store.get(key(1)), store.put(key(8), vec![1; 5000]), lease, held));
    let (sealed, ended) = (writer.commit(), blocks.commit());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    keeper.set(|state| state.1 = true);
    run(async {
        for answer in answers {
            answer.await;
        }
    });
    assert!(filled.wait().is_ok() && put.wait().into_iter().all(|filled| filled.is_ok()));
    // They were sealed right after they were filled.
    drop((sealed.wait(), ended.wait()));
    let keeper = keep_the_thread(&store);
    let begun = Instant::now();
    let closing = store.close();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    keeper.set(|state| state.1 = true);
    closing.wait().expect("closed");
}

/// Makes requests of every kind, checks that none waited, and awaits their answers.
async fn make_every_call(store: &Store, layout: &DefinedLayout, number: u64, begun: Instant) {
    let (keys, with) = ([key(1), key(2)], PutWith::default());
    let memory = || AnyBuffer::One(store.allocate(8192).expect("memory"));
    let puts = (0..3).map(|n| (key(100 * number + n), data(n, 5000)));
    let gets = store.get_many(keys.clone());
    let parts = store.get_many_into([(key(1), Part::All, memory())]);
    let puts = store.put_many(puts, &with);
    let blocks = store.put_blocks(layout, [(key(number), vec![1; 8192])], &with);
    let reserved = store.reserve_blocks(layout, [key(20 + number)], &with);
    let waited = (
        (store.put(key(5), &[1; 5000]), store.get(key(1)), store.get_range(key(1), 1..2)),
        (store.get_into(key(1), Part::All, memory()), store.reserve(key(6), 1, &with)),
        (store.delete(key(7)), store.commit(), store.exists(key(1)), store.info(key(1))),
        (store.scan(0, 1), store.lookup_prefix(&keys), store.buffer(8192)),
        (store.lease(&keys, Duration::from_secs(60)), store.plan(&[], Duration::ZERO)),
        (store.tenant("blue"), store.layout(layers()), store.prometheus()),
    );
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let ((put, get, range), (into, room), (deleted, committed, exists, info), rest, ..) = waited;
    let (scanned, prefix, buffer) = rest;
    assert!(put.await.expect("put").is_stored());
    assert!(get.await.expect("got").is_some() && range.await.expect("got").is_some());
    assert_eq!(into.await.expect("got").bytes, Some(5000));
    drop((room.await.expect("room"), deleted.await.expect("none")));
    committed.await.expect("committed");
    assert!(exists.await.expect("known") && info.await.expect("known").is_some());
    assert!(scanned.await.expect("scanned").0.len() <= 1);
    assert_eq!((prefix.await.expect("found"), buffer.await.expect("memory").len()), (1, 8192));
    let there = gets.await.into_iter().filter(|got| matches!(got, Ok(Some(_))));
    assert_eq!(there.count(), 1);
    assert!(parts.await.into_iter().all(|read| read.is_ok()));
    assert!(puts.await.into_iter().chain(blocks.await).all(|put| put.is_ok()));
    assert_eq!(reserved.await.expect("room").count(), 1);
}

/// A layout of blocks with one layer of two units.
fn layers() -> Layout {
    let (dtype, tensors_per_layer, layers) = (Dtype::F16, 2, 1);
    let block =
        BlockShape { layers, tensors_per_layer, kv_heads: 2, head_dim: 48, dtype, tokens: 16 };
    Layout::new(block, Order::BlockMajor).expect("a layout")
}

fn a_deadline_counts_from_the_call(rig: &Rig) {
    rig.format(1);
    let options = OpenOptions { timeout: Duration::from_millis(300), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    let all = store.buffer(8 * MIB).wait().expect("all of it");
    let pending = store.buffer(1);
    std::thread::sleep(Duration::from_secs(2));
    let late = pending.try_wait().expect("it has ended, though it was not polled");
    assert!(matches!(*late.expect_err("no memory").error, Error::Timeout { .. }));
    drop(all);
}

fn a_lease_of_a_prefix_is_a_future(rig: &Rig) {
    let store = rig.format(4).open();
    let keys: Vec<_> = (0..20).map(key).collect();
    run(async {
        for number in (0..20).filter(|number| *number != 12) {
            assert!(store.put(key(number), data(number, 5000)).await.expect("put").is_stored());
        }
        let lease = store.lease(&keys, Duration::from_secs(60)).await.expect("leased");
        assert_eq!(lease.count(), 12);
        assert_eq!(store.stats().await.expect("counted").leased, 12, "and nothing behind them");
        // Given up: what it leased meanwhile is released.
        drop(store.lease(&keys, Duration::from_secs(60)));
        drop(lease);
        let limit = Instant::now() + Duration::from_secs(60);
        while store.stats().await.expect("counted").leased > 0 {
            assert!(Instant::now() < limit, "it ends with its future");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Ten thousand gets at once through a pool for 128 of them: all are answered, and the runtime's thread stays free.
#[test]
fn ten_thousand_gets_leave_the_runtime_free() {
    const GETS: u64 = 10_000;
    const OBJECTS: u64 = 500;
    const BYTES: usize = 128 << 10;
    let rig = Rig::file();
    rig.format(1);
    let options =
        OpenOptions { pool_bytes: 16 * MIB, cores: Some(Cores::Count(1)), ..patient(&rig) };
    let store = Store::open(&options).expect("a store");
    for number in 0..OBJECTS {
        let put = store.put(key(number), data(number, BYTES)).wait().expect("put");
        assert!(put.is_stored());
    }
    within(Duration::from_secs(600), move || {
        let (mut drifts, took) = run(async {
            let begun = Instant::now();
            let mut gets = JoinSet::new();
            for number in 0..GETS {
                let store = store.clone();
                gets.spawn(async move {
                    let value = store.get(key(number % OBJECTS)).await.expect("got");
                    value.expect("there").len() == BYTES
                });
            }
            let tick = Duration::from_millis(1);
            let mut drifts = Vec::new();
            let mut answered = 0;
            while answered < GETS {
                let due = Instant::now() + tick;
                tokio::time::sleep(tick).await;
                drifts.push(due.elapsed());
                while let Some(right) = gets.try_join_next() {
                    assert!(right.expect("no panic"));
                    answered += 1;
                }
            }
            (drifts, begun.elapsed())
        });
        drifts.sort_unstable();
        let at = |percent: usize| drifts[(drifts.len() * percent / 100).min(drifts.len() - 1)];
        println!(
            "{GETS} gets in {took:?}; drift of a timer of 1 ms over {} ticks: p50 {:?}, p99 {:?}, max {:?}",
            drifts.len(),
            at(50),
            at(99),
            at(100)
        );
        assert!(at(99) < Duration::from_millis(100), "p99 {:?}", at(99));
    });
}
