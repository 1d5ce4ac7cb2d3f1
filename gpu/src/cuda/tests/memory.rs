//! GPU memory and pinned memory: allocation, use, refusal, release.

use super::{alone, open};
use crate::Error;
use crate::cuda::{DeviceMemory, PinnedMemory};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

const GRANULE_BYTES: u64 = 2 << 20;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

#[test]
fn memory_keeps_what_is_written_to_it() {
    alone("", || {
        let gpu = open();
        let plain = DeviceMemory::allocate(&gpu, 1 << 20).expect("there is memory");
        let granules = DeviceMemory::exportable(&gpu, 1 << 20).expect("there is memory");
        // More than the copy buffer holds, at an odd place.
        let written = pattern((600 << 10) + 7);
        for memory in [plain, granules] {
            memory.zero().expect("it can be zeroed");
            memory.write(13, &written).expect("it fits");
            let mut read = vec![1; written.len() + 20];
            memory.read(0, &mut read).expect("it is inside");
            assert_eq!(read[..13], [0; 13]);
            assert!(read[13..13 + written.len()] == written);
            assert_eq!(read[13 + written.len()..], [0; 7]);
        }
    });
}

#[test]
fn nothing_is_read_or_written_outside_memory() {
    alone("", || {
        let memory = DeviceMemory::allocate(&open(), 4096).expect("there is memory");
        for offset in [4096, 4093, u64::MAX] {
            let error = memory.write(offset, &[0; 4]).expect_err("it does not fit");
            assert!(
                error.is_usage() && error.to_string().contains("the memory has 4096"),
                "{error}"
            );
            assert!(memory.read(offset, &mut [0; 4]).expect_err("nor can it be read").is_usage());
        }
        memory.write(4092, &[0; 4]).expect("the last word is inside");
        memory.write(4096, &[]).expect("nothing fits anywhere");
    });
}

#[test]
fn no_memory_is_a_mistake() {
    alone("", || {
        let gpu = open();
        assert!(DeviceMemory::allocate(&gpu, 0).expect_err("nothing").is_usage());
        assert!(DeviceMemory::exportable(&gpu, 0).expect_err("nothing").is_usage());
        assert!(PinnedMemory::allocate(&gpu, 0).expect_err("nothing").is_usage());
        assert!(DeviceMemory::exportable(&gpu, u64::MAX).expect_err("too much").is_usage());
    });
}

#[test]
fn memory_beyond_the_gpus_is_refused_by_name() {
    alone("memory=8388608", || {
        let gpu = open();
        let held = DeviceMemory::exportable(&gpu, 6 << 20).expect("there is so much");
        for ask in [DeviceMemory::allocate, DeviceMemory::exportable] {
            let error = ask(&gpu, 4 << 20).expect_err("there is not so much left");
            let Error::Cuda { name, fix, .. } = error else { panic!("{error}") };
            assert_eq!(name, "CUDA_ERROR_OUT_OF_MEMORY");
            assert!(fix.contains("ask for less"), "{fix}");
        }
        drop(held);
        DeviceMemory::allocate(&gpu, 4 << 20).expect("what was held is free again");
    });
}

#[test]
fn exportable_memory_is_whole_granules() {
    alone("", || {
        let memory = DeviceMemory::exportable(&open(), GRANULE_BYTES + 1).expect("there is memory");
        assert_eq!(memory.bytes(), 2 * GRANULE_BYTES);
        assert_eq!(memory.address() % GRANULE_BYTES, 0);
        let file = memory.dma_buf().expect("it can be exported");
        assert!(file.as_raw_fd() >= 0);
    });
}

#[test]
fn a_step_of_making_granules_that_fails_leaves_nothing() {
    alone("", || {
        let gpu = open();
        for call in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
            adit_gpu_emulated::set(&format!("fail={call}:2:1"));
            DeviceMemory::exportable(&gpu, 1).expect_err("a step fails");
            let report = adit_gpu_emulated::report();
            assert_eq!(
                (report.physicals, report.mappings, report.virtual_ranges),
                (0, 0, 0),
                "{call}"
            );
        }
        adit_gpu_emulated::set("fail=cuPointerSetAttribute:1:1");
        DeviceMemory::allocate(&gpu, 1).expect_err("its last step fails");
        assert_eq!(adit_gpu_emulated::report().allocations, 0);
        adit_gpu_emulated::set("fail=cuMemHostGetDevicePointer_v2:1:1");
        PinnedMemory::allocate(&gpu, 1).expect_err("its last step fails");
        adit_gpu_emulated::set("");
    });
}

#[test]
fn a_gpu_whose_granules_pcie_devices_cannot_reach_says_so() {
    alone("no-vmm", || {
        let error = DeviceMemory::exportable(&open(), 1).expect_err("it has none");
        assert!(error.is_unavailable() && error.to_string().contains("attribute 110"), "{error}");
    });
}

#[test]
fn a_gpu_without_dma_bufs_says_so() {
    alone("no-dma-buf", || {
        let memory = DeviceMemory::exportable(&open(), 1).expect("there is memory");
        let error = memory.dma_buf().expect_err("it cannot be exported");
        assert!(error.is_unavailable() && error.to_string().contains("attribute 124"), "{error}");
    });
}

#[test]
fn a_copy_that_fails_is_told() {
    alone("", || {
        let memory = DeviceMemory::allocate(&open(), 4096).expect("there is memory");
        adit_gpu_emulated::set("fail=cuMemcpyAsync:700:1");
        let error = memory.write(0, &[1]).expect_err("the copy fails");
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        adit_gpu_emulated::set("");
    });
}

#[test]
fn pinned_memory_is_zeroed_and_shared_word_by_word() {
    alone("", || {
        let memory = PinnedMemory::allocate(&open(), 4098).expect("there is memory");
        assert_eq!((memory.words().len(), memory.bytes()), (1024, 4098));
        assert!(memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(memory.words().as_ptr().cast(), memory.host().as_ptr().cast_const());
        assert_ne!(memory.address(), 0);
    });
}

#[test]
fn copies_of_memory_that_devices_reach_are_ordered() {
    alone("fail=cuPointerSetAttribute:1", || {
        let error = DeviceMemory::exportable(&open(), 4096).expect_err("as arranged").to_string();
        assert!(error.contains("cuPointerSetAttribute"), "{error}");
        assert_eq!(adit_gpu_emulated::report().physicals, 0);
    });
}
