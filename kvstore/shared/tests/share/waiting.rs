//! Waiting for answers: threads, futures, an event loop, and a server that ends.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use adit_kvshare::{Client, ClientOptions, Error, KvStore, PendingAnswer};
use adit_kvstore::shard::Part;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::rig::{PATIENCE, Rig, data, key};

#[test]
fn threads_of_a_process_share_a_client() {
    let rig = Rig::soft();
    let client = rig.client_with(&ClientOptions { depth: 4, ..ClientOptions::default() });
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let client = client.clone();
            scope.spawn(move || {
                for number in 0..100 {
                    let (number, object) = (thread * 1000 + number, data(thread, number, 5000));
                    client.put(key(number), &object).wait().expect("put");
                    let value = client.get(key(number)).wait().expect("got").expect("a hit");
                    assert!(value.to_vec() == object[..]);
                }
            });
        }
    });
    drop(client);
    rig.until_nothing_is_left();
}

#[test]
fn time_limits_of_any_length_are_taken() {
    let rig = Rig::soft();
    let client = rig.client_with(&ClientOptions { timeout: Duration::MAX, ..Default::default() });
    client.put(key(1), b"one").wait().expect("put");
    let there = client.exists(key(1)).wait_timeout(Duration::MAX).expect("an answer");
    assert!(there.expect("asked"));
    client.watch(Duration::from_millis(1));
    let lease = client.lease(&[key(1)], Duration::MAX).wait().expect("leased");
    assert_eq!(lease.count(), 1);
    assert!(client.touch(key(1), Duration::MAX).wait().expect("asked"));
}

#[test]
fn an_event_loop_is_rung_for_answers_and_shares_the_client_with_threads() {
    let rig = Rig::soft();
    let client = rig.client();
    let beside = std::thread::spawn({
        let client = client.clone();
        move || {
            for number in 1000..1200 {
                client.put(key(number), b"beside").wait().expect("put");
            }
        }
    });
    for round in 0..200 {
        let mut left = vec![client.put(key(round), b"one"), client.put(key(round + 500), b"two")];
        client.reap();
        let begin = Instant::now();
        loop {
            let still = left.into_iter().filter_map(|pending| match pending.try_wait() {
                Ok(put) => {
                    assert!(put.expect("put").is_stored());
                    None
                }
                Err(pending) => Some(pending),
            });
            left = still.collect();
            if left.is_empty() {
                break;
            }
            let mut files = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
            let count = poll(&mut files, PollTimeout::from(30_000u16)).expect("polled");
            assert!(count > 0, "the doorbell was not rung in round {round}");
            assert!(begin.elapsed() < PATIENCE);
            client.reap();
        }
    }
    beside.join().expect("no panic");
}

struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_future_is_woken_when_another_call_takes_its_answer() {
    let rig = Rig::soft();
    let client = rig.client();
    let count = Arc::new(Count(AtomicU64::new(0)));
    let waker = Arc::clone(&count).into();
    let mut context = Context::from_waker(&waker);
    let mut put = pin!(client.put(key(1), b"awaited"));
    let mut polled = put.as_mut().poll(&mut context);
    let begin = Instant::now();
    while polled.is_pending() {
        assert!(begin.elapsed() < PATIENCE);
        client.exists(key(2)).wait().expect("asked");
        if count.0.load(Ordering::Relaxed) > 0 {
            polled = put.as_mut().poll(&mut context);
            assert!(polled.is_ready(), "woken for its answer");
        }
    }
    let Poll::Ready(answer) = polled else { unreachable!("seen above") };
    assert!(answer.expect("put").is_stored());
}

/// Serves a client's futures until the end.
fn serve(client: &Client, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        client.take_answers();
        client.watch(PATIENCE);
    }
}

#[test]
fn a_thread_that_serves_futures_wakes_them_beside_threads_that_wait() {
    let rig = Rig::soft();
    let (client, ends) = (rig.client(), Arc::new(AtomicBool::new(false)));
    let begin = Instant::now();
    let server = std::thread::spawn({
        let (client, ends) = (client.clone(), Arc::clone(&ends));
        move || serve(&client, &ends)
    });
    let rivals = [1000, 2000, 3000, 4000].map(|first| {
        let client = client.clone();
        std::thread::spawn(move || {
            for number in first..first + 400 {
                client.put(key(number), b"beside").wait().expect("put");
            }
        })
    });
    for round in 0..400 {
        let count = Arc::new(Count(AtomicU64::new(0)));
        let waker = Arc::clone(&count).into();
        let mut put = pin!(client.put(key(round), b"awaited"));
        if put.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            continue;
        }
        // Nothing but the thread and its rivals looks for the answer.
        while count.0.load(Ordering::Relaxed) == 0 {
            assert!(begin.elapsed() < PATIENCE, "round {round} was not woken");
            std::thread::yield_now();
        }
        assert!(put.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(), "woken for it");
    }
    rivals.into_iter().for_each(|rival| rival.join().expect("no panic"));
    ends.store(true, Ordering::Relaxed);
    client.rouse();
    server.join().expect("no panic");
    assert!(begin.elapsed() < PATIENCE, "it was roused");
}

#[test]
fn a_thread_that_only_looks_delays_no_other() {
    let rig = Rig::soft();
    let client = rig.client();
    let beside = std::thread::spawn({
        let client = client.clone();
        move || {
            for number in 0..2000 {
                client.put(key(number), b"beside").wait().expect("put");
            }
        }
    });
    // It often finds answers for which the other thread has just been woken.
    let looks = std::thread::spawn({
        let client = client.clone();
        move || (0..20_000).for_each(|_| client.watch(Duration::ZERO))
    });
    let begin = Instant::now();
    while !(beside.is_finished() && looks.is_finished()) {
        assert!(begin.elapsed() < PATIENCE, "both go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    [beside, looks].into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_thread_that_serves_futures_is_told_of_a_lost_server() {
    let mut rig = Rig::soft();
    let client = rig.client();
    rig.end();
    let begin = Instant::now();
    let mut get = pin!(client.exists(key(1)));
    let count = Arc::new(Count(AtomicU64::new(0)));
    let waker = Arc::clone(&count).into();
    let mut polled = get.as_mut().poll(&mut Context::from_waker(&waker));
    while polled.is_pending() {
        assert!(begin.elapsed() < PATIENCE);
        client.watch(PATIENCE);
        client.take_answers();
        polled = get.as_mut().poll(&mut Context::from_waker(&waker));
    }
    let Poll::Ready(Err(lost)) = polled else { panic!("no server answered") };
    assert!(matches!(*lost.error, Error::Lost { .. }), "{lost}");
}

#[test]
fn requests_that_are_given_up_give_their_memory_back() {
    let rig = Rig::soft();
    let options = ClientOptions { depth: 2, pool_bytes: 64 << 10, ..ClientOptions::default() };
    let client = rig.client_with(&options);
    for round in 0..50u64 {
        let puts: Vec<_> =
            (0..20).map(|number| client.put(key(number), &data(number, round, 9000))).collect();
        drop(puts);
    }
    // Only with all of the pool back there is room for this.
    let large = data(77, 0, 64 << 10);
    client.put(key(77), &large).wait().expect("put");
    assert!(client.get(key(77)).wait().expect("got").expect("a hit").to_vec() == large[..]);
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_THREAD).expect("every thread has a clock");
    let of = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    of(used.user_time()) + of(used.system_time())
}

#[test]
fn a_wait_of_less_than_a_millisecond_sleeps() {
    let rig = Rig::soft();
    let options = ClientOptions { pool_bytes: 64 << 10, ..ClientOptions::default() };
    let client = rig.client_with(&options);
    client.put(key(1), &data(1, 0, 64 << 10)).wait().expect("put");
    // It has all of the pool, so that another waits.
    let value = client.get(key(1)).wait().expect("got").expect("a hit");
    let mut waits = client.get(key(1));
    let (used, each) = (processor_time(), Duration::from_micros(900));
    for _ in 0..300 {
        waits = waits.wait_timeout(each).expect_err("there is no memory");
    }
    let used = processor_time() - used;
    assert!(used < 300 * each / 4, "{used:?} were spent looking");
    drop(value);
    assert!(waits.wait().expect("got").is_some());
}

#[test]
fn a_server_that_ends_finishes_what_it_has_and_its_clients_are_told() {
    let mut rig = Rig::file();
    let client = rig.client();
    let objects: Vec<_> = (0..50).map(|number| data(number, 0, 100_000)).collect();
    let items = (0..).zip(&objects).map(|(number, object)| (key(number), object));
    let puts = client.put_many(items, &Default::default());
    rig.until("some were taken", |counts| counts.requests > 0);
    rig.end();
    let mut stored = 0;
    for (number, put) in (0..).zip(puts) {
        match put.wait() {
            Ok(put) => {
                stored += u64::from(put.is_stored());
                assert!(rig.store.exists(key(number)).wait().expect("asked"));
            }
            Err(why) => assert!(matches!(*why.error, Error::Lost { .. }), "{why}"),
        }
    }
    assert!(stored > 0, "what was taken was answered");
    let lost = client.get(key(1)).wait().expect_err("no server");
    assert!(lost.to_string().contains("adit kv serve"), "{lost}");
    assert!(matches!(client.stats(), Err(Error::Lost { .. })));
    assert!(!rig.socket().exists(), "the socket is gone");
}

#[test]
fn plain_bytes_for_a_lost_server_end_at_once() {
    let mut rig = Rig::soft();
    let client = rig.client();
    client.put(key(1), b"makes the pool").wait().expect("put");
    rig.end();
    // The first goes to a ring that no server reads; the others are not even sent.
    for number in 0..10 {
        let put = client.put(key(number), &data(number, 0, 100_000)).wait();
        let lost = put.expect_err("no server");
        assert!(matches!(*lost.error, Error::Lost { .. }) && lost.memory.is_none(), "{lost}");
        let lost = client.get(key(number)).wait().expect_err("no server");
        assert!(matches!(*lost.error, Error::Lost { .. }), "{lost}");
    }
}

#[test]
fn memory_of_a_lost_server_is_not_given_back_while_a_device_may_write_it() {
    let mut rig = Rig::soft();
    let client = rig.client();
    let span = client.allocate(8192).expect("memory");
    rig.end();
    // The request goes into the ring of a server that is gone.
    let lost = client.get_into(key(1), Part::All, span).wait().expect_err("no server");
    assert!(matches!(*lost.error, Error::Lost { .. }) && lost.memory.is_none(), "{lost}");
    // This one is not even sent.
    let put = client.put(key(1), b"x").wait_timeout(Duration::from_secs(30)).expect("told at once");
    assert!(matches!(
        *put.expect_err("no server").error,
        Error::Lost { .. } | Error::Refused { .. }
    ));
}
