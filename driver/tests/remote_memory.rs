//! Memory that the device reaches by a file: another agent's rings and data.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::controller::{RingSpace, SuppliedRings};
use adit_driver::spec::{Cid, DataPointer, Iova, Lba, LbaCount, Nsid, Sqe};
use adit_driver::sys::{Backing, HostMemory};
use adit_driver::{
    Buffer, Controller, ControllerOptions, FileMapping, Placement, QueuePairOptions,
};

const PAGE: u64 = 4096;

struct Rig {
    bus: Arc<SoftBus>,
    controller: Controller,
}

fn rig() -> Rig {
    let bus = SoftBus::new("mem=16M".parse().expect("options"), Drive::Thread).expect("bus");
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let attached = Controller::attach(Arc::<SoftBus>::clone(&bus), &options);
    Rig { bus, controller: attached.expect("attached") }
}

/// Makes another agent's memory and its file.
fn foreign(pages: u64) -> (Arc<HostMemory>, OwnedFd) {
    let memory = HostMemory::allocate_anywhere((pages * PAGE) as usize, Backing::SharedFile);
    let memory = Arc::new(memory.expect("memory"));
    let file = memory.file().expect("a file").0.try_clone_to_owned().expect("a descriptor");
    (memory, file)
}

fn register(rig: &Rig, file: &OwnedFd, pages: u64) -> (FileMapping, Weak<()>) {
    let owner = Arc::new(());
    let weak = Arc::downgrade(&owner);
    // SAFETY: the file is as long as its memory, which outlives the mapping in each test.
    let mapped =
        unsafe { rig.controller.register_file(file.as_fd(), 0, pages * PAGE, Box::new(owner)) };
    (mapped.expect("registered"), weak)
}

fn placement(mapping: &FileMapping, owner: &Arc<()>) -> Placement {
    let iova = mapping.iova();
    let space = |offset| {
        let owner = Arc::<()>::clone(owner);
        // SAFETY: the mapping outlives the queue in each test, and is fresh.
        unsafe { RingSpace::remote(PAGE as usize, Iova(iova.0 + offset), owner) }
    };
    let (submission, completion) = (space(0), space(PAGE));
    Placement::Supplied(SuppliedRings { submission, completion, doorbells: None })
}

#[test]
fn a_read_goes_through_rings_and_into_data_that_only_files_name() {
    let rig = rig();
    let (memory, file) = foreign(8);
    let (mapping, owner) = register(&rig, &file, 8);
    assert!(mapping.prebuilt().is_some(), "eight pages can need a list");
    memory.atomics().words()[2 * 512].store(u64::MAX, Ordering::Relaxed);
    let keeper = owner.upgrade().expect("the mapping has it");
    // SAFETY: the one command reads into the mapping's third page.
    let raw = unsafe { rig.controller.create_raw_queue_pair(8, placement(&mapping, &keeper)) };
    let raw = raw.expect("raw");
    assert!(raw.submission().memory().is_none());
    let dptr = DataPointer::Prp { prp1: Iova(mapping.iova().0 + 2 * PAGE), prp2: Iova(0) };
    let sqe = Sqe::read(Nsid(1), Lba(0), LbaCount::ONE).with_dptr(dptr).with_cid(Cid(5));
    let words = memory.atomics();
    for (index, value) in sqe.to_dwords().into_iter().enumerate() {
        words.dwords()[index].store(value, Ordering::Relaxed);
    }
    raw.doorbells().0.clone().ring(1);
    let deadline = rig.controller.now() + Duration::from_secs(10);
    while words.dwords()[1024 + 3].load(Ordering::Acquire) == 0 && rig.controller.now() < deadline {
        rig.controller.pause(Duration::from_micros(50));
    }
    assert_eq!(words.dwords()[1024 + 3].load(Ordering::Acquire), 1 << 16 | 5);
    assert_eq!(words.words()[2 * 512].load(Ordering::Acquire), 0, "a fresh device reads zeroes");
    drop(keeper);
    assert!(raw.delete());
    drop(mapping);
    assert!(owner.upgrade().is_none(), "let go once it is unmapped");
    assert_eq!(rig.bus.dma_faults(), 0);
}

#[test]
fn a_queue_of_the_cpus_cannot_lie_where_the_cpu_does_not_reach() {
    let rig = rig();
    let (_memory, file) = foreign(2);
    let (mapping, owner) = register(&rig, &file, 2);
    let keeper = owner.upgrade().expect("the mapping has it");
    let placement = placement(&mapping, &keeper);
    let options = QueuePairOptions { depth: 8, placement, ..Default::default() };
    let error = rig.controller.create_queue_pair::<Buffer>(options).expect_err("refused");
    assert!(error.is_usage() && error.to_string().contains("cannot access its rings"), "{error}");
}

#[test]
fn a_file_that_cannot_be_mapped_is_refused_and_leaves_nothing() {
    let rig = rig();
    let before = rig.bus.mapped_bytes();
    let null = std::fs::File::open("/dev/null").expect("a file");
    for (offset, len) in [(0, PAGE), (0, 0), (!(PAGE - 1), PAGE)] {
        // SAFETY: nothing is mapped.
        let mapped =
            unsafe { rig.controller.register_file(null.as_fd(), offset, len, Box::new(())) };
        let error = mapped.expect_err("refused").to_string();
        assert!(error.contains("of a file for DMA"), "{error}");
    }
    assert_eq!(rig.bus.mapped_bytes(), before);
}

#[test]
fn host_memory_of_one_device_can_be_registered_with_another() {
    let (first, second) = (rig(), rig());
    let memory = Arc::new(first.controller.host_memory(1 << 20).expect("memory"));
    for rig in [&first, &second] {
        let owner = Box::new(Arc::clone(&memory));
        // SAFETY: the owner keeps the memory, which has no references.
        let buffer = unsafe { rig.controller.register(memory.as_ptr(), memory.len(), None, owner) };
        assert_eq!(buffer.expect("registered").len(), memory.len());
    }
}
