//! Releases beside an endless kernel.
#![allow(unsafe_code)]

use super::{alone_without_a_report, open};
use crate::cuda::program::Program;
use crate::cuda::{DeviceMemory, Endless, Gpu, PinnedMemory, Registration, Runner};
use adit_gpu_emulated::report;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Reports its drop.
struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn nothing_is_given_back_beside_a_kernel_that_does_not_end() {
    alone_without_a_report("", || {
        let gpu = open();
        let make = || {
            let plain = DeviceMemory::allocate(&gpu, 4096).expect("there is memory");
            let granules = DeviceMemory::exportable(&gpu, 4096).expect("there is memory");
            let pinned = PinnedMemory::allocate(&gpu, 4096).expect("there is memory");
            let program = Program::load(&gpu).expect("it compiles");
            let words = Box::leak(Box::new([0u32; 1024]));
            let gone = Arc::new(AtomicBool::new(false));
            let owner = Box::new(Owner(Arc::clone(&gone)));
            // SAFETY: the words stay forever.
            let registered =
                unsafe { Registration::memory(&gpu, NonNull::from(words).cast(), 4096, owner) };
            (gone, (plain, granules, pinned, program, registered.expect("it can be registered")))
        };
        let live = || {
            let now = report();
            let memory = (now.allocations, now.mappings, now.host_allocations);
            (memory, now.modules, now.registrations, now.frees_behind_kernels)
        };
        let (gone, left) = make();
        let before = live();
        let begin = |runner| Endless::begin(&gpu, runner).expect("nothing is made or freed");
        for runner in [Runner::Rings, Runner::Controller] {
            let (beside, ended) = (begin(runner), begin(Runner::Controller));
            drop(ended);
            assert!(gpu.may_free("nothing").is_none(), "the other runs");
            drop(beside);
        }
        let running = begin(Runner::Controller);
        drop(left);
        assert_eq!(live(), before, "all of it is left");
        assert!(!gone.load(Ordering::Acquire), "its owner is kept with what is registered");
        drop(running);
        let (gone, more) = make();
        drop(more);
        assert_eq!(live(), before, "what was made later is given back");
        assert!(gone.load(Ordering::Acquire));
    });
}

#[test]
fn no_kernel_that_does_not_end_begins_while_something_is_made_or_freed() {
    alone_without_a_report("gpus=2", || {
        let (gpu, other) = (open(), Gpu::open(1).expect("there are two"));
        let begin = |runner| Endless::begin(&gpu, runner);
        for runner in [Runner::Rings, Runner::Controller] {
            let busy = [
                gpu.may_make("memory").expect("none runs"),
                gpu.may_free("it").expect("none runs"),
            ];
            let elsewhere = Endless::begin(&other, runner).expect("nothing is made there");
            let has_begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let running = begin(runner).expect("they end");
                    has_begun.store(true, Ordering::Release);
                    drop(running);
                });
                for one in busy {
                    std::thread::sleep(Duration::from_millis(5));
                    assert!(!has_begun.load(Ordering::Acquire));
                    drop(one);
                }
            });
            drop(elsewhere);
        }
        let running = begin(Runner::Rings).expect("none runs");
        let refused = begin(Runner::Rings).expect_err("one runs").to_string();
        assert!(refused.contains("persistent kernel of other rings"), "{refused}");
        assert!(gpu.may_make("memory").is_err() && other.may_make("memory").is_ok());
        drop(running);
        begin(Runner::Controller).expect("none runs").give_up();
        assert!(gpu.may_make("memory").is_err() && gpu.may_free("it").is_none());
    });
}
