//! Finding and opening a GPU, and every reason why that fails.
#![allow(unsafe_code)]

use super::{alone, alone_with, open};
use crate::Error;
use crate::cuda::{DeviceMemory, Gpu, PinnedMemory, Priority, Stream, flush_rdma_writes, library};
use std::ptr;

/// Returns the error of opening GPU 0, which must be unavailable.
fn unavailable() -> String {
    let error = Gpu::open(0).expect_err("there is no GPU that will do");
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(Gpu::count().expect_err("nor can they be counted").to_string(), error.to_string());
    error.to_string()
}

#[test]
fn a_machine_without_a_driver_has_no_gpu() {
    alone_with(None, "", || {
        let why = unavailable();
        assert!(why.contains("libcuda.so.1 is not found"), "{why}");
        assert!(why.contains("install NVIDIA's driver"), "{why}");
    });
}

#[test]
fn a_driver_without_a_gpu_says_so() {
    alone("gpus=0", || {
        let why = unavailable();
        assert!(why.contains("CUDA_ERROR_NO_DEVICE") && why.contains("nvidia-smi"), "{why}");
    });
}

#[test]
fn a_driver_that_is_too_old_is_named() {
    alone("driver=12020", || {
        let why = unavailable();
        assert!(why.contains("CUDA 12.2") && why.contains("install driver 550 or newer"), "{why}");
    });
}

#[test]
fn a_library_and_a_module_of_different_versions_are_named() {
    alone("fail=cuInit:803", || {
        let why = unavailable();
        assert!(why.contains("reboot"), "{why}");
    });
}

#[test]
fn a_gpu_that_another_has_for_itself_is_told_by_name() {
    alone("fail=cuDevicePrimaryCtxRetain:46:1", || {
        let error = Gpu::open(0).expect_err("the context is refused once");
        let Error::Cuda { call, name, code, fix, .. } = error else { panic!("{error}") };
        assert_eq!(
            (call, name.as_str()),
            ("cuDevicePrimaryCtxRetain", "CUDA_ERROR_DEVICE_UNAVAILABLE")
        );
        assert_eq!(code, 46);
        assert!(fix.contains("another process"), "{fix}");
        drop(open());
    });
}

#[test]
fn what_is_refused_while_a_gpu_is_opened_leaves_nothing() {
    alone("", || {
        for call in [
            "cuStreamCreateWithPriority",
            "cuMemHostAlloc",
            "cuDeviceGetName",
            "cuDeviceGetAttribute",
        ] {
            adit_gpu_emulated::set(&format!("fail={call}:2:1"));
            let error = Gpu::open(0).expect_err("a call of its opening fails");
            assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
            assert_eq!(adit_gpu_emulated::report().contexts, 0, "{call}");
        }
        adit_gpu_emulated::set("");
    });
}

#[test]
fn a_gpu_that_is_not_there_is_a_mistake_of_the_caller() {
    alone("gpus=2", || {
        assert_eq!(Gpu::count().expect("there are some"), 2);
        assert_eq!(Gpu::open(1).expect("the second is there").info().ordinal, 1);
        let error = Gpu::open(2).expect_err("there is no third");
        assert!(error.is_usage() && error.to_string().contains("there are 2"), "{error}");
    });
}

#[test]
fn a_gpu_says_what_it_is() {
    alone("sms=114,ordering=100,memory=1073741824", || {
        let gpu = open();
        let info = gpu.info();
        assert_eq!((info.sm_count, info.memory_bytes, info.driver_version), (114, 1 << 30, 13000));
        assert_eq!(info.compute_capability, (9, 0));
        assert!(!info.name.is_empty());
        let parts: Vec<usize> = info.pci_address.split([':', '.']).map(str::len).collect();
        assert_eq!(parts, [4, 2, 2, 1], "{}", info.pci_address);
        let attributes = &info.attributes;
        assert_eq!(attributes.rdma_writes_ordering, 100);
        assert!(
            attributes.unified_addressing && attributes.can_map_host_memory && attributes.dma_buf
        );
        assert!(!attributes.host_page_tables && !attributes.integrated);
    });
}

#[test]
fn a_driver_before_13_3_does_not_know_whether_a_dma_buf_can_be_mapped() {
    alone("driver=13000", || assert_eq!(open().info().attributes.dma_buf_mmap, None));
}

#[test]
fn a_driver_from_13_3_on_knows_whether_a_dma_buf_can_be_mapped() {
    alone("driver=13030,dma-buf-mmap=on", || {
        assert_eq!(open().info().attributes.dma_buf_mmap, Some(true))
    });
}

#[test]
fn a_coherent_platform_is_known_by_its_page_tables() {
    alone("coherent", || {
        let gpu = open();
        assert!(
            gpu.info().attributes.pageable_memory_access && gpu.info().attributes.host_page_tables
        );
    });
}

#[test]
fn a_threads_own_context_is_current_again_after_a_call() {
    alone("gpus=2", || {
        let current = || {
            let mut context = ptr::null_mut();
            let cuda = library::cuda().expect("there is a driver");
            // SAFETY: it writes one handle.
            unsafe { (cuda.cuCtxGetCurrent)(&mut context) };
            context as usize
        };
        assert_eq!(current(), 0);
        let (first, second) = (open(), Gpu::open(1).expect("the second is there"));
        let memory = DeviceMemory::allocate(&first, 4096).expect("there is memory");
        assert_eq!(current(), 0);
        let bound = first.bind().expect("it can be made current");
        let outer = current();
        assert_ne!(outer, 0);
        let stream = Stream::new(&second, Priority::Normal).expect("a stream can be made");
        drop(stream);
        assert_eq!(current(), outer);
        drop(bound);
        assert_eq!(current(), 0);
        drop(memory);
    });
}

#[test]
fn a_gpu_stays_open_while_anything_of_it_is_left() {
    alone("", || {
        let gpu = open();
        let memory = PinnedMemory::allocate(&gpu, 4096).expect("there is memory");
        drop(gpu);
        assert_eq!(adit_gpu_emulated::report().contexts, 1);
        drop(memory);
        assert_eq!(adit_gpu_emulated::report().contexts, 0);
    });
}

#[test]
fn writes_of_pcie_devices_can_be_flushed() {
    alone("", || flush_rdma_writes(&open()).expect("the emulated driver can"));
}

#[test]
fn a_gpu_that_is_open_is_shared_and_nothing_is_allocated_for_it_again() {
    alone("gpus=2", || {
        let (gpu, other) = (open(), Gpu::open(1).expect("there are two"));
        let before = adit_gpu_emulated::report();
        let again = [Gpu::open(0), Gpu::open(1)].map(|gpu| gpu.expect("it is open"));
        assert!(
            std::sync::Arc::ptr_eq(&again[0], &gpu) && std::sync::Arc::ptr_eq(&again[1], &other)
        );
        assert_eq!(adit_gpu_emulated::report().host_allocations, before.host_allocations);
        drop((gpu, again));
        assert_eq!(open().info().ordinal, 0);
    });
}
