//! Rings over each memory path and each way to ring: the GPU writes through a device and reads its data back.
//!
//! The process has one emulated GPU, so tests run one after the other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Controller, ControllerOptions};
use adit_gpu::{
    Device, Direction, DoorbellChoice, EngineChoice, GioUring, Gpu, MemoryPath, Options, Place,
    Pool, Slice, Transfer,
};
use adit_gpu_emulated::{load, report, set};

const BYTES: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// How to create a test's rings, and their expected description.
struct Case {
    settings: &'static str,
    place: Place,
    path: MemoryPath,
    rings: (Place, Place),
    doorbells: (DoorbellChoice, &'static str),
}

fn device(bus: &Arc<SoftBus>) -> Device {
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let controller = Controller::attach(Arc::<SoftBus>::clone(bus), &options).expect("attached");
    let namespace = controller.namespace(Nsid(1)).expect("a namespace");
    Device { controller: Arc::new(controller), namespace }
}

/// Creates rings over two devices for a case.
fn rings(case: &Case, buses: &[Arc<SoftBus>]) -> GioUring {
    let gpu = Gpu::open(0).expect("the emulated GPU");
    let devices: Vec<Device> = buses.iter().map(device).collect();
    let controllers: Vec<_> = devices.iter().map(|device| Arc::clone(&device.controller)).collect();
    let pool = Pool::allocate(&gpu, &controllers, &[2 * BYTES], Some(case.place)).expect("a pool");
    assert_eq!(pool.path(), Some(case.path), "{:?}", pool.reports());
    let options = Options {
        queues: 2,
        depth: 32,
        sms: Some(1),
        blocks: 4,
        engine: EngineChoice::Rings,
        submission: Some(case.rings.0),
        completion: Some(case.rings.1),
        doorbells: case.doorbells.0,
        ..Options::default()
    };
    let uring = GioUring::init_queue(&gpu, devices, pool, &options).expect("rings");
    let description = uring.description();
    assert_eq!(description.places, Some(case.rings));
    assert_eq!(description.doorbells.as_ref().map(|doorbells| doorbells.0), Some(case.doorbells.1));
    uring
}

fn carry(uring: &GioUring, offset: u64, direction: Direction) {
    let half = BYTES / 2;
    let transfers = [0u16, 1].map(|device| Transfer {
        device,
        direction,
        lba: Lba(64),
        slices: [Slice { region: 0, offset: offset + u64::from(device) * half, bytes: half }],
    });
    let iocbs = uring.get_iocb(transfers, None).expect("control blocks");
    uring.issue_io(&iocbs, 1).expect("issued");
    let outcome = uring.wait(iocbs, LONG).expect("ended");
    assert!(outcome.failed.is_empty(), "{outcome:?}");
}

/// One half of the pool goes out through two devices and comes back into the other; then everything is torn down.
fn round_trip(case: &Case) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    load();
    set(case.settings);
    let before = report();
    let bus = || SoftBus::new("mem=16M,dbbuf=off".parse().expect("options"), Drive::Thread);
    let buses = [bus().expect("a bus"), bus().expect("a bus")];
    let uring = rings(case, &buses);
    let written: Vec<u8> = (0..BYTES).map(|at| ((at * 31) >> 4) as u8).collect();
    uring.pool().write(0, 0, &written).expect("written");
    carry(&uring, 0, Direction::Write);
    carry(&uring, BYTES, Direction::Read);
    let mut read = vec![0; BYTES as usize];
    uring.pool().read(0, BYTES, &mut read).expect("read");
    assert!(read == written, "what came back is what went out");
    drop(uring);
    for bus in &buses {
        assert_eq!((bus.dma_faults(), bus.mapped_bytes()), (0, 0));
    }
    let after = report();
    assert_eq!((after.misuses, after.leaks), (before.misuses, before.leaks));
    assert_eq!((after.registrations, after.pinned_ranges, after.allocated_bytes), (0, 0, 0));
    set("");
}

const GPU: (Place, Place) = (Place::Gpu, Place::Gpu);
const HOST: (Place, Place) = (Place::Host, Place::Host);
const MAPPED: (DoorbellChoice, &str) = (DoorbellChoice::Auto, "mapped");

#[test]
fn all_in_coherent_memory() {
    let (place, path) = (Place::Gpu, MemoryPath::Coherent);
    round_trip(&Case { settings: "coherent", place, path, rings: GPU, doorbells: MAPPED });
}

#[test]
fn all_in_the_gpus_memory_by_dma_buf() {
    let (place, path) = (Place::Gpu, MemoryPath::DmaBufIommufd);
    round_trip(&Case { settings: "", place, path, rings: GPU, doorbells: MAPPED });
}

#[test]
fn all_in_the_gpus_memory_by_gdrdrv() {
    let (place, path) = (Place::Gpu, MemoryPath::Gdrdrv);
    round_trip(&Case { settings: "no-dma-buf", place, path, rings: GPU, doorbells: MAPPED });
}

#[test]
fn data_and_completions_in_the_gpus_memory_and_commands_in_the_hosts() {
    let (place, path) = (Place::Gpu, MemoryPath::DmaBufIommufd);
    let rings = (Place::Host, Place::Gpu);
    round_trip(&Case { settings: "", place, path, rings, doorbells: MAPPED });
}

#[test]
fn all_in_host_memory() {
    let (place, path) = (Place::Host, MemoryPath::PinnedHost);
    let settings = "no-dma-buf,gdr=absent";
    round_trip(&Case { settings, place, path, rings: HOST, doorbells: MAPPED });
}

#[test]
fn all_in_host_memory_rung_by_proxy() {
    let (place, path) = (Place::Host, MemoryPath::PinnedHost);
    let doorbells = (DoorbellChoice::Proxy, "proxy");
    round_trip(&Case { settings: "", place, path, rings: HOST, doorbells });
}

#[test]
fn all_in_the_gpus_memory_rung_by_proxy() {
    let (place, path) = (Place::Gpu, MemoryPath::DmaBufIommufd);
    let doorbells = (DoorbellChoice::Proxy, "proxy");
    round_trip(&Case { settings: "", place, path, rings: GPU, doorbells });
}
