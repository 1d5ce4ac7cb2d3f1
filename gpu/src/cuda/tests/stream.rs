//! Streams and events: order, waits that end, reported failures.
#![allow(unsafe_code)]

use super::{alone, alone_without_a_report, open};
use crate::Error;
use crate::cuda::program::{Kernel, Program};
use crate::cuda::{DeviceMemory, Event, Gpu, PinnedMemory, Priority, Stream};
use cudarc::driver::CudaContext;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

fn stream(gpu: &Arc<Gpu>) -> Stream {
    Stream::new(gpu, Priority::Normal).expect("a stream can be made")
}

#[test]
fn a_stream_waits_for_a_word_and_no_longer_than_it_is_told() {
    alone("", || {
        let gpu = open();
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        for priority in [Priority::High, Priority::Normal, Priority::Low] {
            words.words()[0].store(0, Ordering::Release);
            let stream = Stream::new(&gpu, priority).expect("a stream can be made");
            stream.wait32_at_least(words.address(), 3, false).expect("it is enqueued");
            stream.write32(words.address() + 4, 9).expect("it is enqueued");
            let error = stream.synchronize(SHORT).expect_err("the word is not there");
            assert!(matches!(error, Error::TimedOut { after: SHORT, .. }), "{error}");
            assert!(!stream.is_idle().expect("nothing failed"));
            words.words()[0].store(4, Ordering::Release);
            stream.synchronize(LONG).expect("more than the word will do");
            assert!(stream.is_idle().expect("nothing failed"));
            assert_eq!(words.words()[1].swap(0, Ordering::Acquire), 9);
        }
    });
}

#[test]
fn an_event_orders_one_stream_behind_another() {
    alone("", || {
        let gpu = open();
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        let (first, second) = (stream(&gpu), stream(&gpu));
        first.wait32_at_least(words.address(), 1, false).expect("it is enqueued");
        let event = first.record().expect("it is enqueued");
        second.wait_event(&event).expect("it is enqueued");
        second.write32(words.address() + 4, 1).expect("it is enqueued");
        assert!(!event.is_over().expect("nothing failed"));
        assert!(second.synchronize(SHORT).is_err());
        assert_eq!(words.words()[1].load(Ordering::Acquire), 0);
        words.words()[0].store(1, Ordering::Release);
        second.synchronize(LONG).expect("the event is over");
        assert!(event.is_over().expect("nothing failed"));
        let later = second.record().expect("it is enqueued");
        second.synchronize(LONG).expect("it is done");
        assert!(event.elapsed_ms(&later).expect("both are over") >= 0.0);
    });
}

#[test]
fn streams_and_events_of_others_are_used_and_left_alone() {
    alone("", || {
        let gpu = open();
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        // SAFETY: the default stream is always there.
        let borrowed = unsafe { Stream::borrowed(&gpu, ptr::null_mut()) };
        borrowed.write32(words.address(), 5).expect("it is enqueued");
        let event = borrowed.record().expect("it is enqueued");
        // SAFETY: the event lives as long.
        let same = unsafe { Event::borrowed(&gpu, event.raw()) };
        borrowed.synchronize(LONG).expect("it is done");
        assert!(same.is_over().expect("nothing failed"));
        drop(same);
        assert!(event.is_over().expect("it is still there"));
        assert_eq!(words.words()[0].load(Ordering::Acquire), 5);
    });
}

#[test]
fn streams_and_events_go_to_cudarc_and_come_from_it() {
    alone("gpus=2", || {
        let gpu = open();
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        let context = CudaContext::new(0).expect("cudarc opens the same GPU");
        let theirs = context.new_stream().expect("a stream can be made");
        let ours = Stream::from_cudarc(&gpu, &theirs).expect("it is of the primary context");
        assert_eq!(ours.raw(), theirs.cu_stream().cast());
        ours.wait32_at_least(words.address(), 1, false).expect("it is enqueued");
        let recorded = theirs.record_event(None).expect("it is enqueued");
        let event = Event::from_cudarc(&gpu, recorded).expect("it is of the primary context");
        drop(theirs);
        assert!(!event.is_over().expect("nothing failed"), "the stream is kept, and waits");

        let second = stream(&gpu);
        second.wait_event(&event).expect("it is enqueued");
        // SAFETY: the stream lives longer than what cudarc makes of it.
        let lent = unsafe { context.wrap_borrowed_stream(second.raw().cast()) };
        let after = lent.record_event(None).expect("it is enqueued");
        assert!(!after.is_complete(), "it is behind the event");
        words.words()[0].store(1, Ordering::Release);
        second.synchronize(LONG).expect("the event is over");
        assert!(after.is_complete() && event.is_over().expect("nothing failed"));

        let other = CudaContext::new(1).expect("cudarc opens the second GPU");
        let foreign = other.new_stream().expect("a stream can be made");
        let error = Stream::from_cudarc(&gpu, &foreign).expect_err("it is of GPU 1");
        assert!(error.is_usage() && error.to_string().contains("GPU 1"), "{error}");
        let foreign = foreign.record_event(None).expect("it is enqueued");
        assert!(Event::from_cudarc(&gpu, foreign).expect_err("it is of GPU 1").is_usage());
    });
}

#[test]
fn copies_go_to_the_gpu_and_stay_inside_pinned_memory() {
    alone("", || {
        let gpu = open();
        let host = PinnedMemory::allocate(&gpu, 4096).expect("there is memory");
        let there = DeviceMemory::allocate(&gpu, 4096).expect("there is memory");
        let stream = stream(&gpu);
        host.words()[1023].store(0xabcd, Ordering::Release);
        stream.copy_to_gpu(there.address() + 100, &host, 4092..4096).expect("it is inside");
        stream.synchronize(LONG).expect("it is done");
        let mut read = [0; 4];
        there.read(100, &mut read).expect("it is inside");
        assert_eq!(u32::from_ne_bytes(read), 0xabcd);
        for outside in [4090..4097, 5000..5001, u64::MAX - 1..u64::MAX] {
            assert!(
                stream
                    .copy_to_gpu(there.address(), &host, outside)
                    .expect_err("outside")
                    .is_usage()
            );
        }
    });
}

#[test]
fn a_kernel_writes_where_its_argument_says() {
    alone("", || {
        let gpu = open();
        let program = Program::load(&gpu).expect("it compiles");
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        let arguments = DeviceMemory::allocate(&gpu, 16).expect("there is memory");
        arguments.write(0, &(words.address() + 8).to_ne_bytes()).expect("it fits");
        arguments.write(8, &[42, 0, 0, 0, 0, 0, 0, 0]).expect("it fits");
        let stream = stream(&gpu);
        stream
            .launch(program.function(Kernel::Poke), 1, 32, arguments.address())
            .expect("it is enqueued");
        stream.synchronize(LONG).expect("it is done");
        assert_eq!(words.words()[2].load(Ordering::Acquire), 42);
    });
}

#[test]
fn a_launch_of_nothing_or_of_part_of_a_warp_is_a_mistake() {
    alone("", || {
        let gpu = open();
        let program = Program::load(&gpu).expect("it compiles");
        for (blocks, threads) in [(0, 32), (1, 0), (1, 31), (1, 33)] {
            let refused = stream(&gpu).launch(program.function(Kernel::Poke), blocks, threads, 0);
            let error = refused.expect_err("it is no launch");
            assert!(error.is_usage() && error.to_string().contains("adit_poke"), "{error}");
        }
    });
}

#[test]
fn a_launch_that_the_gpu_has_no_room_for_is_told() {
    alone("fail=cuLaunchKernel:701", || {
        let gpu = open();
        let program = Program::load(&gpu).expect("it compiles");
        let error =
            stream(&gpu).launch(program.function(Kernel::Compute), 1, 32, 0).expect_err("no room");
        assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{error}");
    });
}

#[test]
fn a_kernel_that_fails_is_told_by_all_that_is_asked_afterwards() {
    alone_without_a_report("", || {
        let gpu = open();
        let program = Program::load(&gpu).expect("it compiles");
        let arguments = DeviceMemory::allocate(&gpu, 16).expect("there is memory");
        let (stream, other) = (stream(&gpu), stream(&gpu));
        adit_gpu_emulated::set("fail=kernel:719");
        stream
            .launch(program.function(Kernel::Poke), 1, 32, arguments.address())
            .expect("it is enqueued");
        let error = stream.synchronize(LONG).expect_err("the kernel fails");
        let Error::Cuda { name, fix, .. } = &error else { panic!("{error}") };
        assert_eq!(name, "CUDA_ERROR_LAUNCH_FAILED");
        assert!(fix.contains("the GPU's context is lost"), "{fix}");
        assert!(other.is_idle().is_err(), "the context is lost for every stream");
    });
}

#[test]
fn a_stream_that_cannot_flush_says_so() {
    alone("", || {
        let gpu = open();
        let words = PinnedMemory::allocate(&gpu, 64).expect("there is memory");
        let stream = stream(&gpu);
        let flushed = stream.wait32_at_least(words.address(), 0, true);
        assert_eq!(flushed.is_ok(), gpu.info().attributes.stream_flush);
        stream.synchronize(LONG).expect("the word is there");
    });
}
