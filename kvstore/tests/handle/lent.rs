//! Memory of the caller's, aligned or not, and bytes in several pieces.

use std::io::IoSlice;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::memory::{AnyBuffer, IoBuffer};
use adit_driver::sys::{Backing, HostMemory};
use adit_driver::{Buffer, Controller, ControllerOptions, Device, DeviceOptions};
use adit_kvstore::shard::{Failure, Part};
use adit_kvstore::store::{FormatStore, Payload, PutWith, RefuseReason};
use adit_kvstore::{OpenOptions, Store};
use bytes::Bytes;

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    memory_of_the_callers_is_registered_and_used_without_a_copy,
    slots_of_any_length_are_written_and_read_and_their_neighbours_stay,
    transfers_to_small_pages_are_right_in_place_and_by_copy,
    memory_that_begins_anywhere_is_written_and_read,
    ranges_and_several_buffers_need_not_be_whole_units,
    ragged_reads_of_more_than_the_pool_all_end,
    ragged_memory_comes_back_from_a_busy_store,
    bytes_in_several_pieces_are_one_object,
    empty_objects_are_stored_whatever_holds_no_bytes,
);

/// Bytes of a slot: neither a unit nor a page.
const SLOT: usize = 18_432;

/// An engine's pool of `bytes`, registered with the store.
fn engines(store: &Store, bytes: usize) -> Buffer {
    let memory = HostMemory::allocate(bytes, Backing::Any, &|_, _| ()).expect("memory");
    store.register(memory).expect("registered")
}

fn cut(mut pool: Buffer, slot: usize) -> Vec<Buffer> {
    let count = pool.len() / slot;
    drop(pool.split_off(count * slot));
    let mut slots: Vec<Buffer> = (0..count).rev().map(|at| pool.split_off(at * slot)).collect();
    slots.reverse();
    slots
}

fn one(memory: AnyBuffer) -> Buffer {
    let AnyBuffer::One(buffer) = memory else { panic!("one buffer was lent: {memory:?}") };
    buffer
}

fn copied(store: &Store) -> u64 {
    store.stats().wait().expect("counted").copied_bytes
}

fn memory_of_the_callers_is_registered_and_used_without_a_copy(rig: &Rig) {
    let store = rig.format(2).open();
    let slots = cut(engines(&store, 1 << 20), 128 << 10);
    assert_eq!(slots.len(), 8);
    for (number, mut slot) in (0..).zip(slots) {
        slot.copy_from_slice(&data(number, 128 << 10));
        let mut slot = one(store.put(key(number), slot).wait().expect("put").memory);
        slot.fill(0);
        let read = store.get_into(key(number), Part::All, slot).wait().expect("got");
        assert_eq!(read.bytes, Some(128 << 10));
        assert_eq!(one(read.memory)[..], data(number, 128 << 10));
    }
    assert_eq!(copied(&store), 0);
}

fn slots_of_any_length_are_written_and_read_and_their_neighbours_stay(rig: &Rig) {
    let store = rig.format(1).open();
    let mut slots = cut(engines(&store, 1 << 20), SLOT);
    for (number, slot) in (0..).zip(&mut slots) {
        slot.copy_from_slice(&data(number, SLOT));
    }
    // Every second slot is written, and then read into the others' place.
    for number in (0..20).step_by(2) {
        let slot = slots.remove(number);
        let (at, len) = (slot.iova(), slot.len());
        let back = store.put(key(number as u64), slot).wait().expect("put");
        assert!(back.is_stored());
        let back = one(back.memory);
        assert_eq!((back.iova(), back.len()), (at, len), "in one piece");
        slots.insert(number, back);
    }
    for number in (0..20).step_by(2) {
        let slot = slots.remove(number + 1);
        let read = store.get_into(key(number as u64), Part::All, slot).wait().expect("got");
        assert_eq!(read.bytes, Some(SLOT as u64));
        slots.insert(number + 1, one(read.memory));
    }
    for (number, slot) in slots.iter().enumerate() {
        let object = if number < 20 { number / 2 * 2 } else { number };
        assert_eq!(slot[..], data(object as u64, SLOT), "slot {number}");
    }
    // Slots at a multiple of an LBA pass through the pool only with their ends.
    let all = 20 * SLOT as u64;
    let copied = copied(&store);
    assert!((20 * 2048..=all).contains(&copied), "{copied} of {all}");
    let missed = store.get_into(key(99), Part::All, slots.remove(0)).wait().expect("a miss");
    assert!(missed.bytes.is_none() && one(missed.memory).len() == SLOT);
    let mut short = slots.remove(0);
    drop(short.split_off(5000));
    let refused = store.get_into(key(0), Part::All, short).wait().expect_err("too short");
    assert_eq!(refused.failure(), Some(&Failure::Memory { needs: 20_480, has: 5000 }));
    assert_eq!(one(refused.memory).len(), 5000);
}

fn transfers_to_small_pages_are_right_in_place_and_by_copy(rig: &Rig) {
    let store = rig.format(1).open();
    let mut slots = cut(engines(&store, 1 << 20), 128 << 10);
    let objects: Vec<Vec<u8>> = (0..8).map(|number| data(number, 128 << 10)).collect();
    let read_only = DeviceOptions { writes: false, ..DeviceOptions::default() };
    let device = rig.target().map(|target| Device::open(&target, &read_only).expect("a file"));
    let is_open = device.is_some_and(|device| device.block_limits().is_some());
    // As many as it takes to try a copy of each, where there is a choice.
    let rounds = if is_open { 256 } else { 8 };
    for _ in 0..rounds {
        slots.iter_mut().zip(&objects).for_each(|(slot, object)| slot.copy_from_slice(object));
        let puts = slots.drain(..).zip(0..).map(|(slot, number)| (key(number), slot.into()));
        let puts: Vec<(_, Payload<'_>)> = puts.collect();
        let puts = store.put_many(puts, &PutWith::default());
        let back = puts.into_iter().map(|put| one(put.wait().expect("put").memory));
        let gets = back.zip(0..).map(|(mut slot, number)| {
            slot.fill(0);
            (key(number), Part::All, AnyBuffer::One(slot))
        });
        let gets = store.get_many_into(gets.collect::<Vec<_>>());
        slots.extend(gets.into_iter().map(|get| one(get.wait().expect("got").memory)));
        assert!(slots.iter().zip(&objects).all(|(slot, object)| slot[..] == object[..]));
    }
    let (in_place, copied) = (store.in_place_bytes(), copied(&store));
    assert_eq!(in_place + copied, (rounds * 2) << 20, "each byte goes one way");
    assert!(in_place >= 16 << 20);
    assert_eq!(copied > 0, is_open, "the other way is tried");
}

fn memory_that_begins_anywhere_is_written_and_read(rig: &Rig) {
    let store = rig.format(1).open();
    let mut pool = engines(&store, 1 << 20);
    let mut odd = pool.split_off(100);
    let rest = odd.split_off(300_000);
    odd.copy_from_slice(&data(1, 300_000));
    let mut odd = one(store.put(key(1), odd).wait().expect("put").memory);
    odd.fill(0);
    let read = store.get_into(key(1), Part::All, odd).wait().expect("got");
    assert_eq!(one(read.memory)[..], data(1, 300_000));
    assert!(pool.iter().chain(rest.iter()).all(|byte| *byte == 0), "its neighbours stay");
    assert_eq!(copied(&store), 600_000);
}

fn ranges_and_several_buffers_need_not_be_whole_units(rig: &Rig) {
    let store = rig.format(1).open();
    let object = data(3, 500_000);
    store.put(key(3), &object).wait().expect("put");
    let tail = store.allocate(500_000 - (256 << 10)).expect("memory");
    let part = Part::Bytes(256 << 10..500_000);
    let read = store.get_into(key(3), part, tail).wait().expect("got");
    assert_eq!(one(read.memory)[..], object[256 << 10..]);
    let lens = [5000, 400_000, 95_000, 50];
    let buffers: Vec<Buffer> =
        lens.iter().map(|len| store.allocate(*len).expect("memory")).collect();
    let read = store.get_into(key(3), Part::All, buffers).wait().expect("got");
    let AnyBuffer::Many(buffers) = read.memory else { panic!("several were lent") };
    assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), lens);
    let got: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
    assert_eq!(got[..500_000], object);
    let put = store.put(key(4), Payload::lent(buffers, 500_000)).wait().expect("put");
    assert_eq!(put.memory.segment_count(), 4);
    assert_eq!(store.get(key(4)).wait().expect("got").expect("a hit")[..], object);
    let beyond = Part::Bytes(600_000..700_000);
    let memory = store.allocate(5000).expect("memory");
    let refused = store.get_into(key(3), beyond, memory).wait().expect_err("no such part");
    assert!(matches!(refused.failure(), Some(Failure::Part(_))), "{refused}");
    assert_eq!(one(refused.memory).len(), 5000);
}

fn ragged_reads_of_more_than_the_pool_all_end(rig: &Rig) {
    let store = rig.format(2).open();
    for number in 0..8 {
        store.put(key(number), data(number, 1_000_000)).wait().expect("put");
    }
    let reads = (0..40).map(|read| {
        let mut memory = store.allocate(1_000_100).expect("memory");
        let memory = memory.split_off(100);
        (key(read % 8), Part::All, AnyBuffer::One(memory))
    });
    let reads: Vec<_> = reads.collect();
    for (number, read) in store.get_many_into(reads).wait().into_iter().enumerate() {
        let memory = one(read.expect("got").memory);
        assert_eq!(memory[..], data(number as u64 % 8, 1_000_000));
    }
}

fn ragged_memory_comes_back_from_a_busy_store(rig: &Rig) {
    let store = rig.format(1).open();
    let held = store.buffer(8 << 20).wait().expect("all of it");
    let slot = cut(engines(&store, 1 << 20), SLOT).remove(3);
    let at = slot.iova();
    let refused = store.try_put(key(1), slot, &PutWith::default()).expect_err("no memory");
    assert!(matches!(refused.why, RefuseReason::Busy));
    assert_eq!(refused.data.bytes(), SLOT as u64);
    drop(held);
    let put = store.try_put(refused.key, refused.data, &PutWith::default()).expect("room");
    assert_eq!(one(put.wait().expect("put").memory).iova(), at);
    assert_eq!(store.get(key(1)).wait().expect("got").expect("a hit").len(), SLOT);
}

fn bytes_in_several_pieces_are_one_object(rig: &Rig) {
    let store = rig.format(1).open();
    let object = data(1, 200_000);
    let is_there =
        |number| store.get(key(number)).wait().expect("got").expect("a hit")[..] == object;
    let (first, rest) = object.split_at(77_777);
    let slices = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(rest)];
    store.put(key(1), &slices[..]).wait().expect("put");
    let whole = Bytes::from(object.clone());
    store.put(key(2), whole.clone()).wait().expect("put");
    let parts = [whole.slice(..100), whole.slice(100..)];
    store.put(key(3), &parts[..]).wait().expect("put");
    assert!((1..4).all(is_there));
    assert_eq!(copied(&store), 600_000);
    // A value is bytes without a copy.
    let value = store.get(key(2)).wait().expect("got").expect("a hit");
    assert_eq!(Bytes::from_owner(value), whole);
}

fn empty_objects_are_stored_whatever_holds_no_bytes(rig: &Rig) {
    let store = rig.format(1).open();
    let empty = [
        store.put(key(1), Vec::new()).wait(),
        store.put(key(1), Bytes::new()).wait(),
        store.put(key(1), &[IoSlice::new(&[])][..]).wait(),
    ];
    for stored in empty {
        assert!(stored.expect("put").is_stored());
        assert!(store.get(key(1)).wait().expect("read").expect("there").is_empty());
    }
}

#[test]
fn memory_of_one_controller_takes_objects_of_all() {
    let bus = || SoftBus::new("mem=64M".parse().expect("options"), Drive::Thread).expect("a bus");
    let (buses, target) = ([bus(), bus()], "soft:mem=64M".parse().expect("a target"));
    let device = |bus: &std::sync::Arc<SoftBus>| {
        let bus = std::sync::Arc::<SoftBus>::clone(bus);
        let controller = Controller::attach(bus, &ControllerOptions::default()).expect("open");
        let namespace = controller.namespace_of(&target).expect("a namespace");
        Device::of_namespace(controller, namespace, &target)
    };
    let devices: Vec<Device> = buses.iter().map(device).collect();
    Store::format(&FormatStore { devices: devices.clone(), ..FormatStore::default() })
        .expect("formatted");
    let options = OpenOptions { devices, pool_bytes: 4 << 20, ..OpenOptions::default() };
    let store = Store::open(&options).expect("a store");
    for number in 0..20 {
        store.put(key(number), data(number, 64 << 10)).wait().expect("put");
    }
    let device_of = |number| store.info(key(number)).wait().expect("known").expect("there").device;
    let on_second = (0..20).filter(|number| device_of(*number) == 1).count() as u64;
    assert!((1..20).contains(&on_second), "both devices have some");
    let before = copied(&store);
    for (number, slot) in (0..).zip(cut(engines(&store, 20 << 16), 64 << 10)) {
        let read = store.get_into(key(number), Part::All, slot).wait().expect("got");
        assert_eq!(one(read.memory)[..], data(number, 64 << 10));
    }
    assert_eq!(copied(&store) - before, on_second << 16, "only those of the other controller");
}
