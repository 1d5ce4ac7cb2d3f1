//! The GPU in two parts, and reasons against it.

use super::{alone, alone_with, open};
use crate::cuda::{Partition, PartitionKind, PinnedMemory, Priority};
use adit_gpu_emulated::Installation;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns why a partition of `sms` multiprocessors has only priorities.
fn why(sms: u32) -> String {
    let parts = open().partition(sms);
    let PartitionKind::Priority { why } = &parts.kind else { panic!("{parts:?}") };
    works(&parts.io);
    works(&parts.compute);
    assert_eq!(parts.compute.sms(), 132);
    why.clone()
}

/// Checks that streams of a part do their work.
fn works(part: &Partition) {
    let words = PinnedMemory::allocate(&open(), 64).expect("there is memory");
    for priority in [Priority::High, Priority::Normal, Priority::Low] {
        let stream = part.stream(priority).expect("a stream can be made");
        stream.write32(words.address(), 1).expect("it is enqueued");
        stream.synchronize(Duration::from_secs(20)).expect("it is done");
        assert_eq!(words.words()[0].swap(0, Ordering::Acquire), 1);
    }
}

#[test]
fn green_contexts_set_multiprocessors_apart() {
    alone("", || {
        let parts = open().partition(8);
        assert_eq!(parts.kind, PartitionKind::Green);
        assert_eq!((parts.io.sms(), parts.compute.sms()), (8, 124));
        works(&parts.io);
        works(&parts.compute);
        assert_eq!(adit_gpu_emulated::report().green_contexts, 2);
    });
}

#[test]
fn a_part_lives_while_a_stream_of_it_does() {
    alone("", || {
        let stream = open().partition(8).io.stream(Priority::High).expect("a stream can be made");
        assert_eq!(adit_gpu_emulated::report().green_contexts, 1);
        stream.synchronize(Duration::from_secs(20)).expect("it has nothing to do");
    });
}

#[test]
fn fewer_multiprocessors_than_the_usual_groups_have_are_set_apart_too() {
    alone("", || {
        let parts = open().partition(2);
        assert_eq!(parts.kind, PartitionKind::Green);
        assert_eq!((parts.io.sms(), parts.compute.sms()), (2, 130));
    });
}

#[test]
fn a_driver_without_green_contexts_leaves_priorities() {
    alone_with(Some(Installation::OldDriver), "", || {
        let why = why(8);
        assert!(why.contains("the driver has no cuGreenCtxStreamCreate"), "{why}");
    });
}

#[test]
fn a_gpu_without_green_contexts_leaves_priorities() {
    alone("no-green", || {
        let why = why(8);
        assert!(why.contains("cuDeviceGetDevResource says CUDA_ERROR_NOT_SUPPORTED"), "{why}");
    });
}

#[test]
fn a_part_of_everything_or_nothing_is_none() {
    alone("", || {
        for sms in [0, 132, 1000] {
            let why = why(sms);
            assert!(why.contains("leave one part empty"), "{why}");
        }
    });
}

#[test]
fn whatever_step_fails_priorities_are_left_and_nothing_leaks() {
    alone("", || {
        let gpu = open();
        for call in [
            "cuDeviceGetDevResource",
            "cuDevSmResourceSplitByCount",
            "cuDevResourceGenerateDesc",
            "cuGreenCtxCreate",
        ] {
            adit_gpu_emulated::set(&format!("fail={call}:2"));
            let why = why(8);
            assert!(why.contains(call), "{why}");
            adit_gpu_emulated::set(&format!("fail={call}:2:2"));
            drop(gpu.partition(8));
            assert_eq!(adit_gpu_emulated::report().green_contexts, 0, "{call}");
        }
        adit_gpu_emulated::set("");
    });
}
