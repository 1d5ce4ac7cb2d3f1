use super::*;
use crate::wire::{Ask, Code};
use adit_driver::sys::{Backing, HostMemory};
use adit_kvstore::Key;
use std::sync::Arc;

const DEPTH: u64 = 4;

fn rings() -> Rings {
    let memory = HostMemory::allocate(bytes(DEPTH), Backing::Any, &|_, _| ()).expect("memory");
    Rings::new(Arc::new(memory).atomics(), DEPTH)
}

fn entry(number: u64) -> RequestEntry {
    RequestEntry::of(&Ask::Exists(Key::from(number)), number)
}

#[test]
fn requests_and_answers_come_in_order_round_and_round() {
    let rings = rings();
    let (mut asking, mut asked) = (Asking::new(&rings), Asked::new(&rings));
    let (mut answering, mut answered) = (Answering::new(&rings), Answered::new(&rings));
    let mut sent = 0;
    for taken in 0..50 {
        while asking.room() != Ok(0) {
            asking.push(&entry(sent));
            sent += 1;
        }
        let shown = if taken == 0 { 0 } else { DEPTH - 1 };
        assert_eq!(asked.count(), Ok(shown), "what is not published is not seen");
        asking.publish();
        assert_eq!(asked.count(), Ok(DEPTH));
        let entry = asked.take();
        assert_eq!(Ask::of(&entry), Ok(Ask::Exists(Key::from(taken))));
        assert_eq!(asking.room(), Ok(0), "its place is not free yet");
        asked.publish();
        assert_eq!((asking.room(), answering.room()), (Ok(1), Ok(DEPTH)));
        let text = "x".repeat(taken as usize * 7);
        answering.push(&Done::new(Code::Full, 7, 0).with_tag(entry.head.tag).with_text(&text));
        assert_eq!(answered.count(), Ok(0), "it is not published");
        answering.publish();
        assert_eq!(answered.count(), Ok(1));
        let done = answered.take();
        answered.publish();
        assert_eq!((done.tag, done.value, done.text().len()), (taken, 7, text.len().min(224)));
        assert_eq!(answered.count(), Ok(0));
    }
}

#[test]
fn counters_that_cannot_be_right_are_found_out() {
    for wrong in [DEPTH + 1, 1 << 40, u64::MAX] {
        let rings = rings();
        rings.word(REQUESTS_TAIL).store(wrong, Ordering::Relaxed);
        assert_eq!(Asked::new(&rings).count(), Err(Broken), "{wrong}");
        rings.word(REQUESTS_HEAD).store(wrong, Ordering::Relaxed);
        assert_eq!(Asking::new(&rings).room().is_err(), wrong < u64::MAX - DEPTH, "{wrong}");
        rings.word(ANSWERS_HEAD).store(wrong, Ordering::Relaxed);
        assert_eq!(Answering::new(&rings).room().is_err(), wrong < u64::MAX - DEPTH, "{wrong}");
        rings.word(ANSWERS_TAIL).store(wrong, Ordering::Relaxed);
        assert_eq!(Answered::new(&rings).count(), Err(Broken), "{wrong}");
    }
}

#[test]
fn a_key_that_is_longer_than_its_place_is_cut_and_means_nothing() {
    let rings = rings();
    let mut asking = Asking::new(&rings);
    let mut long = entry(1);
    long.head.key_bytes = u16::MAX;
    asking.push(&long);
    asking.publish();
    assert!(Ask::of(&Asked::new(&rings).take()).is_err());
}

#[test]
fn a_side_that_is_awake_is_not_rung_for_and_one_that_sleeps_once() {
    let rings = rings();
    let (server, client) = (Sleep::of_server(&rings), Sleep::of_client(&rings));
    assert!(!server.must_ring(0) && !client.must_ring(0));
    client.announce(ANYTHING);
    assert!(!client.must_ring(0), "the server is awake");
    assert!(server.must_ring(5) && !server.must_ring(5), "once");
    client.announce(ANYTHING);
    client.end();
    assert!(!server.must_ring(0));
    server.announce(ANYTHING);
    assert!(client.must_ring(0));
    client.announce(7);
    assert!(!server.must_ring(6) && server.must_ring(7), "for what it waits for");
    client.announce(7);
    client.widen();
    assert!(server.must_ring(6));
    client.widen();
    assert!(!server.must_ring(6), "a side that is awake stays so");
}

/// One thread asks and sleeps until the answer comes; the other answers and sleeps until it is asked. A lost wake-up
/// stops both.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 20_000;
    let rings = rings();
    let (wake_server, server_woken) = std::sync::mpsc::channel();
    let (wake_client, client_woken) = std::sync::mpsc::channel();
    let long = std::time::Duration::from_secs(30);
    let server = std::thread::spawn({
        let rings = rings.clone();
        move || {
            let (mut asked, mut answering) = (Asked::new(&rings), Answering::new(&rings));
            let sleep = Sleep::of_server(&rings);
            let mut done = 0;
            while done < ROUNDS {
                if asked.count() == Ok(0) {
                    sleep.announce(ANYTHING);
                    if asked.count() == Ok(0) {
                        server_woken.recv_timeout(long).expect("woken");
                    }
                    sleep.end();
                    continue;
                }
                let tag = asked.take().head.tag;
                asked.publish();
                answering.push(&Done::new(Code::Done, 0, 0).with_tag(tag));
                answering.publish();
                done += 1;
                if sleep.must_ring(tag) {
                    // At the end the client may be gone.
                    let _ = wake_client.send(());
                }
            }
        }
    });
    let (mut asking, mut answered) = (Asking::new(&rings), Answered::new(&rings));
    let sleep = Sleep::of_client(&rings);
    for round in 0..ROUNDS {
        asking.push(&entry(round));
        asking.publish();
        if sleep.must_ring(round) {
            let _ = wake_server.send(());
        }
        while answered.count() == Ok(0) {
            sleep.announce(round);
            if answered.count() == Ok(0) {
                client_woken.recv_timeout(long).expect("woken");
            }
            sleep.end();
        }
        assert_eq!(answered.take().tag, round);
        answered.publish();
    }
    server.join().expect("no panic");
}
