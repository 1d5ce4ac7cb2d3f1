//! I/Os allocate nothing, and a queue pair is small.
//!
//! A counting allocator watches `post`, `ring` and `poll` over ten thousand I/Os of every kind, after one burst that
//! lets the test's own buffers grow. It counts only inside those calls on the watched thread, which excludes the
//! software controller's work between them.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::reactor::{Lane, Pending, ReactorOptions};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{
    Buffer, Controller, ControllerOptions, Device, DeviceOptions, IoBuffer, Namespace, QueuePair,
    QueuePairOptions, Stats,
};

/// Watched I/Os of each kind.
const IOS: usize = 10_000;
/// I/Os posted per doorbell ring.
const BURST: usize = 16;

thread_local! {
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counting a watched thread's calls.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn count(allocations: u64, bytes: i64) {
        // A thread that is ending has no counters and is not watched.
        let _ = WATCHES.try_with(|watches| {
            if watches.get() {
                ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
                LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
            }
        });
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(1, layout.size() as i64);
        // SAFETY: our caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::count(0, -(layout.size() as i64));
        // SAFETY: our caller's promise; `System` made what `alloc` returned.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(1, size as i64 - layout.size() as i64);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `f`; returns its result, the number of its allocations and the bytes left allocated.
fn watch<R>(f: impl FnOnce() -> R) -> (R, u64, i64) {
    let (allocations, bytes) = (ALLOCATIONS.get(), LIVE_BYTES.get());
    WATCHES.set(true);
    let result = f();
    WATCHES.set(false);
    (result, ALLOCATIONS.get() - allocations, LIVE_BYTES.get() - bytes)
}

fn open(soft: &str) -> (Arc<SoftBus>, Controller) {
    let bus = SoftBus::new(soft.parse().expect("options"), Drive::Manual).expect("bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    (bus, controller.expect("controller"))
}

struct Work<B: IoBuffer> {
    bus: Arc<SoftBus>,
    namespace: Namespace,
    queue: QueuePair<B>,
    buffers: Vec<B>,
    is_write: bool,
}

impl<B: IoBuffer> Work<B> {
    fn new(soft: &str, make: impl Fn(&Controller) -> B) -> Work<B> {
        let (bus, controller) = open(soft);
        let namespace = controller.namespace(Nsid(1)).expect("namespace");
        let options = QueuePairOptions { list_pages: 64, bounce_pages: 64, ..Default::default() };
        let queue = controller.create_queue_pair(options).expect("queue pair");
        let buffers = (0..BURST).map(|_| make(&controller)).collect();
        Work { bus, namespace, queue, buffers, is_write: false }
    }

    /// Executes one burst, alternating reads and writes; returns its allocations.
    fn burst(&mut self) -> u64 {
        let Work { bus, namespace, queue, buffers, is_write } = self;
        *is_write = !*is_write;
        let now = bus.now();
        let ((), posting, _) = watch(|| {
            while let Some(buffer) = buffers.pop() {
                let lba = Lba(buffers.len() as u64 * 512);
                let command = match *is_write {
                    true => namespace.write(lba, buffer),
                    false => namespace.read(lba, buffer),
                };
                assert!(queue.post(now, command).is_ok(), "the burst fits the queue");
            }
            queue.ring();
        });
        while bus.step() > 0 {}
        let (finished, polling, _) = watch(|| {
            queue.poll(now, |completion| {
                assert!(completion.result.is_ok(), "nothing fails");
                buffers.push(completion.buffer);
            }) + queue.poll(now, |_| ())
        });
        assert_eq!(finished, BURST, "a burst completes whole");
        posting + polling
    }

    /// Executes ten thousand I/Os; returns the queue's counters.
    fn run(mut self, kind: &str) -> Stats {
        self.burst();
        let allocations: u64 = (0..IOS / BURST).map(|_| self.burst()).sum();
        assert_eq!(allocations, 0, "allocations in {IOS} I/Os: {kind}");
        self.queue.stats()
    }
}

fn single(controller: &Controller, offset: usize, len: usize) -> Buffer {
    let mut buffer = controller.allocate(offset + len).expect("memory").split_off(offset);
    let _ = buffer.split_off(len);
    buffer
}

/// Makes two pieces that meet inside a page.
fn pieces(controller: &Controller, at: usize, len: usize) -> Vec<Buffer> {
    vec![single(controller, 4096, at), single(controller, 0, len - at)]
}

fn each(options: &str, test: impl Fn(&str)) {
    for storage in ["null", "mem=8M"] {
        test(&format!("{storage},{options}"));
    }
}

#[test]
fn the_counter_counts() {
    let (boxed, allocations, bytes) = watch(|| Box::new([0u8; 100]));
    assert_eq!((allocations, bytes), (1, 100));
    drop(boxed);
    let (_, allocations, bytes) = watch(|| drop(vec![0u8; 7]));
    assert_eq!((allocations, bytes), (1, 0));
}

#[test]
fn plain_prp_and_sgl_transfers_allocate_nothing() {
    each("sgl=off", |soft| {
        let stats = Work::new(soft, |controller| single(controller, 0, 4096)).run("one page");
        assert_eq!((stats.sgl_commands, stats.built_lists), (0, 0), "{stats:?}");
    });
    each("sgl=on,dbbuf=off", |soft| {
        let stats = Work::new(soft, |controller| single(controller, 16, 8192)).run("a data block");
        assert_eq!(stats.sgl_commands, stats.submitted, "{stats:?}");
    });
}

#[test]
fn lists_allocate_nothing() {
    each("sgl=off", |soft| {
        let stats = Work::new(soft, |controller| single(controller, 512, 65536)).run("prebuilt");
        assert_eq!(stats.prebuilt_lists, stats.submitted, "{stats:?}");
    });
    each("sgl=off", |soft| {
        let stats = Work::new(soft, |controller| pieces(controller, 8192, 65536)).run("built PRPs");
        assert_eq!(stats.built_lists, stats.submitted, "{stats:?}");
    });
    each("sgl=on", |soft| {
        let stats = Work::new(soft, |controller| pieces(controller, 100, 65536)).run("built SGLs");
        assert_eq!((stats.built_lists, stats.bounced_commands), (stats.submitted, 0), "{stats:?}");
    });
}

#[test]
fn split_and_bounced_requests_allocate_nothing() {
    each("mdts=2,sgl=off", |soft| {
        let stats = Work::new(soft, |controller| single(controller, 0, 65536)).run("split");
        assert!(stats.submitted >= 4 * IOS as u64, "{stats:?}");
    });
    each("sgl=off", |soft| {
        let stats = Work::new(soft, |controller| single(controller, 1, 8192)).run("bounced");
        assert_eq!(stats.bounced_commands, stats.submitted, "{stats:?}");
    });
}

/// Through a reactor's client and lane: sending, both turns, and receiving the answer.
#[test]
fn a_request_through_a_reactor_allocates_nothing() {
    let (bus, controller) = open("mem=8M");
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let options = ReactorOptions::default();
    let (mut lane, client) = Lane::attach(&controller, &namespace, &options).expect("a lane");
    let mut idle: Vec<Buffer> = (0..BURST).map(|_| single(&controller, 0, 4096)).collect();
    let mut flying: Vec<Pending<Buffer>> = Vec::with_capacity(BURST);
    let mut burst = || {
        let now = bus.now();
        let ((), sending, _) = watch(|| {
            let sent = idle.drain(..).enumerate().map(|(lba, buffer)| {
                if lba % 2 == 0 {
                    client.read(Lba(0), buffer)
                } else {
                    client.write(Lba(8), buffer)
                }
            });
            flying.extend(sent.map(|sent| sent.expect("room")));
            lane.turn(now);
        });
        while bus.step() > 0 {}
        let ((), taking, _) = watch(|| {
            lane.turn(now);
            let answers = flying.drain(..).map(|pending| pending.try_wait().expect("ended"));
            idle.extend(answers.map(|answer| answer.expect("carried out").buffer));
        });
        sending + taking
    };
    assert!(burst() > 0, "the first requests make their cells");
    let allocations: u64 = (0..IOS / BURST).map(|_| burst()).sum();
    assert_eq!(allocations, 0, "allocations in {IOS} requests through a reactor");
}

/// On the kernel paths, only the kernel allocates.
#[test]
fn a_request_through_the_kernel_allocates_nothing() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("no-allocation-{}", std::process::id()));
    for path in ["uring", "psync", "mmap"] {
        let target = format!("{path}:{}", file.display()).parse().expect("a target");
        let options = DeviceOptions { file_bytes: Some(1 << 20), ..DeviceOptions::default() };
        let device = Device::open(&target, &options).expect("a device");
        let mut idle: Vec<Vec<Buffer>> = (0..BURST)
            .map(|_| (0..2).map(|_| device.allocate(4096).expect("memory")).collect())
            .collect();
        let timeout = Duration::from_secs(10);
        let depth = device.info().queue_depth_max.min(BURST as u32);
        let options = QueueOptions { depth, timeout, abort_timeout: timeout };
        let mut queue = device.create_queue(&options, &[]).expect("a queue");
        let mut burst = || through_the_kernel(&device, &mut queue, &mut idle);
        burst();
        let allocations: u64 = (0..IOS / BURST).map(|_| burst()).sum();
        assert_eq!(allocations, 0, "allocations in {IOS} requests on {path}");
    }
    std::fs::remove_file(file).expect("removing it");
}

/// Reads once into every idle buffer; returns the number of allocations.
fn through_the_kernel(
    device: &Device,
    queue: &mut DeviceQueue<Vec<Buffer>>,
    idle: &mut Vec<Vec<Buffer>>,
) -> u64 {
    let depth = device.info().queue_depth_max.min(BURST as u32) as usize;
    let now = device.now();
    let (flying, posting, _) = watch(|| {
        for buffer in idle.drain(..depth) {
            let request = Request { operation: Operation::Read(Lba(0)), buffer };
            queue.post(now, request).expect("room");
        }
        queue.ring();
        depth
    });
    let mut ended = 0;
    let mut taking = 0;
    while ended < flying {
        let (count, allocations, _) = watch(|| {
            queue.poll(now, |completion| {
                assert_eq!(completion.result, Ok(0));
                idle.push(completion.buffer);
            })
        });
        ended += count;
        taking += allocations;
    }
    posting + taking
}

/// The goal: 128 KiB for a queue pair of 256 entries, without data.
#[test]
fn a_queue_pair_is_small() {
    let (bus, controller) = open("null");
    let before = bus.mapped_bytes();
    let (queue, _, heap) = watch(|| {
        controller.create_queue_pair::<Buffer>(QueuePairOptions::default()).expect("queue pair")
    });
    let mapped = bus.mapped_bytes() - before;
    let inline = size_of_val(&queue) as u64;
    // The software controller's side of the queue is also on the heap, so this is an upper bound.
    let total = mapped + u64::try_from(heap).expect("it allocates") + inline;
    println!(
        "queue pair of 256 entries: {total} bytes ({mapped} mapped, {heap} heap, {inline} inline)"
    );
    assert_eq!(queue.capacity(), 255);
    assert!(total < 128 << 10, "{total} bytes");
}
