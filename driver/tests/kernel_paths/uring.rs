//! io_uring queues only: many requests in flight, moves between threads, drops with requests in flight.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Device, DeviceOptions};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::rig::{TestFile, carry_out, next, queue};

/// Late kernel writes would show in the memory's next use: reads of ones, none of which may arrive.
#[test]
fn a_queue_dropped_with_reads_in_flight_leaves_its_memory_alone() {
    for path in ["uring:FILE", "uring:FILE,fixed=off", "uring:FILE,direct=off,fixed=off"] {
        let file = TestFile::new();
        std::fs::write(file.path(), vec![0xff; 1 << 20]).expect("a file");
        let device = file.open(path, 1 << 20);
        for _ in 0..5 {
            forget_cached(file.path());
            let mut all = device.allocate(1 << 20).expect("memory");
            let mut queue = queue(&device, 16, &[&all]);
            for index in (0..16u64).rev() {
                let buffer = all.split_off(index as usize * (64 << 10));
                let lbas = (64 << 10) / u64::from(device.info().lba_bytes);
                let request = Request { operation: Operation::Read(Lba(index * lbas)), buffer };
                queue.post(device.now(), request).expect("room");
                // The last few are never submitted to the kernel.
                if index > 3 {
                    queue.ring();
                }
            }
            drop((queue, all));
            let fresh = device.allocate(1 << 20).expect("memory");
            std::thread::sleep(Duration::from_millis(5));
            assert!(fresh.iter().all(|byte| *byte == 0), "{path}: it was written to");
        }
    }
}

/// Makes the next read of a file come from its disk.
fn forget_cached(path: &Path) {
    let file = File::open(path).expect("the file");
    file.sync_all().expect("writing it back");
    let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    posix_fadvise(&file, 0, 0, advice).expect("advice about a file");
}

#[test]
fn a_queue_belongs_to_the_thread_that_first_rings_it() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let buffer = device.allocate(4096).expect("memory");
    let mut queue = queue(&device, 4, &[&buffer]);
    let there = device.clone();
    let worker = std::thread::spawn(move || {
        let read = carry_out(&there, &mut queue, Operation::Read(Lba(0)), buffer);
        assert_eq!(read.result, Ok(0));
        queue
    });
    // Returned idle, it can be dropped here.
    drop(worker.join().expect("the worker"));
}

/// Only its own thread could wait for requests in flight, so the memory is leaked and stays unchanged.
#[test]
fn a_queue_in_use_that_another_thread_drops_keeps_its_memory_from_everyone() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let mut all = device.allocate(64 << 10).expect("memory");
    let rest = all.split_off(4096);
    let mut queue = queue(&device, 4, &[&all, &rest]);
    let there = device.clone();
    let worker = std::thread::spawn(move || {
        let request = Request { operation: Operation::Read(Lba(0)), buffer: all };
        queue.post(there.now(), request).expect("room");
        queue.ring();
        queue
    });
    drop(worker.join().expect("the worker"));
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn a_queue_that_changes_its_thread_says_so() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let buffer = device.allocate(4096).expect("memory");
    let mut queue = queue(&device, 4, &[]);
    let there = device.clone();
    let worker = std::thread::spawn(move || {
        let read = carry_out(&there, &mut queue, Operation::Read(Lba(0)), buffer);
        (queue, read.buffer)
    });
    let (mut queue, buffer) = worker.join().expect("the worker");
    queue.check().expect("nothing is wrong yet");
    queue.post(device.now(), Request { operation: Operation::Read(Lba(0)), buffer }).expect("room");
    queue.ring();
    // Kernels before 6.1 accept it.
    match queue.check() {
        Err(error) => assert!(error.to_string().contains("second thread"), "{error}"),
        Ok(()) => assert_eq!(next(&device, &mut queue).result, Ok(0)),
    }
}

#[test]
fn buffers_of_more_pieces_than_fit_at_once_are_all_written() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 4 << 20);
    let lba = u64::from(device.info().lba_bytes);
    let mut queue = queue::<(Vec<Buffer>, u64)>(&device, 8, &[]);
    for index in 0..6u64 {
        let mut all = device.allocate(400 * 512).expect("memory");
        all.fill(index as u8 + 1);
        let mut pieces: Vec<Buffer> = (0..400).rev().map(|at| all.split_off(at * 512)).collect();
        pieces.reverse();
        let at = Lba(index * 400 * 512 / lba);
        let request = Request { operation: Operation::Write(at), buffer: (pieces, index) };
        queue.post(device.now(), request).expect("room, by telling the kernel of the first");
    }
    queue.ring();
    let mut seen = 0;
    while seen < 6 {
        seen += queue.poll(device.now(), |completion| assert_eq!(completion.result, Ok(0)));
    }
    let content = std::fs::read(file.path()).expect("the file");
    for (index, part) in content.chunks(400 * 512).take(6).enumerate() {
        assert!(part.iter().all(|byte| usize::from(*byte) == index + 1), "part {index}");
    }
}

#[test]
fn polling_is_refused_with_the_reason_where_it_cannot_be() {
    let file = TestFile::new();
    std::fs::write(file.path(), vec![0u8; 1 << 16]).expect("a file");
    let open = |path: &str| Device::open(&file.target(path), &DeviceOptions::default());
    let refused = open("uring:FILE,polled=on").expect_err("a file").to_string();
    assert!(refused.contains("block device") && refused.contains("polled=off"), "{refused}");
    let cached = open("uring:FILE,polled=on,direct=off").expect_err("cached").to_string();
    assert!(cached.contains("direct=on"), "{cached}");
    assert!(open("uring:FILE,polled=off").is_ok());
}

#[test]
fn what_was_not_rung_is_not_done() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let mut buffer = device.allocate(4096).expect("memory");
    buffer.fill(9);
    let mut queue = queue(&device, 4, &[]);
    queue
        .post(device.now(), Request { operation: Operation::Write(Lba(0)), buffer })
        .expect("room");
    assert_eq!(queue.poll(device.now(), |_| ()), 0);
    assert!(std::fs::read(file.path()).expect("the file")[..4096].iter().all(|byte| *byte == 0));
    queue.ring();
    assert_eq!(next(&device, &mut queue).result, Ok(0));
}

#[test]
fn waiting_is_for_what_the_kernel_was_told_of() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let mut queue = queue(&device, 4, &[]);
    let (long, start) = (Duration::from_secs(20), Instant::now());
    assert!(!queue.wait(long), "nothing is in flight");
    let buffer = device.allocate(1 << 20).expect("memory");
    let request = Request { operation: Operation::Write(Lba(0)), buffer };
    queue.post(device.now(), request).expect("room");
    assert!(!queue.wait(long), "the kernel does not know of it");
    queue.ring();
    while queue.poll(device.now(), |completion| assert_eq!(completion.result, Ok(0))) == 0 {
        assert!(queue.wait(long), "it is in flight");
    }
    assert!(!queue.wait(long), "nothing is in flight any more");
    assert!(start.elapsed() < long, "its end wakes who waits");
}

#[test]
fn a_flush_owns_as_many_pieces_as_one_likes() {
    let file = TestFile::new();
    let device = file.open("uring:FILE", 1 << 20);
    let mut all = device.allocate(1100 * 16).expect("memory");
    let pieces: Vec<Buffer> = (0..1100).rev().map(|at| all.split_off(at * 16)).collect();
    let mut queue = queue(&device, 4, &[]);
    let request = Request { operation: Operation::Flush, buffer: pieces };
    assert!(queue.post(device.now(), request).is_ok(), "room");
    queue.ring();
    let flushed = next(&device, &mut queue);
    assert_eq!((flushed.result, flushed.buffer.len()), (Ok(0), 1100));
}

/// The kernel would keep writing to the pages that it registered for an address.
#[test]
fn memory_that_comes_to_lie_where_other_memory_was_gets_its_own_bytes() {
    // More than what is kept for reuse when freed.
    const BYTES: usize = 1 << 20;
    let file = TestFile::new();
    let bytes: Vec<u8> = (0..4 << 20).map(|at: usize| (at / BYTES) as u8 + 1).collect();
    std::fs::write(file.path(), bytes).expect("a file");
    for path in ["uring:FILE", "uring:FILE,direct=off"] {
        let device = file.open(path, 4 << 20);
        let lbas = BYTES as u64 / u64::from(device.info().lba_bytes);
        let mut queue = queue(&device, 4, &[]);
        let mut places = std::collections::HashSet::new();
        for round in 0..40u64 {
            let mut buffer = device.allocate(BYTES).expect("memory");
            places.insert(buffer.as_ptr().addr());
            for time in 0..6 {
                let which = (round + time) % 4;
                let read = Operation::Read(Lba(which * lbas));
                let completion = carry_out(&device, &mut queue, read, buffer);
                assert_eq!(completion.result, Ok(0));
                buffer = completion.buffer;
                let is_right = |byte: &u8| u64::from(*byte) == which + 1;
                assert!(
                    buffer.iter().step_by(61).all(is_right),
                    "{path}: round {round}, time {time}"
                );
            }
        }
        assert!(places.len() < 40, "places are used again");
    }
}
