//! A device that goes away, one that comes back, and one of several.

use std::time::{Duration, Instant};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::memory::AnyBuffer;
use adit_driver::{Controller, ControllerOptions, Device, Target, Time};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Action, GetItem, Outcome, Part, PutItem, PutOptions, Request};
use adit_kvstore::store::{FormatStore, Local, OpenOptions, PutWith};
use adit_kvstore::{Error, Store};

use crate::rig::{Rig, data, key};

/// Opens a store of two shards on two devices, each with its own memory.
fn two_devices(buses: &[std::sync::Arc<SoftBus>]) -> Store {
    let devices = devices_of(buses);
    let format = FormatStore { devices: devices.clone(), shards: 2, ..FormatStore::default() };
    Store::format(&format).expect("formatted");
    let command_timeout = Duration::from_secs(1);
    let options =
        OpenOptions { devices, pool_bytes: 4 << 20, command_timeout, ..OpenOptions::default() };
    Store::open(&options).expect("a store")
}

fn bus() -> std::sync::Arc<SoftBus> {
    SoftBus::new("mem=64M".parse().expect("options"), Drive::Thread).expect("a bus")
}

#[test]
fn objects_of_a_device_that_is_pulled_are_misses_until_it_is_recovered() {
    let buses = [bus(), bus()];
    let store = two_devices(&buses);
    for number in 0..40 {
        let put = store.put(key(number), data(number, 9000)).wait().expect("put");
        assert!(put.is_stored());
    }
    store.commit().wait().expect("committed");
    let device_of = |number| {
        let info = store.info(key(number)).wait().expect("known");
        info.map(|info| info.device)
    };
    let on_second: Vec<u64> = (0..40).filter(|number| device_of(*number) == Some(1)).collect();
    assert!(!on_second.is_empty() && on_second.len() < 40, "both devices have some");
    let works = store.recover(0).expect_err("nothing to recover");
    assert!(matches!(works, Error::Invalid { .. }), "{works}");
    assert!(store.recover(2).is_err(), "no such device");
    // Parts reach a writer's object on either device.
    for number in 100..104 {
        let writer = store.reserve(key(number), 300_000, &PutWith::default());
        let writer = writer.wait().expect("room");
        let (object, piece) = (data(number, 300_000), writer.piece_bytes() as usize);
        for (part, offset) in object.chunks(piece).zip((0..).step_by(piece)) {
            writer.fill(offset, part).wait().expect("filled");
        }
        writer.commit().wait().expect("sealed");
        assert!(store.get(key(number)).wait().expect("got").expect("there")[..] == object);
    }

    buses[1].unplug();
    // The first request may take until the driver notices.
    let hit = |number| match store.get(key(number)).wait() {
        Ok(Some(value)) => {
            assert_eq!(value[..], data(number, 9000));
            true
        }
        Ok(None) | Err(_) => false,
    };
    assert!(on_second.iter().all(|number| !hit(*number)), "its device is gone");
    let others: Vec<u64> = (0..40).filter(|number| !on_second.contains(number)).collect();
    assert!(others.iter().all(|number| hit(*number)), "the other device is there");

    buses[1].replug();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.recover(1) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!((0..40).all(hit), "all are there again");
}

#[test]
fn one_of_several_devices_that_failed_is_recovered_without_the_others() {
    let buses = [bus(), bus()];
    let store = two_devices(&buses);
    for number in 0..40 {
        store.put(key(number), data(number, 9000)).wait().expect("put");
    }
    store.commit().wait().expect("committed");
    let device_of = |number| store.info(key(number)).wait().expect("known").map(|i| i.device);
    let (first, second): (Vec<u64>, Vec<u64>) =
        (0..40).partition(|number| device_of(*number) == Some(0));
    assert!(!first.is_empty() && !second.is_empty(), "both devices have some");
    buses.iter().for_each(|bus| bus.unplug());
    let hit = |number: &u64| matches!(store.get(key(*number)).wait(), Ok(Some(_)));
    assert!(!(0..40).any(|number| hit(&number)), "both are gone");

    buses[1].replug();
    let recovered = |device| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = store.recover(device) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    recovered(1);
    assert!(second.iter().all(hit), "those of the device that is back");
    assert!(!first.iter().any(hit), "those of the other");
    buses[0].replug();
    recovered(0);
    assert!((0..40).all(|number| hit(&number)), "all");
}

/// Opens two software controllers as devices.
fn devices_of(buses: &[std::sync::Arc<SoftBus>]) -> Vec<Device> {
    let target: Target = "soft:mem=64M".parse().expect("a target");
    let device = |bus: &std::sync::Arc<SoftBus>| {
        let controller = Controller::attach(bus.clone(), &ControllerOptions::default());
        let controller = controller.expect("a controller");
        let namespace = controller.namespace_of(&target).expect("a namespace");
        Device::of_namespace(controller, namespace, &target)
    };
    buses.iter().map(device).collect()
}

/// Submits one request to a local store and polls until it is answered; returns the outcome and the memory.
fn ask(store: &mut Local, action: Action) -> (Option<Outcome>, AnyBuffer) {
    let (begun, mut answer) = (Instant::now(), None);
    store.submit(store.now(), Request { reply: 1, deadline: Time::NEVER, action });
    while answer.is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        store.poll(store.now(), &mut |done| answer = Some((done.result.ok(), done.memory)));
    }
    answer.expect("it was answered")
}

#[test]
fn a_local_store_recovers_a_device_that_failed_and_no_other() {
    let buses = [bus(), bus()];
    let devices = devices_of(&buses);
    let format = FormatStore { devices: devices.clone(), shards: 2, ..FormatStore::default() };
    Store::format(&format).expect("formatted");
    let command_timeout = Duration::from_secs(1);
    let options = OpenOptions { devices, command_timeout, ..OpenOptions::default() };
    let mut store = Store::open_local(&options).expect("a store");
    for number in 0..30 {
        // A device's own memory determines where the object goes.
        let mut memory = store.allocate_on((number % 2) as u8, 8192).expect("memory");
        memory[..8000].copy_from_slice(&data(number, 8000));
        let data = AnyBuffer::One(memory);
        let item = PutItem { key: key(number), bytes: 8000, data, options: PutOptions::default() };
        assert_eq!(ask(&mut store, Action::Put(item)).0, Some(Outcome::Stored));
    }
    assert_eq!(ask(&mut store, Action::Commit).0, Some(Outcome::Committed));
    let device_of = |store: &Local, number| store.info(store.now(), &key(number)).map(|i| i.device);
    let (first, second): (Vec<u64>, Vec<u64>) =
        (0..30).partition(|number| device_of(&store, *number) == Some(0));
    assert!(!first.is_empty() && !second.is_empty(), "both devices have some");
    // A missing device gives no memory.
    let mut rooms =
        [0, 1].map(|device| Some(AnyBuffer::One(store.allocate_on(device, 8192).expect("memory"))));
    let mut hit = |store: &mut Local, number: u64| {
        let room = &mut rooms[number as usize % 2];
        let into = room.take().expect("it came back");
        let (outcome, memory) = ask(
            store,
            Action::Get(GetItem { key: key(number), part: Part::All, into, version: None }),
        );
        *room = Some(memory);
        matches!(outcome, Some(Outcome::Hit { bytes: 8000 }))
    };
    for (device, fix) in [(1, "it works"), (2, "no such device")] {
        let refused = store.recover(device).expect_err("nothing to do").to_string();
        assert!(refused.contains(fix), "{refused}");
    }

    buses[1].unplug();
    assert!(second.iter().all(|number| !hit(&mut store, *number)), "its device is gone");
    assert!(first.iter().all(|number| hit(&mut store, *number)), "the other is there");
    buses[1].replug();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.recover(1) {
        assert!(Instant::now() < deadline, "{error}");
        store.poll(store.now(), &mut drop);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((0..30).all(|number| hit(&mut store, number)), "all are there again");
    assert!(store.recover(1).is_err(), "and nothing is left to recover");
    store.close(&mut drop).expect("closed");
}

#[test]
fn a_store_whose_device_is_gone_has_nothing_due() {
    let bus = bus();
    let target: Target = "soft:mem=64M".parse().expect("a target");
    let controller = Controller::attach(bus.clone(), &ControllerOptions::default());
    let controller = controller.expect("a controller");
    let namespace = controller.namespace_of(&target).expect("a namespace");
    let devices = vec![Device::of_namespace(controller, namespace, &target)];
    let format = FormatStore { devices: devices.clone(), ..FormatStore::default() };
    Store::format(&format).expect("formatted");
    let command_timeout = Duration::from_secs(1);
    let options = OpenOptions { devices, command_timeout, ..OpenOptions::default() };
    let mut store = Store::open_local(&options).expect("a store");
    let until = Instant::now() + Duration::from_secs(60);
    let poll = |store: &mut Local| {
        assert!(Instant::now() < until, "it goes on");
        let (now, mut answers) = (store.now(), 0);
        (store.poll(now, &mut |_| answers += 1), answers)
    };
    for number in 0..8 {
        let data = AnyBuffer::One(store.allocate(8192).expect("memory"));
        let options = PutOptions::default();
        let item = PutItem { key: key(number), bytes: 8192, data, options };
        let (now, action) = (store.now(), Action::Put(item));
        store.submit(now, Request { reply: number, deadline: Time::NEVER, action });
        while poll(&mut store).1 == 0 {}
    }
    // One journal block is on its way to nowhere, and the next one has begun.
    bus.unplug();
    for number in 0..8 {
        let (now, action) = (store.now(), Action::Delete(key(number)));
        store.submit(now, Request { reply: number, deadline: Time::NEVER, action });
        poll(&mut store);
        std::thread::sleep(Duration::from_millis(5));
    }
    let turn = loop {
        let (turn, _) = poll(&mut store);
        if store.stats().device_failures > 0 && turn.moved + turn.in_flight == 0 {
            break turn;
        }
    };
    assert_eq!(turn.next, Time::NEVER, "its thread may sleep");
}

#[test]
fn a_layer_of_many_blocks_is_read_at_once_from_any_shard() {
    let rig = Rig::soft();
    let store = rig.format(2).open();
    let (dtype, tensors_per_layer) = (Dtype::F16, 2);
    // Tensors of 3072 bytes, each padded to a unit.
    let block =
        BlockShape { layers: 4, tensors_per_layer, kv_heads: 2, head_dim: 48, dtype, tokens: 16 };
    let layout = Layout::new(block, Order::LayerMajor { slots: 8 }).expect("a layout");
    let defined = store.layout(layout).wait().expect("defined");
    assert_eq!(defined.layout(), &layout);
    let with = PutWith { layout: Some(defined), ..PutWith::default() };
    let block = |number: u64| -> Vec<u8> {
        let tensor = |t: u64| [data(number << 8 | t, 3072), vec![0; 1024]].concat();
        (0..8).flat_map(tensor).collect()
    };
    let puts = (0..20u64).map(|number| (key(number), block(number)));
    for put in store.put_many(puts, &with).wait() {
        assert!(put.expect("put").is_stored());
    }
    let memory = |_| AnyBuffer::One(store.allocate(8192).expect("memory"));
    let items = (0..20u64).map(|number| (key(number), Part::Layer(2), memory(number)));
    for (number, read) in (0..20).zip(store.get_many_into(items).wait()) {
        let read = read.expect("read");
        let AnyBuffer::One(buffer) = read.memory else { panic!("it was lent") };
        assert_eq!(read.bytes, Some(8192));
        assert!(buffer[..8192] == block(number)[4 * 4096..6 * 4096], "layer 2 of {number}");
    }
    let value = store.get(key(7)).wait().expect("got").expect("there");
    assert!(value[..] == block(7));
    let range = store.get_range(key(7), 5000..6000).wait().expect("got").expect("there");
    assert!(range[..] == block(7)[5000..6000]);
}
