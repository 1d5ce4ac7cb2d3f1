//! Tests of the ring on this machine's kernel.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::*;
use crate::memory::{allocate_for_host, register_for_host};
use crate::sys::{Backing, HostMemory};

/// Returns a page with unregistered pages of its region around it: the kernel often places a mapping right
/// beside the last one, which makes neighbours of two regions.
fn apart() -> Buffer {
    let mut region = allocate_for_host(3 << 12).expect("memory");
    let mut page = region.split_off(1 << 12);
    drop(page.split_off(1 << 12));
    page
}

#[test]
fn neighbours_are_registered_as_one_and_found_only_as_a_whole() {
    let mut first = allocate_for_host(64 << 10).expect("memory");
    let second = first.split_off(16 << 10);
    let other = apart();
    let registered = Registered::of(&[&second, &other, &first], None);
    assert_eq!((registered.pieces.len(), registered.keep.len()), (2, 2));
    let at = first.pointer(0).as_ptr().addr();
    let index = registered.find(at, 64 << 10).expect("all of it");
    assert_eq!(registered.find(at + 4096, 4096), Some(index));
    assert_eq!(registered.find(at, (64 << 10) + 1), None, "a byte past the end");
    assert_eq!(registered.find(at - 1, 2), None, "a byte before");
    let elsewhere = registered.find(other.pointer(0).as_ptr().addr(), 4096);
    assert!(elsewhere.is_some_and(|elsewhere| elsewhere != index));
}

#[test]
fn buffers_are_registered_each_for_itself_where_asked() {
    let mut first = allocate_for_host(64 << 10).expect("memory");
    let second = first.split_off(16 << 10);
    let registered = Registered::of(&[&first, &second], Some(20 << 10));
    let sizes: Vec<usize> =
        registered.pieces.iter().map(|piece| (piece.end - piece.start) >> 10).collect();
    assert_eq!(sizes, [16, 20, 20, 8]);
    assert_eq!(registered.find(first.as_ptr().addr(), 17 << 10), None, "two of them");
}

#[test]
fn a_kernel_that_refuses_a_ring_is_told_apart_from_one_that_has_none() {
    let told = |errno| refusal("uring:/x", io::Error::from_raw_os_error(errno)).to_string();
    assert!(told(libc::EPERM).contains("kernel.io_uring_disabled=0"));
    assert!(told(libc::ENOSYS).contains("a kernel with io_uring"));
    assert!(told(libc::ENOMEM).contains("ulimit -l"));
    let error = io::Error::from_raw_os_error(libc::ENOMEM);
    let memory = allocate_for_host(8192).expect("memory");
    let refused = memory_refusal("uring:/x", &Registered::of(&[&memory], None), error);
    let text = refused.to_string();
    assert!(text.contains("register 8192 bytes") && text.contains("fixed=off"), "{text}");
}

/// More than 1024, the limit before kernel 5.13; every kernel refuses more than 16384.
#[test]
fn all_memory_is_registered_or_none() {
    let file = std::fs::File::open("/dev/zero").expect("a device");
    let mut all = allocate_for_host(20_000 * 1024).expect("memory");
    let mut pieces: Vec<Buffer> = (0..20_000).rev().map(|at| all.split_off(at * 1024)).collect();
    // With unowned gaps between them.
    pieces.iter_mut().for_each(|piece| drop(piece.split_off(512)));
    let ring = |count: usize| {
        let memory: Vec<&Buffer> = pieces.iter().take(count).collect();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        Ring::<squeue::Entry, cqueue::Entry>::new(&RingOptions { memory: &memory, ..shape(fd) }, 1)
    };
    // Within a user's limit of locked memory, at a page each.
    let some = ring(1200).expect("a ring");
    let is_known = |piece: &Buffer| some.fixed(piece.as_ptr(), 512).is_some();
    assert_eq!(pieces.iter().filter(|piece| is_known(piece)).count(), 1200);
    let refused = ring(20_000).map(drop).expect_err("too many").to_string();
    assert!(refused.contains("20000 pieces") && refused.contains("fixed=off"), "{refused}");
}

#[test]
fn memory_of_which_the_kernel_takes_only_some_is_refused() {
    let file = std::fs::File::open("/dev/zero").expect("a device");
    let mut both = [allocate_for_host(64 << 10), allocate_for_host(64 << 10)].map(Result::unwrap);
    both.sort_by_key(|buffer| buffer.as_ptr().addr());
    let [good, bad] = both;
    let protect = |how: libc::c_int| {
        // SAFETY: the buffer's pages, which nothing looks at while they are out of reach.
        let done = unsafe { libc::mprotect(bad.as_ptr().cast_mut().cast(), bad.len(), how) };
        assert_eq!(done, 0, "whole pages");
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let memory = [&good, &bad];
    let ring = || {
        Ring::<squeue::Entry, cqueue::Entry>::new(&RingOptions { memory: &memory, ..shape(fd) }, 1)
    };
    protect(libc::PROT_NONE);
    let refused = ring().map(drop);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    assert!(refused.is_err() && ring().is_ok(), "{refused:?}");
}

#[test]
fn pages_before_and_behind_huge_ones_are_pieces_of_their_own() {
    let split = |start, end| {
        let pieces = whole_pages(MemoryPiece { start, end });
        pieces.iter().map(|piece| (piece.start, piece.end)).collect::<Vec<_>>()
    };
    let (first, last) = (HUGE, 5 * HUGE);
    let all = [(first - 4096, first), (first, last), (last, last + 8192)];
    assert_eq!(split(first - 4096, last + 8192), all);
    assert_eq!(split(first, last), [(first, last)]);
    assert_eq!(split(first + 4096, first + HUGE), [(first + 4096, first + HUGE)], "none");
}

#[test]
fn a_long_piece_is_cut_into_what_can_be_registered() {
    let long = MemoryPiece { start: 4096, end: 4096 + 2 * PIECE_BYTES_MAX + 5 };
    let pieces: Vec<_> = cut(vec![long], PIECE_BYTES_MAX).collect();
    assert_eq!(pieces.len(), 3);
    assert_eq!((pieces[0].start, pieces[2].end), (long.start, long.end));
    assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
}

/// CPU time of this thread.
fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes its argument.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Creates a ring that reads a byte from a pipe into `memory`: the read ends when the test writes to the
/// other end.
fn reading(
    memory: &Buffer,
) -> (Ring<squeue::Entry, cqueue::Entry>, io::PipeReader, io::PipeWriter) {
    let (pipe, other_end) = io::pipe().expect("a pipe");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&pipe);
    let mut ring = Ring::new(&shape(fd), 1).expect("a ring");
    let read = io_uring::opcode::Read::new(FILE, memory.pointer(0).as_ptr(), 1).build();
    // SAFETY: the tests keep the memory until the read was seen to end.
    unsafe { ring.push(&read) };
    ring.submit();
    (ring, pipe, other_end)
}

fn shape(fd: RawFd) -> RingOptions<'static> {
    let registration = &Registration::Required;
    RingOptions {
        device: "a test",
        fd,
        polled: false,
        memory: &[],
        piece_bytes: None,
        registration,
    }
}

#[test]
fn waiting_sleeps_as_long_as_asked_and_is_woken_by_a_completion() {
    let memory = allocate_for_host(4096).expect("memory");
    let (mut ring, _pipe, mut other_end) = reading(&memory);
    let (start, before) = (Instant::now(), busy());
    let nap = Duration::from_millis(50);
    assert!(ring.wait(nap) && start.elapsed() >= nap, "nothing comes");
    ring.reap(|_, _| panic!("nothing was written"));
    let writer = std::thread::spawn(move || {
        std::thread::sleep(nap);
        io::Write::write_all(&mut other_end, b"x").expect("a reader");
    });
    let mut results = Vec::new();
    while results.is_empty() {
        assert!(ring.wait(Duration::from_secs(30)), "a read is in flight");
        ring.reap(|_, result| results.push(result));
    }
    assert_eq!((results, memory[0]), (vec![1], b'x'));
    assert!((2 * nap..Duration::from_secs(20)).contains(&start.elapsed()), "woken in time");
    assert!(busy() - before < nap, "it slept meanwhile");
    writer.join().expect("the writer");
}

#[test]
fn draining_cancels_what_would_never_end() {
    let memory = allocate_for_host(4096).expect("memory");
    let (mut ring, mut pipe, mut other_end) = reading(&memory);
    let start = Instant::now();
    assert_eq!((ring.drain(), ring.in_kernel), (0, 0));
    assert!(start.elapsed() < DRAIN, "nothing had to be awaited");
    io::Write::write_all(&mut other_end, b"x").expect("a reader");
    let mut byte = [0];
    io::Read::read_exact(&mut pipe, &mut byte).expect("the byte is still there");
    assert_eq!((byte, memory[0]), ([b'x'], 0));
}

#[test]
fn a_ring_that_cannot_be_woken_does_not_sleep() {
    let file = std::fs::File::open("/dev/zero").expect("a device");
    let shape = shape(std::os::fd::AsRawFd::as_raw_fd(&file));
    let mut ring = Ring::<squeue::Entry, cqueue::Entry>::new(&shape, 1).expect("a ring");
    let nop = io_uring::opcode::Nop::new().build();
    // SAFETY: it names no memory.
    unsafe { ring.push(&nop) };
    ring.submit();
    ring.sleeps = false;
    assert!(!ring.wait(Duration::from_secs(30)), "as on a kernel before 5.11");
    assert!(ring.check("nothing").is_ok(), "no operation failed");
    ring.sleeps = true;
    assert!(!ring.wait(Duration::ZERO), "no time to sleep is no reason to enter the kernel");
    assert!(ring.wait(Duration::from_secs(30)));
}

/// A caller can register the same memory twice, or a part of it.
#[test]
fn memory_that_overlaps_registered_memory_is_not_registered_again() {
    let file = std::fs::File::open("/dev/zero").expect("a device");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let mut ring = Ring::<squeue::Entry, cqueue::Entry>::new(&shape(fd), 1).expect("a ring");
    if ring.late.is_none() {
        return;
    }
    let whole = Arc::new(HostMemory::allocate_anywhere(64 << 10, Backing::Any).expect("memory"));
    let view = |from: usize, to: usize| {
        let at = NonNull::new(whole.as_ptr().as_ptr().wrapping_add(from)).expect("an address");
        let owner = Box::new(Arc::clone(&whole));
        // SAFETY: the owner keeps the mapping, of which these are pages; nothing is transferred.
        let memory = unsafe { HostMemory::adopt(at, to - from, None, owner) };
        register_for_host(memory.expect("pages"))
    };
    let middle = view(16 << 10, 32 << 10);
    assert!(ring.register(&middle, "uring:/x"));
    for (from, to) in [(16 << 10, 32 << 10), (0, 20 << 10), (20 << 10, 24 << 10), (0, 64 << 10)] {
        let other = view(from, to);
        assert!(!ring.register(&other, "uring:/x"), "{from}..{to}");
        let region = other.region();
        assert_eq!(ring.fixed_in(other.as_ptr(), 4096, Some(&region)), None, "used unregistered");
    }
    assert!(ring.register(&view(32 << 10, 64 << 10), "uring:/x"), "beside it");
    assert!(ring.fixed_in(middle.as_ptr(), 16 << 10, Some(&middle.region())).is_some());
}
