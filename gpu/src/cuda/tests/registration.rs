//! Foreign memory, and registers, made accessible to the GPU.
#![allow(unsafe_code)]

use super::{alone, alone_without_a_report, open};
use crate::cuda::Priority;
use crate::cuda::{Gpu, Registration, Stream};
use crate::{Error, Result};
use memory::Pages;
use std::sync::Arc;
use std::time::Duration;

/// Untouched pages.
mod memory {
    use std::ptr::{self, NonNull};

    pub(super) const BYTES: usize = 8192;

    pub(super) struct Pages(pub(super) NonNull<u8>);

    // SAFETY: it is an address.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    impl Pages {
        pub(super) fn new() -> Pages {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new pages, anywhere.
            let at = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Pages(NonNull::new(at.cast()).expect("pages are not at 0"))
        }

        pub(super) fn word(&self, index: usize) -> u32 {
            // SAFETY: a word of the pages, which only the GPU writes.
            unsafe { self.0.cast::<u32>().add(index).read_volatile() }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            assert_eq!(
                adit_gpu_emulated::report().registrations,
                0,
                "pages went before their registration"
            );
            // SAFETY: the pages are ours.
            unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
        }
    }
}

fn register_io(gpu: &Arc<Gpu>, pages: &Arc<Pages>) -> Result<Registration> {
    // SAFETY: whole pages, which stay with the registration.
    unsafe { Registration::io(gpu, pages.0, memory::BYTES, Box::new(pages.clone())) }
}

#[test]
fn the_gpu_writes_registered_memory() {
    alone("", || {
        let gpu = open();
        let pages = Arc::new(Pages::new());
        // SAFETY: the pages stay with the registration.
        let registered =
            unsafe { Registration::memory(&gpu, pages.0, memory::BYTES, Box::new(pages.clone())) };
        let registered = registered.expect("memory can be registered");
        let stream = Stream::new(&gpu, Priority::Normal).expect("a stream can be made");
        stream.write32(registered.address() + 4, 77).expect("it is enqueued");
        stream.synchronize(Duration::from_secs(10)).expect("it is done");
        assert_eq!(pages.word(1), 77);
    });
}

#[test]
fn a_registration_ends_before_its_owner_goes() {
    alone("", || {
        let registration = register_io(&open(), &Arc::new(Pages::new())).expect("it is allowed");
        assert_eq!(adit_gpu_emulated::report().registrations, 1);
        drop(registration);
    });
}

#[test]
fn memory_that_the_gpu_does_not_give_up_keeps_its_owner() {
    alone_without_a_report("", || {
        let (gpu, pages) = (open(), Arc::new(Pages::new()));
        let registration = register_io(&gpu, &pages).expect("it is allowed");
        adit_gpu_emulated::set("fail=cuMemHostUnregister:1:1");
        drop(registration);
        adit_gpu_emulated::set("");
        assert_eq!(adit_gpu_emulated::report().registrations, 1);
        assert_eq!(Arc::strong_count(&pages), 2, "the GPU still reaches the pages");
    });
}

#[test]
fn registers_are_touched_before_the_driver_looks_for_their_pages() {
    alone("io-register=needs-touch", || {
        register_io(&open(), &Arc::new(Pages::new())).expect("their pages are there");
    });
}

#[test]
fn a_page_that_went_again_is_touched_once_more() {
    alone("", || {
        let gpu = open();
        adit_gpu_emulated::set("fail=cuMemHostRegister_v2:1:1");
        register_io(&gpu, &Arc::new(Pages::new())).expect("the second time it is there");
        adit_gpu_emulated::set("");
    });
}

#[test]
fn registers_without_the_right_to_them_name_what_gives_it() {
    alone("io-register=not-permitted", || {
        let error = register_io(&open(), &Arc::new(Pages::new())).expect_err("it is not allowed");
        let Error::Refused { fix, .. } = &error else { panic!("{error}") };
        assert!(fix.contains("CAP_SYS_ADMIN") && fix.contains("PeerMappingOverride=1"), "{fix}");
    });
}

#[test]
fn registers_that_the_driver_does_not_take_are_told() {
    alone("", || {
        let gpu = open();
        adit_gpu_emulated::set("fail=cuMemHostRegister_v2:1");
        let error = register_io(&gpu, &Arc::new(Pages::new())).expect_err("it does not work");
        assert!(error.to_string().contains("a thread rings the doorbells"), "{error}");
        adit_gpu_emulated::set("");
    });
}

#[test]
fn parts_of_pages_are_no_registers() {
    alone("", || {
        let gpu = open();
        let pages = Arc::new(Pages::new());
        // SAFETY: inside the pages, which stay.
        let half = unsafe { Registration::io(&gpu, pages.0, 2048, Box::new(pages.clone())) };
        assert!(half.expect_err("half a page").is_usage());
        // SAFETY: as above.
        let odd = unsafe { Registration::io(&gpu, pages.0.add(64), 4096, Box::new(pages.clone())) };
        assert!(odd.expect_err("beginning within a page").is_usage());
    });
}

#[test]
fn memory_that_cannot_be_registered_is_told() {
    alone("host-register=refused", || {
        let pages = Arc::new(Pages::new());
        // SAFETY: the pages stay with the registration.
        let refused = unsafe {
            Registration::memory(&open(), pages.0, memory::BYTES, Box::new(pages.clone()))
        };
        assert!(refused.expect_err("this GPU cannot").is_unavailable());
    });
}
