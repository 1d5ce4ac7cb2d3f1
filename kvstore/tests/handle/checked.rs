//! Reads into memory that others may write: verified by them, by a digest, or by the store in memory of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Digest, Failure, Part};
use adit_kvstore::store::{Pending, PutWith, Read};
use adit_kvstore::{OpenOptions, Store};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    a_digest_is_of_what_was_put_and_of_nothing_else,
    a_checked_read_is_the_part_that_was_asked_for,
    a_checked_read_that_cannot_be_gives_its_memory_back,
);

/// Three pieces, each with a checksum.
const BYTES: usize = 300_000;

fn memory(store: &Store, bytes: usize) -> Buffer {
    let mut memory = store.allocate(bytes).expect("memory");
    drop(memory.split_off(bytes));
    memory.fill(0);
    memory
}

fn one(memory: AnyBuffer) -> Buffer {
    let AnyBuffer::One(buffer) = memory else { panic!("one buffer was lent: {memory:?}") };
    buffer
}

/// Returns the bytes that were read.
fn bytes_of(read: Read) -> Option<Vec<u8>> {
    let bytes = read.bytes? as usize;
    Some(one(read.memory)[..bytes].to_vec())
}

fn checked(store: &Store, number: u64, part: Part, bytes: usize) -> Option<Vec<u8>> {
    let into = memory(store, bytes);
    let (address, len) = (into.as_ptr(), into.len());
    let read = store.get_checked_into(key(number), part, into, None).wait().expect("got");
    let AnyBuffer::One(back) = &read.memory else { panic!("one buffer was lent") };
    assert_eq!((back.as_ptr(), back.len()), (address, len), "it comes back");
    bytes_of(read)
}

fn unverified(mut pending: Pending<Read>) -> (Read, Option<Digest>) {
    let (mut context, begin) = (Context::from_waker(Waker::noop()), Instant::now());
    loop {
        if let Poll::Ready(answer) = pending.poll_unverified(&mut context) {
            return answer.expect("got");
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no answer");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn layout(store: &Store) -> (Layout, PutWith) {
    let (layers, tensors_per_layer, dtype) = (3, 2, Dtype::F16);
    // Tensors of 4.5 KiB, so that there is padding behind each.
    let shape =
        BlockShape { layers, tensors_per_layer, kv_heads: 1, head_dim: 48, dtype, tokens: 48 };
    let layout = Layout::new(shape, Order::BlockMajor).expect("a layout");
    let defined = store.layout(layout).wait().expect("defined");
    (layout, PutWith { layout: Some(defined), ..PutWith::default() })
}

fn a_digest_is_of_what_was_put_and_of_nothing_else(rig: &Rig) {
    let store = rig.format(2).open();
    let (layout, blocks) = layout(&store);
    let block_bytes = (layout.block_units() * 4096) as usize;
    store.put(key(1), data(1, BYTES)).wait().expect("put");
    store.put_with(key(2), data(2, block_bytes), &blocks).wait().expect("put");
    store.put(key(3), b"").wait().expect("put");
    let layer = (layout.run_units() * 4096) as usize;
    for (number, part, pieces, last) in [
        (1, Part::All, 3, BYTES - 1),
        (1, Part::Bytes(131_072..BYTES as u64), 2, BYTES - 1 - 131_072),
        (2, Part::All, 6, block_bytes - 4096 + 511),
        (2, Part::Layer(1), 2, layer - 4096 + 511),
    ] {
        let before = store.stats().wait().expect("counted");
        // A part that does not end with a unit passes through the pool, and is verified before it is copied.
        let odd = memory(&store, BYTES);
        let (read, digest) = unverified(store.get_into(key(number), part.clone(), odd));
        assert_eq!((read.bytes.is_some(), digest.is_none()), (true, number == 1), "{part:?}");
        let before =
            store.stats().wait().map(|stats| (before.hits + 1, stats.bytes_read)).expect("counted");
        let into = memory(&store, BYTES.next_multiple_of(4096));
        let (read, digest) = unverified(store.get_into(key(number), part.clone(), into));
        let (bytes, digest) = (read.bytes.expect("a hit"), digest.expect("it is not verified"));
        assert_eq!(digest.pieces, pieces, "{part:?}");
        let mut memory = one(read.memory);
        assert_eq!(memory.len(), BYTES.next_multiple_of(4096), "all of it comes back");
        assert!(digest.is_of(memory.bytes().slice(0..bytes as usize)), "{part:?}");
        for at in [0, last] {
            memory[at] ^= 1;
            assert!(!digest.is_of(memory.bytes()), "{part:?}, byte {at}");
            memory[at] ^= 1;
        }
        assert!(!digest.is_of(memory.bytes().slice(0..last)), "{part:?}, too few bytes");
        let after = store.stats().wait().expect("counted");
        let counts = (after.hits - before.0, after.bytes_read - before.1);
        assert_eq!(counts, (1, bytes), "for the store they are read");
    }
    let (empty, digest) = unverified(store.get_into(key(3), Part::All, memory(&store, 4096)));
    assert_eq!(empty.bytes, Some(0));
    assert!(digest.is_none_or(|digest| digest.is_of((&[][..]).into())));
    let (missed, digest) = unverified(store.get_into(key(9), Part::All, memory(&store, 4096)));
    assert!(missed.bytes.is_none() && digest.is_none());
}

fn a_checked_read_is_the_part_that_was_asked_for(rig: &Rig) {
    let store = rig.format(2).open();
    let (layout, blocks) = layout(&store);
    let (block_bytes, layer) =
        ((layout.block_units() * 4096) as usize, (layout.run_units() * 4096) as usize);
    let (plain, block) = (data(1, BYTES), data(2, block_bytes));
    store.put(key(1), &plain).wait().expect("put");
    store.put_with(key(2), &block, &blocks).wait().expect("put");
    store.put(key(3), b"").wait().expect("put");
    // Longer than the pool of 8 MiB.
    let long = data(4, 9 << 20);
    store.put_from(key(4), Some(9 << 20), &long[..], &PutWith::default()).expect("put");
    for bytes in [BYTES, BYTES + 500, 400_000] {
        assert!(checked(&store, 1, Part::All, bytes).as_deref() == Some(&plain[..]));
    }
    let range = Part::Bytes(131_072..262_144);
    assert!(checked(&store, 1, range, 131_072).as_deref() == Some(&plain[131_072..262_144]));
    let of_layer = checked(&store, 2, Part::Layer(1), layer).expect("a hit");
    assert!(of_layer[..4608] == block[layer..layer + 4608], "the first tensor of the layer");
    assert_eq!(checked(&store, 2, Part::All, block_bytes).expect("a hit").len(), block_bytes);
    assert_eq!(checked(&store, 3, Part::All, 4096).as_deref(), Some(&[][..]));
    assert!(checked(&store, 4, Part::All, 9 << 20).as_deref() == Some(&long[..]));
    assert_eq!(checked(&store, 9, Part::All, 4096), None);
}

fn a_checked_read_that_cannot_be_gives_its_memory_back(rig: &Rig) {
    let store = rig.format(1).open();
    let put = store.put(key(1), data(1, BYTES)).wait().expect("put");
    let refused = |part: Part, bytes: usize, version| {
        let into = memory(&store, bytes);
        let get = store.get_checked_into(key(1), part, into, version);
        let unfinished = get.wait().expect_err("it cannot be");
        let failure = unfinished.failure().cloned().expect("the store's");
        assert_eq!(one(unfinished.memory).len(), bytes, "{failure}");
        failure
    };
    let version = put.version.expect("stored");
    assert!(matches!(refused(Part::All, 8192, None), Failure::Memory { has: 8192, .. }));
    let beyond = Part::Bytes(1 << 20..2 << 20);
    assert!(matches!(refused(beyond, 8192, None), Failure::Part(_)));
    assert!(matches!(refused(Part::Layer(0), 8192, None), Failure::Part(_)));
    store.put(key(1), data(1, BYTES)).wait().expect("put");
    let replaced = refused(Part::All, BYTES, Some(version));
    assert!(matches!(replaced, Failure::Conflict { found: Some(_) }), "{replaced}");
}

#[test]
fn a_checked_read_of_a_damaged_object_is_a_miss_and_drops_it_whatever_its_length() {
    let rig = Rig::file();
    let tiered = OpenOptions { tier_bytes: 64 << 20, ..rig.options() };
    rig.format(2);
    for options in [rig.options(), tiered] {
        let store = Store::open(&options).expect("open");
        // The second is longer than the pool of 8 MiB.
        for (number, bytes) in [(1, BYTES), (2, 9 << 20)] {
            let object = data(number, bytes);
            store.put_from(key(number), None, &object[..], &PutWith::default()).expect("put");
            store.commit().wait().expect("written");
            damage(&rig, &object, bytes - 1);
            let before = store.stats().wait().expect("counted");
            assert_eq!(checked(&store, number, Part::All, bytes), None);
            let after = store.stats().wait().expect("counted");
            assert_eq!(after.misses_corrupt, before.misses_corrupt + 1);
            assert_eq!((after.hits, after.misses), (before.hits, before.misses + 1));
            assert!(!store.exists(key(number)).wait().expect("asked"), "it is dropped");
        }
        store.close().wait().expect("closed");
    }
}

/// Changes byte `at` of an object in the store's file.
fn damage(rig: &Rig, object: &[u8], at: usize) {
    const UNIT: usize = 4096;
    let file = File::options().read(true).write(true).open(rig.path()).expect("the store's file");
    let (unit, mut begin) = (at / UNIT * UNIT, [0; 16]);
    let is_there = |number: &u64| {
        file.read_exact_at(&mut begin, number * UNIT as u64).expect("a unit");
        begin == object[unit..unit + 16]
    };
    let units = file.metadata().expect("a file").len() / UNIT as u64;
    let number = (0..units).find(is_there).expect("it was put");
    let offset = number * UNIT as u64 + (at % UNIT) as u64;
    file.write_all_at(&[!object[at]], offset).expect("written");
}
