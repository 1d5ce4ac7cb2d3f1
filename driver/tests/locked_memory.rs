//! Memory that io_uring locks, which users have little of by default: only what is used, and released at once.
//!
//! Runs in its own process, because the system counts locked memory per process.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Device, DeviceOptions, Target};

/// Serializes tests that lock memory.
static ALONE: Mutex<()> = Mutex::new(());

/// Memory of this process that is pinned, in KiB.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("it says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A device on a file of this name, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("locked-{name}-{}", std::process::id());
        File(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    fn open(&self, path: &str) -> Device {
        let target: Target =
            path.replace("FILE", &self.0.display().to_string()).parse().expect("a target");
        let options = DeviceOptions { file_bytes: Some(1 << 20), ..DeviceOptions::default() };
        Device::open(&target, &options).expect("a device")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // The test may not have created it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn queue(device: &Device, memory: &[&Buffer]) -> DeviceQueue<Buffer> {
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth: 4, timeout, abort_timeout: timeout };
    device.create_queue(&options, memory).expect("a queue")
}

fn read(
    device: &Device,
    queue: &mut DeviceQueue<Buffer>,
    mut buffer: Buffer,
    times: u32,
) -> Buffer {
    for _ in 0..times {
        let request = Request { operation: Operation::Read(Lba(0)), buffer };
        queue.post(device.now(), request).expect("an idle queue takes it");
        queue.ring();
        let mut done = None;
        while done.is_none() {
            queue.poll(device.now(), |completion| done = Some(completion));
        }
        let completion = done.expect("it is over");
        completion.result.expect("a healthy file");
        buffer = completion.buffer;
    }
    buffer
}

#[test]
fn the_next_queue_finds_the_last_ones_memory_unlocked() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = File::new("next");
    let device = file.open("uring:FILE");
    let memory = device.allocate(4 << 20).expect("memory");
    let before = pinned_kib();
    for _ in 0..5 {
        let queue = queue(&device, &[&memory]);
        assert_eq!(pinned_kib(), before + 4096, "registered");
        drop(queue);
        assert_eq!(pinned_kib(), before, "and given back");
    }
}

#[test]
fn memory_that_is_used_often_is_locked_once_and_let_go_of_when_it_is_freed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = File::new("late");
    for (path, kib) in [("uring:FILE", 256), ("uring:FILE,fixed=off", 0)] {
        let device = file.open(path);
        let before = pinned_kib();
        let mut queue = queue(&device, &[]);
        let buffer = device.allocate(256 << 10).expect("memory");
        let buffer = read(&device, &mut queue, buffer, 2);
        assert_eq!(pinned_kib(), before, "{path}: it may never be used again");
        let buffer = read(&device, &mut queue, buffer, 20);
        assert_eq!(pinned_kib(), before + kib, "{path}: registered once");
        drop(buffer);
        // Some kernels release the pages a second later.
        let deadline = Instant::now() + Duration::from_secs(30);
        while pinned_kib() != before && Instant::now() < deadline {
            queue.poll(device.now(), |_| panic!("nothing is in flight"));
        }
        assert_eq!(pinned_kib(), before, "{path}: an idle queue lets go of it");
        let other = device.allocate(256 << 10).expect("memory");
        let other = read(&device, &mut queue, other, 20);
        assert_eq!(pinned_kib(), before + kib, "{path}");
        drop(queue);
        assert_eq!(pinned_kib(), before, "{path}: nothing is left of a queue");
        drop(other);
    }
}
