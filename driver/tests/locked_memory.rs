//! Memory that io_uring locks, which users have little of by default: only what is used, and released at once.
//!
//! Runs in its own process, because the system counts locked memory per process.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Device, DeviceOptions, Target};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

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

/// Set in a child process that is to give up its privileges: the name of its file.
const PLAIN_USERS_FILE: &str = "ADIT_TEST_PLAIN_USERS_FILE";

/// Runs `body` with the name of a file of 1 MiB, as a user without privileges and with 8 MiB of locked memory: in a
/// process of its own, as the test `name` of this binary.
fn as_plain_user(name: &str, body: impl FnOnce(&str)) {
    if let Ok(file) = std::env::var(PLAIN_USERS_FILE) {
        setrlimit(Resource::RLIMIT_MEMLOCK, 8 << 20, 8 << 20).expect("less than before");
        if Uid::effective().is_root() {
            setgroups(&[]).expect("no groups");
            setgid(Gid::from_raw(65534)).expect("a group");
            setuid(Uid::from_raw(65534)).expect("a user");
        }
        return body(&file);
    }
    let file = File::new(name);
    std::fs::write(&file.0, vec![0; 1 << 20]).expect("a file");
    std::fs::set_permissions(&file.0, Permissions::from_mode(0o666)).expect("its owner may");
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    child.args(["--exact", name, "--nocapture"]);
    // The user may not be allowed to see the folders above.
    child.env(PLAIN_USERS_FILE, file.0.file_name().expect("a name"));
    child.current_dir(env!("CARGO_TARGET_TMPDIR"));
    assert!(child.status().expect("a child").success(), "as a plain user");
}

#[test]
fn memory_beyond_the_limit_is_used_without_being_locked() {
    as_plain_user("memory_beyond_the_limit_is_used_without_being_locked", |file| {
        let open = |options: &str| {
            let target = format!("uring:{file}{options}").parse().expect("a target");
            Device::open(&target, &DeviceOptions::default()).expect("a device")
        };
        let device = open("");
        let mut large = device.allocate(16 << 20).expect("memory");
        let mut queue = queue(&device, &[&large]);
        assert_eq!(pinned_kib(), 0);
        let rest = large.split_off(4096);
        drop((read(&device, &mut queue, large, 20), rest));
        assert_eq!(pinned_kib(), 0, "nor is it tried again and again");
        let small = device.allocate(1 << 20).expect("memory");
        assert!(queue.register(&small), "the limit allows this much");
        let small = read(&device, &mut queue, small, 1);
        assert_eq!(pinned_kib(), 1024);
        let large = device.allocate(16 << 20).expect("memory");
        assert!(!queue.register(&large));
        drop((queue, small));
        let device = open(",fixed=on");
        let timeout = Duration::from_secs(10);
        let options = QueueOptions { depth: 4, timeout, abort_timeout: timeout };
        let refused = device.create_queue::<Buffer>(&options, &[&large]).expect_err("refused");
        assert!(refused.to_string().contains("ulimit -l"), "{refused}");
    });
}

#[test]
fn memory_is_locked_once_when_it_is_registered() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = File::new("asked");
    let device = file.open("uring:FILE");
    let before = pinned_kib();
    let mut queue = queue(&device, &[]);
    let mut buffer = device.allocate(256 << 10).expect("memory");
    let other = buffer.split_off(128 << 10);
    assert!(queue.register(&buffer) && queue.register(&other) && queue.register(&buffer));
    assert_eq!(pinned_kib(), before + 256, "the whole region, once");
    let buffer = read(&device, &mut queue, buffer, 20);
    assert_eq!(pinned_kib(), before + 256);
    drop((buffer, other, queue));
    assert_eq!(pinned_kib(), before);
}
