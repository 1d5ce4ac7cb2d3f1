//! A test's own file, devices on it, and single requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::{Buffer, Completion, Device, DeviceOptions, IoBuffer, Target};

/// Every path to a file, with the options that matter.
pub(crate) const PATHS: [&str; 7] = [
    "psync:FILE",
    "psync:FILE,direct=off",
    "mmap:FILE",
    "uring:FILE",
    "uring:FILE,fixed=off",
    "uring:FILE,direct=off",
    "uring:FILE,direct=off,fixed=off",
];

/// A unique file name, removed at the end. The file lies in the build directory, because direct I/O needs a real file
/// system.
pub(crate) struct TestFile(PathBuf);

impl TestFile {
    pub(crate) fn new() -> TestFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kernel-path-{}-{number}", std::process::id());
        TestFile(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns its target for an entry of `PATHS`.
    pub(crate) fn target(&self, path: &str) -> Target {
        let text = path.replace("FILE", &self.0.display().to_string());
        text.parse().expect("a target")
    }

    pub(crate) fn open(&self, path: &str, bytes: u64) -> Device {
        let options = DeviceOptions { file_bytes: Some(bytes), ..DeviceOptions::default() };
        Device::open(&self.target(path), &options).expect("a device")
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        // The test may not have created it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a queue for at most `depth` requests in flight, with `memory` registered.
pub(crate) fn queue<B: IoBuffer>(
    device: &Device,
    depth: u32,
    memory: &[&Buffer],
) -> DeviceQueue<B> {
    let depth = depth.min(device.info().queue_depth_max);
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth, timeout, abort_timeout: timeout };
    device.create_queue(&options, memory).expect("a queue")
}

/// Executes one request on an idle queue.
pub(crate) fn carry_out<B: IoBuffer + std::fmt::Debug>(
    device: &Device,
    queue: &mut DeviceQueue<B>,
    operation: Operation,
    buffer: B,
) -> Completion<B> {
    queue.post(device.now(), Request { operation, buffer }).expect("an idle queue takes it");
    queue.ring();
    next(device, queue)
}

pub(crate) fn next<B: IoBuffer>(device: &Device, queue: &mut DeviceQueue<B>) -> Completion<B> {
    let start = Instant::now();
    loop {
        let mut finished = None;
        let count = queue.poll(device.now(), |completion| {
            assert!(finished.replace(completion).is_none(), "only one is in flight");
        });
        assert_eq!(count, usize::from(finished.is_some()));
        if let Some(finished) = finished {
            return finished;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "a request never completed");
    }
}
