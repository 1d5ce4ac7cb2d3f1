//! Memory that the caller owns, registered once and used for many transfers.
#![allow(unsafe_code)]
#![allow(missing_docs)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Controller, ControllerOptions, Error, QueuePair, QueuePairOptions};
use memmap2::{MmapOptions, MmapRaw};

const BYTES: usize = 1 << 20;

/// A mapping that reports its drop.
struct Owner {
    map: MmapRaw,
    gone: Arc<AtomicBool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

struct Rig {
    bus: Arc<SoftBus>,
    controller: Controller,
    gone: Arc<AtomicBool>,
}

impl Rig {
    fn new(options: &str) -> Rig {
        let bus = SoftBus::new(options.parse().expect("options"), Drive::Manual).expect("a bus");
        let controller =
            Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
        Rig { bus, controller: controller.expect("a controller"), gone: Arc::default() }
    }

    fn register(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        let map: MmapRaw = MmapOptions::new().len(BYTES).map_anon().expect("memory").into();
        let at = NonNull::new(map.as_mut_ptr().wrapping_add(offset)).expect("not null");
        let owner = Owner { map, gone: Arc::clone(&self.gone) };
        assert!(offset + len <= owner.map.len());
        // SAFETY: the owner keeps the mapping, which has no other references.
        unsafe { self.controller.register(at, len, None, Box::new(owner)) }
    }
}

/// Writes the pieces of a registered region and reads them back into other pieces.
fn round_trip(options: &str) -> (u64, u64) {
    let rig = Rig::new(options);
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue: QueuePair<Vec<Buffer>> =
        rig.controller.create_queue_pair(QueuePairOptions::default()).expect("a queue pair");
    let mut head = rig.register(0, BYTES).expect("registered");
    for (index, byte) in head.iter_mut().enumerate() {
        *byte = (index / 7 + index / 4096) as u8;
    }
    let expected = head.to_vec();
    let tail = head.split_off(300 << 10);
    let (mut parts, _) = queue.execute(namespace.write(Lba(8), vec![head, tail])).expect("written");
    parts.iter_mut().for_each(|part| part.fill(0));
    let (parts, _) = queue.execute(namespace.read(Lba(8), parts)).expect("read");
    assert_eq!([&parts[0][..], &parts[1][..]].concat(), expected);
    assert!(!rig.gone.load(Ordering::SeqCst), "the owner is kept while a part is");
    drop(parts);
    assert!(rig.gone.load(Ordering::SeqCst), "the owner is let go with the last part");
    assert_eq!(rig.bus.dma_faults(), 0);
    (queue.stats().prebuilt_lists, queue.stats().built_lists)
}

#[test]
fn registered_memory_is_read_and_written_by_prps_built_once() {
    let (prebuilt, built) = round_trip("mem=8M,sgl=off,mdts=5");
    assert!(prebuilt > 0, "each command inside one part uses the lists built at registration");
    assert!(built <= 2, "only a command across both parts builds one: {built}");
}

#[test]
fn registered_memory_is_read_and_written_by_sgls() {
    assert_eq!(round_trip("mem=8M,mdts=5").0, 0);
}

#[test]
fn what_cannot_be_registered_is_refused_at_registration() {
    let rig = Rig::new("mem=8M");
    for (offset, len) in [(1, 4096), (512, 4096), (0, 4095), (0, 0)] {
        let error = rig.register(offset, len).expect_err("refused");
        assert!(error.is_usage() && error.to_string().contains("4096"), "{error}");
    }
    assert!(rig.gone.load(Ordering::SeqCst), "what was refused is given back");
}
