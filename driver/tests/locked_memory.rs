//! What io_uring locks of a user's memory, of which there is little by default, is given back at once.
//!
//! In a process of its own: what is locked is counted for all of it.

use std::time::Duration;

use adit_driver::device::{DeviceQueue, QueueOptions};
use adit_driver::{Buffer, Device, DeviceOptions, Target};

/// Memory of this process that somebody else keeps in place, in KiB.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("it says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn the_next_queue_finds_the_last_ones_memory_unlocked() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("locked-{}", std::process::id()));
    let target: Target = format!("uring:{}", file.display()).parse().expect("a target");
    let options = DeviceOptions { file_bytes: Some(1 << 20), ..DeviceOptions::default() };
    let device = Device::open(&target, &options).expect("a device");
    let memory = device.allocate(4 << 20).expect("memory");
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth: 4, timeout, abort_timeout: timeout };
    let before = pinned_kib();
    for _ in 0..5 {
        let queue: DeviceQueue<Buffer> =
            device.create_queue(&options, &[&memory]).expect("a queue");
        assert_eq!(pinned_kib(), before + 4096, "registered");
        drop(queue);
        assert_eq!(pinned_kib(), before, "and given back");
    }
    std::fs::remove_file(file).expect("removing it");
}
