//! Reads that clients verify in their own processes: what is damaged on the medium is a miss, and what is not stays.

use std::fs::File;
use std::future::Future;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_kvshare::client::{Answer, Pending, PutWith, Read};
use adit_kvshare::{Client, KvStore, PendingAnswer};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Outcome, Part, Stats};
use adit_kvstore::{OpenOptions, Version};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::rig::{Rig, data, key};

/// Three pieces, each with a checksum.
const BYTES: usize = 300_000;

/// Waits by itself for an answer.
fn by_wait<T>(_: &Client, pending: Pending<T>) -> Answer<T> {
    pending.wait()
}

/// Polls an answer as a future, which a thread serves that takes answers.
fn by_future<T>(client: &Client, mut pending: Pending<T>) -> Answer<T> {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut pending).poll(&mut context) {
            return answer;
        }
        client.watch(Duration::from_secs(1));
        client.take_answers();
    }
}

/// Looks for an answer in an event loop.
fn by_loop<T>(client: &Client, mut pending: Pending<T>) -> Answer<T> {
    loop {
        client.reap();
        pending = match pending.try_wait() {
            Ok(answer) => return answer,
            Err(pending) => pending,
        };
        let mut files = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
        // A repeated request is made without a call of the loop's: it looks now and then.
        poll(&mut files, PollTimeout::from(10u16)).expect("polled");
    }
}

type Get = fn(&Client, u64) -> Option<Vec<u8>>;

fn get_into(client: &Client, number: u64) -> Pending<Read> {
    let memory = client.allocate(BYTES).expect("memory");
    client.get_into(key(number), Part::All, memory)
}

fn bytes_of(read: Read) -> Option<Vec<u8>> {
    let bytes = read.bytes?;
    Some(read.memory.as_ref().expect("it comes back").to_vec()[..bytes as usize].to_vec())
}

/// Gets that read all of an object.
const GETS: [(&str, Get); 6] = [
    ("get", |client, number| {
        let value = by_wait(client, client.get(key(number))).expect("got");
        value.map(|value| value.to_vec())
    }),
    ("get, as a future", |client, number| {
        let value = by_future(client, client.get(key(number))).expect("got");
        value.map(|value| value.to_vec())
    }),
    ("get_many", |client, number| {
        let mut gets = client.get_many([key(1000), key(number)]);
        let value = by_loop(client, gets.pop().expect("two")).expect("got");
        assert!(by_loop(client, gets.pop().expect("two")).expect("got").is_none());
        value.map(|value| value.to_vec())
    }),
    ("get_into", |client, number| {
        bytes_of(by_wait(client, get_into(client, number)).expect("got"))
    }),
    ("get_into, in a loop", |client, number| {
        bytes_of(by_loop(client, get_into(client, number)).expect("got"))
    }),
    ("get_into_if", |client, number| {
        let version = client.info(key(number)).wait().expect("asked").expect("there").version;
        let memory = client.allocate(BYTES).expect("memory");
        let get = client.get_into_if(key(number), Part::All, memory, version);
        bytes_of(by_future(client, get).expect("got"))
    }),
];

fn stats(rig: &Rig) -> Stats {
    rig.store.stats().wait().expect("counted")
}

/// Waits until the store has read, as often as this, and the server has answered.
fn until_answered(rig: &Rig, hits: u64) {
    rig.until("it is answered", |counts| counts.requests_now == 0 && stats(rig).hits == hits);
}

#[test]
fn a_damaged_object_is_a_miss_once_and_dropped_whichever_way_it_is_read() {
    let tier = OpenOptions { tier_bytes: 256 << 20, ..OpenOptions::default() };
    for (rig, has_tier) in [(Rig::file(), false), (Rig::file_with(tier), true)] {
        let client = rig.client();
        for ((name, get), number) in GETS.into_iter().zip((1..).step_by(2)) {
            // A byte of each piece in turn, and the last one.
            let at = [0, 150_000, 299_999][number as usize / 2 % 3];
            for number in [number, number + 1] {
                client.put(key(number), &data(number, 0, BYTES)).wait().expect("put");
            }
            client.commit().wait().expect("written");
            rig.damage(&data(number, 0, BYTES), at);
            let before = stats(&rig);
            assert_eq!(get(&client, number), None, "{name}, tier {has_tier}");
            let after = stats(&rig);
            assert_eq!(after.misses_corrupt, before.misses_corrupt + 1, "{name}: once");
            assert!(!client.exists(key(number)).wait().expect("asked"), "{name}: it is dropped");
            assert!(get(&client, number + 1).as_deref() == Some(&data(number + 1, 0, BYTES)));
            assert_eq!(stats(&rig).misses_corrupt, after.misses_corrupt, "{name}: no other is");
        }
        drop(client);
        rig.until_nothing_is_left();
    }
}

#[test]
fn a_damaged_layer_of_a_kv_block_is_a_miss() {
    let rig = Rig::file();
    let client = rig.client();
    let (layers, tensors_per_layer, dtype) = (3, 2, Dtype::F16);
    // Tensors of 4.5 KiB, so that there is padding behind each.
    let shape =
        BlockShape { layers, tensors_per_layer, kv_heads: 1, head_dim: 48, dtype, tokens: 48 };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 4 }).expect("a layout");
    let with = PutWith {
        layout: Some(client.define_layout(layout).expect("defined")),
        ..PutWith::default()
    };
    let (layer_bytes, bytes) = (layout.run_units() * 4096, layout.block_units() * 4096);
    let layer = |number: u64, part| {
        let memory = client.allocate(bytes as usize).expect("memory");
        bytes_of(client.get_into(key(number), part, memory).wait().expect("got"))
    };
    let at = layer_bytes as usize + 4096 + 200;
    for (number, is_damaged) in [(1, true), (2, false)] {
        let block = data(number, 0, bytes as usize);
        client.put_with(key(number), &block, &with).wait().expect("put");
        client.commit().wait().expect("written");
        if is_damaged {
            rig.damage(&block, at);
        }
        let first = layer(number, Part::Layer(0)).expect("nothing is wrong with it");
        assert_eq!(first.len() as u64, layer_bytes);
        assert!(first[..4608] == block[..4608], "the first tensor");
        let second = layer(number, Part::Layer(1));
        assert_eq!(second.is_none(), is_damaged);
        assert_eq!(layer(number, Part::All).is_none(), is_damaged, "it is dropped");
        assert_eq!(layer(number, Part::Bytes(0..layer_bytes)).is_none(), is_damaged);
    }
    assert_eq!(stats(&rig).misses_corrupt, 1);
}

#[test]
fn a_damaged_piece_ends_a_reader_and_no_byte_of_it_is_read() {
    let rig = Rig::file();
    let client = rig.client();
    let (bytes, all) = (20 << 20, data(1, 0, 20 << 20));
    let put = client.put_from(key(1), Some(bytes), &all[..], &PutWith::default());
    assert_eq!(put.expect("put"), Outcome::Stored);
    client.commit().wait().expect("written");
    let at = (17 << 20) + 5;
    rig.damage(&all, at);
    let mut reader = client.reader(key(1)).expect("asked").expect("there");
    let mut read = Vec::new();
    let why = loop {
        match reader.next() {
            Ok(Some(piece)) => read.extend(piece.to_vec()),
            Ok(None) => panic!("a piece is damaged"),
            Err(why) => break why,
        }
    };
    assert!(why.to_string().contains("replaced or removed"), "{why}");
    assert!(read.len() <= at && read[..] == all[..read.len()]);
    assert_eq!(stats(&rig).misses_corrupt, 1);
    assert!(!client.exists(key(1)).wait().expect("asked"));
}

/// As a debugger writes it: the client's memory changes after the server answered, before the client has looked.
#[test]
fn bytes_that_changed_in_the_clients_memory_are_asked_for_again() {
    let process = File::options().write(true).open("/proc/self/mem").expect("Linux");
    let waits = [by_wait, by_future, by_loop];
    for (rig, wait) in [Rig::soft(), Rig::file(), Rig::soft()].into_iter().zip(waits) {
        let (client, object) = (rig.client(), data(1, 0, BYTES));
        client.put(key(1), &object).wait().expect("put");
        for (part, at) in [(Part::All, 140_000), (Part::Bytes(131_072..262_144), 5)] {
            let (memory, before) = (client.allocate(BYTES).expect("memory"), stats(&rig));
            let address = memory.as_ptr().addr() as u64;
            let pending = client.get_into(key(1), part.clone(), memory);
            until_answered(&rig, before.hits + 1);
            process.write_all_at(b"written by another process", address + at).expect("written");
            let read = wait(&client, pending).expect("got");
            let from = if let Part::Bytes(range) = &part { range.start as usize } else { 0 };
            let read = bytes_of(read).expect("a hit");
            assert!(read[..] == object[from..from + read.len()], "the object's bytes");
            let after = stats(&rig);
            assert_eq!((after.misses, after.misses_corrupt), (before.misses, 0));
            assert_eq!((after.gets, after.hits), (before.gets + 2, before.hits + 2), "two reads");
        }
        assert!(client.exists(key(1)).wait().expect("asked"), "it stays");
    }
}

/// The object is not what the client asked for any more when it asks again.
#[test]
fn a_version_that_is_gone_when_it_is_asked_for_again_is_a_conflict() {
    let process = File::options().write(true).open("/proc/self/mem").expect("Linux");
    let rig = Rig::soft();
    let client = rig.client();
    let put = client.put(key(1), &data(1, 0, BYTES)).wait().expect("put");
    let version: Version = put.version.expect("stored");
    let memory = client.allocate(BYTES).expect("memory");
    let address = memory.as_ptr().addr() as u64;
    let pending = client.get_into_if(key(1), Part::All, memory, version);
    until_answered(&rig, 1);
    process.write_all_at(&[7; 9], address).expect("written");
    rig.store.put(key(1), data(1, 1, BYTES)).wait().expect("put");
    let unfinished = pending.wait().expect_err("it was replaced");
    assert!(unfinished.memory.is_some(), "it comes back");
    assert!(matches!(unfinished.failure(), Some(Failure::Conflict { .. })), "{unfinished}");
}
