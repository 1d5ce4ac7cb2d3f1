//! Threads of the server that panic: what clients are told, and when.

use std::time::{Duration, Instant};

use adit_kvshare::{Client, ClientOptions, Error, Event, KvStore, PendingAnswer};
use adit_kvstore::Error as StoreError;

use crate::rig::{PATIENCE, Rig, data, key};

/// Returns options under which what waits for a deadline fails the test.
fn patient() -> ClientOptions {
    let timeout = 2 * PATIENCE;
    ClientOptions { pool_bytes: 8 << 20, timeout, ..ClientOptions::default() }
}

#[test]
fn a_dead_thread_of_the_store_ends_the_server_and_its_clients_are_told_at_once() {
    let mut rig = Rig::dying();
    let (one, other) = (rig.client_with(&patient()), rig.client_with(&patient()));
    let begin = Instant::now();
    let puts: Vec<_> = (0..8).map(|number| one.put(key(number), &data(number, 0, 9000))).collect();
    for put in puts {
        let lost = put.wait().expect_err("the store has ended");
        assert!(matches!(*lost.error, Error::Lost { .. }), "{lost}");
    }
    // This one asked for nothing meanwhile.
    let lost = other.get(key(1)).wait().expect_err("the store has ended");
    assert!(matches!(*lost.error, Error::Lost { .. }), "{lost}");
    let why = rig.ended().expect_err("its store has ended");
    assert!(begin.elapsed() < PATIENCE, "nothing waited for a deadline");
    assert!(matches!(why, Error::Died { .. }), "{why}");
    for part in ["adit-kv-0", "as arranged"] {
        assert!(why.to_string().contains(part), "{why}");
    }
    assert_eq!(rig.reasons().iter().filter(|(_, is_expelled)| *is_expelled).count(), 0);
    assert!(Client::connect(&rig.socket(), &patient()).is_err(), "no client is taken any more");
    let closed = rig.store.clone().close().wait().expect_err("a thread died");
    assert!(matches!(*closed.error, StoreError::Died { .. }), "{closed}");
}

#[test]
fn a_dead_session_ends_its_client_and_no_other() {
    let mut rig = Rig::panicking_at(|event| matches!(event, Event::ClientCame { client: 2, .. }));
    let healthy = rig.client_with(&patient());
    healthy.put(key(1), b"x").wait().expect("put");
    assert!(Client::connect(&rig.socket(), &patient()).is_err());
    rig.until("it is gone", |counts| counts.clients_now == 1);
    let (why, is_expelled) = rig.reasons().remove(0);
    assert!(why.contains("as arranged") && !is_expelled, "{why}");
    assert!(healthy.exists(key(1)).wait().expect("asked"));
    drop(healthy);
    rig.until_nothing_is_left();
    rig.end();
}

/// What has no answer yet when the thread dies is lost, not late: also on a thread that waits with a limit.
#[test]
fn a_wait_with_a_limit_is_told_as_well() {
    let rig = Rig::dying();
    let client = rig.client_with(&patient());
    let put = client.put(key(1), b"x").wait_timeout(PATIENCE).expect("told before the limit");
    assert!(matches!(*put.expect_err("the store has ended").error, Error::Lost { .. }));
    let get = client.get(key(1)).wait_timeout(Duration::from_secs(30)).expect("told at once");
    assert!(matches!(*get.expect_err("the store has ended").error, Error::Lost { .. }));
    let mut rig = rig;
    rig.ended().expect_err("its store has ended");
}
