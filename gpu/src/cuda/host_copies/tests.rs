use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use memmap2::MmapMut;

use super::*;
use crate::cuda::PinnedMemory;
use crate::cuda::tests::{alone, alone_without_a_report, open};

const TIMEOUT: Duration = Duration::from_secs(60);

fn copies(bytes: u64) -> HostCopies {
    HostCopies::new(&open(), bytes, TIMEOUT).expect("there is memory")
}

/// Maps pages of their own, as drives' memory lies.
fn pages(count: usize) -> MmapMut {
    let mut memory = MmapMut::map_anon(count * PAGE_BYTES).expect("there is memory");
    let pattern = (0..memory.len()).map(|index| (index % 251) as u8);
    memory.iter_mut().zip(pattern).for_each(|(byte, value)| *byte = value);
    memory
}

fn registrations() -> u64 {
    adit_gpu_emulated::report().registrations
}

#[test]
fn bytes_arrive_where_they_are_sent() {
    alone("", || {
        let (mut copies, mut host) = (copies(4 << 20), pages(100));
        let sent = host[3..70_000].to_vec();
        copies.write(13, &host[3..70_000]).expect("it fits");
        host.fill(0);
        copies.read(12, &mut host[1..70_001]).expect("it fits");
        assert_eq!((host[0], host[1]), (0, 0), "memory of the GPU begins zeroed");
        assert!(host[2..69_999] == sent && host[70_001..].iter().all(|byte| *byte == 0));
        copies.write_once(0, &sent).expect("it fits");
        let mut back = vec![0; sent.len()];
        copies.read_once(0, &mut back).expect("it fits");
        assert!(back == sent);
        assert_eq!((registrations(), copies.bytes()), (1, 4 << 20), "once, and not for these");
        assert_ne!(copies.address(), 0);
        drop(copies);
        assert_eq!(registrations(), 0);
    });
}

#[test]
fn memory_is_registered_once_and_anew_when_a_copy_goes_beyond() {
    alone("", || {
        let (mut copies, mut host) = (copies(4 << 20), pages(100));
        for end in [10, 60, 61, 100] {
            copies.write(0, &host[..end * PAGE_BYTES - 1]).expect("it fits");
            copies.read(0, &mut host[PAGE_BYTES..9 * PAGE_BYTES]).expect("a part");
            assert_eq!(registrations(), 1, "{end} pages");
            assert_eq!(copies.registered[0].0.len(), end * PAGE_BYTES);
        }
    });
}

#[test]
fn memory_that_shares_a_page_is_registered_together() {
    alone("", || {
        let (mut copies, host) = (copies(4 << 20), pages(100));
        let part = 5 * PAGE_BYTES / 2;
        for index in [0, 2, 1, 3, 8] {
            let written = &host[index * part..(index + 1) * part];
            copies.write((index * part) as u64, written).expect("it fits");
        }
        // Parts 0 and 1 meet in page 2, 2 and 3 in page 7; 1 ends where 2 begins.
        assert_eq!(registrations(), 3);
        let mut back = vec![0; 4 * part];
        copies.read_once(0, &mut back).expect("it fits");
        assert!(back == host[..4 * part]);
    });
}

#[test]
fn the_oldest_registration_makes_room() {
    alone("", || {
        let (mut copies, host) = (copies(4096), pages(2 * (REGISTERED_MAX + 2)));
        for index in 0..REGISTERED_MAX + 2 {
            copies.write(0, &host[2 * index * PAGE_BYTES..][..8]).expect("it fits");
        }
        assert_eq!(registrations(), REGISTERED_MAX as u64);
        assert_eq!(copies.registered[0].0, pages_of(&host[4 * PAGE_BYTES..][..1]));
        copies.write(0, &host[..8]).expect("it is registered again");
    });
}

#[test]
fn copies_outside_its_memory_are_refused() {
    alone("", || {
        let (mut copies, mut host) = (copies(4096), pages(2));
        for at in [4093, 4096, u64::MAX] {
            assert!(copies.write(at, &host[..4]).expect_err("it does not fit").is_usage());
            assert!(copies.read(at, &mut host[..4]).expect_err("nor this").is_usage());
        }
        assert_eq!(registrations(), 0, "before it is registered");
        copies.write(4096, &[]).expect("nothing fits anywhere");
        let none = HostCopies::new(&open(), 0, TIMEOUT).expect_err("nothing");
        assert!(none.is_usage(), "{none}");
    });
}

#[test]
fn a_gpu_without_room_says_so() {
    alone("memory=16777216", || {
        let error = HostCopies::new(&open(), 32 << 20, TIMEOUT).expect_err("it is too much");
        let text = error.to_string();
        assert!(text.contains("33554432") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
    });
}

#[test]
fn what_the_driver_refuses_is_an_error() {
    alone("", || {
        let (mut copies, host) = (copies(4096), pages(1));
        adit_gpu_emulated::set("host-register=refused");
        assert!(copies.write(0, &host[..8]).expect_err("it is refused").is_unavailable());
        adit_gpu_emulated::set("fail=cuMemcpyAsync:719:1");
        let error = copies.write(0, &host[..8]).expect_err("the copy fails").to_string();
        assert!(error.contains("cuMemcpyAsync"), "{error}");
        copies.write(0, &host[..8]).expect("the next one works");
        adit_gpu_emulated::set("");
    });
}

/// Set in the process that is aborted.
const STUCK: &str = "ADIT_TEST_STUCK";

#[test]
fn a_copy_that_does_not_end_takes_the_process_with_it() {
    const NAME: &str =
        "cuda::host_copies::tests::a_copy_that_does_not_end_takes_the_process_with_it";
    if std::env::var_os(STUCK).is_some() {
        alone_without_a_report("", || {
            let (mut copies, mut host) = (copies(4096), pages(1));
            copies.timeout = Duration::from_millis(50);
            let word = PinnedMemory::allocate(&open(), 4).expect("there is memory");
            copies.stream.wait32_at_least(word.address(), 1, false).expect("it is enqueued");
            let _ = copies.read(0, &mut host);
        });
        return;
    }
    let program = std::env::current_exe().expect("a test is a program");
    let mut command = Command::new(program);
    command.args(["--exact", NAME, "--test-threads=1"]);
    command.env(STUCK, "1").env("ADIT_TEST_ALONE", "1");
    let status = command.output().expect("a test can be started again").status;
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}
