//! A store on a namespace with protection information: what a plan says about its bytes, and what happens to objects
//! that the controller finds damaged.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::paths::{CommandQueue, Operation, QueueOptions, Request};
use adit_driver::transfer::{Slice, Transfer};
use adit_driver::{
    Buffer, CommandError, Controller, ControllerOptions, Device, Protection, Target,
};
use adit_kvstore::Store;
use adit_kvstore::shard::{Certainty, Part, Verification, Verifier};
use adit_kvstore::store::{FormatStore, OpenOptions};

use crate::rig::{data, key};

const LEN: usize = 50_000;

/// Formats a store on a protected controller; returns its bus as well.
fn protected(kind: Protection) -> (Arc<SoftBus>, Store) {
    let tail = format!("mem=256M,pi={}", kind.number());
    let bus = SoftBus::new(tail.parse().expect("options"), Drive::Thread).expect("a bus");
    let options = ControllerOptions { io_queues: 8, ..ControllerOptions::default() };
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &options).expect("ready");
    let target: Target = format!("soft:{tail}").parse().expect("a target");
    let namespace = controller.namespace_of(&target).expect("a namespace");
    let devices = vec![Device::of_namespace(controller, namespace, &target)];
    let format = FormatStore { devices: devices.clone(), ..FormatStore::default() };
    Store::format(&format).expect("formatted");
    let options = OpenOptions { devices, pool_bytes: 8 << 20, ..OpenOptions::default() };
    (bus, Store::open(&options).expect("a store"))
}

fn put(store: &Store, number: u64) {
    assert!(store.put(key(number), data(number, LEN)).wait().expect("put").is_stored());
}

fn faults(bus: &SoftBus, plan: &str) {
    let plan = plan.parse().expect("a plan");
    bus.with_controller(|controller| controller.set_faults(plan));
}

/// Carries out a transfer on a queue of its own.
fn carry_out(store: &Store, transfer: &Transfer<&[Slice]>) -> (Buffer, Result<u32, CommandError>) {
    let device = &store.devices()[0];
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth: 1, timeout, abort_timeout: timeout };
    let mut queue = device.create_queue(&options, &[]).expect("a queue");
    let bytes = transfer.bytes().expect("a command's") as usize;
    let mut buffer = device.allocate(bytes).expect("memory");
    drop(buffer.split_off(bytes));
    let request = Request { operation: Operation::Read(transfer.lba), buffer };
    queue.post(device.now(), request).expect("room");
    queue.ring();
    let mut read = None;
    while read.is_none() {
        queue.poll(device.now(), |completion| read = Some(completion));
        std::thread::yield_now();
    }
    let completion = read.expect("it ended");
    (completion.buffer, completion.result)
}

#[test]
fn a_plan_says_that_the_device_verifies_and_its_end_whether_it_did() {
    for kind in [Protection::Type1, Protection::Type3] {
        let (bus, store) = protected(kind);
        put(&store, 1);
        let transfers =
            store.plan(&[(key(1), Part::All)], Duration::from_secs(60)).wait().expect("planned");
        let (part, item) = (&transfers.parts[0], transfers.item(0).expect("it is there"));
        assert_eq!(item.verification(), Verification::Device(kind));
        let [transfer] = &part.transfers().collect::<Vec<_>>()[..] else { panic!("one command") };
        assert_eq!(part.verification(transfer), Verification::Device(kind));
        let (buffer, result) = carry_out(&store, transfer);
        assert_eq!(part.certainty(transfer, &result), Certainty::Verified(Verifier::Device(kind)));
        assert!(item.is_intact(&buffer), "and so it is");
        faults(&bus, "rot@read:n=1");
        let (_, result) = carry_out(&store, transfer);
        assert_eq!(part.certainty(transfer, &result), Certainty::Corrupt, "{result:?}");
        faults(&bus, "status(0:6)@read:n=1");
        let (_, result) = carry_out(&store, transfer);
        assert_eq!(part.certainty(transfer, &result), Certainty::Failed, "{result:?}");
    }
}

#[test]
fn what_the_device_finds_wrong_is_one_counted_miss_after_one_read() {
    let (bus, store) = protected(Protection::Type1);
    put(&store, 1);
    put(&store, 2);
    // The second rule counts every other read.
    faults(&bus, "rot@read:times=1+delay(1us)@read");
    assert!(store.get(key(1)).wait().expect("an answer").is_none(), "a miss");
    assert_eq!(bus.with_controller(|controller| controller.fault_counts()), [1, 0]);
    let stats = store.stats().wait().expect("counted");
    assert_eq!((stats.misses_corrupt, stats.hits), (1, 0));
    let value = store.get(key(2)).wait().expect("the device goes on").expect("a hit");
    assert!(value[..] == data(2, LEN));
    let stats = store.stats().wait().expect("counted");
    assert_eq!((stats.misses_corrupt, stats.hits), (1, 1));
}
