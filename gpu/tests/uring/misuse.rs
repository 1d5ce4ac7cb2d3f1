//! Mistakes of callers: blocks of other rings, pools of other devices, waits for unissued blocks.

use std::sync::Arc;
use std::time::Duration;

use adit_gpu::{
    Ended, EngineChoice, Error, GioUring, Gpu, KernelChoice, Options, Place, Pool, Priority, Stream,
};
use adit_gpu_emulated::{report, set};

use crate::life::{read, write};
use crate::rig::{LONG, REGIONS, Rig, alone, device, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";

fn staged() -> Options {
    Options { engine: EngineChoice::Staged, ..options() }
}

#[test]
fn blocks_of_other_rings_are_refused() {
    for of_b in [Options { blocks: 1, ..options() }, Options { blocks: 1, ..staged() }] {
        let _alone = alone("no-green");
        let a = Rig::new(&[SOFT], Place::Host, &options());
        let b = Rig::new(&[SOFT], Place::Host, &of_b);
        let stream = b.uring.compute_stream(Priority::Normal).expect("a stream");
        let [_first, iocbs] =
            [0, 1].map(|lba| a.uring.get_iocb([read(lba, 0)], None).expect("a block"));
        let errors = [
            b.uring.issue_io(&iocbs, 0).expect_err("blocks of a"),
            b.uring.wait_cqe(&iocbs, &stream).expect_err("blocks of a"),
            b.uring.wait_addresses(&iocbs).expect_err("blocks of a"),
            b.uring.poll(&iocbs).expect_err("blocks of a"),
        ];
        a.uring.issue_io(&iocbs, 0).expect("a issues them: b did not");
        let waited = b.uring.wait(iocbs, LONG).expect_err("blocks of a");
        for error in errors.into_iter().chain([waited]) {
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains("other rings made them"), "{error}");
        }
        stream.synchronize(LONG).expect("nothing to wait for");
        assert_eq!(b.uring.stats().expect("stats").commands, 0);
    }
}

#[test]
fn a_pool_for_other_devices_is_refused() {
    let _alone = alone("gpus=2");
    let gpus = [0, 1].map(|ordinal| Gpu::open(ordinal).expect("a GPU"));
    let [a, b] = [device(SOFT), device("soft:mem=8M,lba=4096,dbbuf=off")];
    let both = [&a, &b].map(|device| Arc::clone(&device.controller));
    let swapped = [&b, &a].map(|device| Arc::clone(&device.controller));
    let pool = |gpu, controllers: &[_]| {
        Pool::allocate(gpu, controllers, &REGIONS, Some(Place::Host)).expect("a pool")
    };
    let mut foreign = b.clone();
    foreign.namespace = a.namespace.clone();
    for options in [options(), staged()] {
        for (devices, pool, named) in [
            (vec![a.clone()], pool(&gpus[0], &both[1..]), "device 0"),
            (vec![a.clone(), b.clone()], pool(&gpus[0], &swapped), "device 0"),
            (vec![a.clone()], pool(&gpus[1], &both[..1]), "GPU 1"),
            (vec![a.clone(), foreign.clone()], pool(&gpus[0], &both), "device 1"),
        ] {
            let made = GioUring::init_queue(&gpus[0], devices, pool, &options);
            let error = made.err().expect(named);
            assert!(error.is_usage() && error.to_string().contains(named), "{named}: {error:?}");
        }
    }
    let devices = vec![a.clone(), b.clone()];
    GioUring::init_queue(&gpus[0], devices, pool(&gpus[0], &both), &options()).expect("rings");
}

#[test]
fn an_event_holds_up_only_what_waits_for_it() {
    for options in [options(), staged()] {
        let _alone = alone("no-green");
        let rig = Rig::new(&[SOFT], Place::Host, &options);
        let other = Rig::new(&[SOFT], Place::Host, &staged());
        let [slow, fast] =
            [0, 1].map(|_| rig.uring.compute_stream(Priority::Normal).expect("a stream"));
        let gate = other.uring.get_iocb([read(1, 0)], None).expect("a block");
        other.uring.wait_cqe(&gate, &slow).expect("enqueued");
        let [slow, fast] = [slow, fast].map(|stream| stream.record().expect("an event"));
        // Many that wait, and are not even issued.
        let wait = |lba| rig.uring.get_iocb([read(lba, 0)], Some(&slow)).expect("a block");
        let behind = (0..5).map(wait).collect::<Vec<_>>();
        let iocbs = rig.uring.get_iocb([read(3, 0)], Some(&fast)).expect("a block");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        assert!(rig.uring.wait(iocbs, LONG).expect("its event is over").is_success());
        assert!(!slow.is_over().expect("an event"));
        other.uring.issue_io(&gate, 0).expect("issued");
        assert!(other.uring.wait(gate, LONG).expect("done").is_success());
        behind.iter().for_each(|iocbs| rig.uring.issue_io(iocbs, 0).expect("issued"));
        for iocbs in behind {
            assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
        }
    }
}

#[test]
fn streams_go_on_when_what_they_wait_for_is_let_go_of_without_being_issued() {
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    for options in [options(), persistent, staged()] {
        let _alone = alone("no-green,free-waits,patience=3000");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { blocks: 1, ..options });
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        for lba in 0..3 {
            let iocbs = rig.uring.get_iocb([write(lba, 0)], None).expect("a block");
            rig.uring.wait_cqe(&iocbs, &stream).expect("enqueued");
            drop(iocbs);
            stream.synchronize(LONG).expect("it was released");
            // The block's next use is a different one.
            let iocbs = rig.uring.get_iocb([write(lba, 0)], None).expect("a block");
            rig.uring.wait_cqe(&iocbs, &stream).expect("enqueued");
            assert!(!stream.is_idle().expect("a stream"));
            rig.uring.issue_io(&iocbs, 0).expect("issued");
            stream.synchronize(LONG).expect("done");
            assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
        }
        assert_eq!(rig.uring.stats().expect("stats").commands, 3);
    }
}

#[test]
fn a_block_whose_waiting_stream_cannot_be_released_is_not_handed_out_again() {
    const SETTINGS: &str = "no-green,free-waits,patience=3000";
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    for options in [options(), persistent, staged()] {
        let _alone = alone(SETTINGS);
        let rig = Rig::new(&[SOFT], Place::Host, &Options { blocks: 2, ..options });
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let iocbs = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
        rig.uring.wait_cqe(&iocbs, &stream).expect("enqueued");
        set(&format!("{SETTINGS},fail=cuMemcpyAsync:1"));
        drop(iocbs);
        set(SETTINGS);
        assert!(!stream.is_idle().expect("a stream"), "its word was not written");
        // The other block works; while it is held, none is left.
        for lba in 0..3 {
            let iocbs = rig.uring.get_iocb([write(lba, 0)], None).expect("the other block");
            assert!(rig.uring.get_iocb([write(lba, 0)], None).is_err(), "no third block");
            rig.uring.issue_io(&iocbs, 0).expect("issued");
            assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
        }
        assert!(!stream.is_idle().expect("a stream"), "none of them is what it waits for");
        drop(rig);
        stream.synchronize(LONG).expect("dropping the rings releases it");
    }
}

#[test]
fn rings_are_dropped_while_streams_wait_for_what_is_never_issued() {
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    for options in [options(), persistent, staged()] {
        let _alone = alone("no-green,free-waits,patience=3000");
        let rig = Rig::new(&[SOFT], Place::Host, &options);
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let never = rig.uring.get_iocb([write(1, 0)], None).expect("a block");
        rig.uring.wait_cqe(&never, &stream).expect("enqueued");
        let event = stream.record().expect("an event");
        let behind = rig.uring.get_iocb([read(2, 512)], Some(&event)).expect("a block");
        rig.uring.issue_io(&behind, 0).expect("issued");
        drop(rig);
        stream.synchronize(LONG).expect("it was released");
        assert!(event.is_over().expect("an event"));
        drop((never, behind));
        assert_eq!(report().kernels_running, 0);
    }
}

#[test]
fn streams_go_on_when_rings_are_stopped_that_could_not_enqueue_what_they_wait_for() {
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    for (options, is_stopped) in [options(), persistent]
        .into_iter()
        .flat_map(|options| [(options.clone(), true), (options, false)])
    {
        const SETTINGS: &str = "no-green,free-waits,patience=3000";
        let _alone = alone(SETTINGS);
        let rig = Rig::new(&[SOFT], Place::Host, &options);
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let iocbs = rig.uring.get_iocb([write(1, 0)], None).expect("a block");
        rig.uring.wait_cqe(&iocbs, &stream).expect("enqueued");
        set(&format!("{SETTINGS},fail=cuMemcpyAsync:1:1"));
        let error = rig.uring.issue_io(&iocbs, 0).expect_err("its header is not copied");
        assert!(matches!(error, Error::Cuda { call: "cuMemcpyAsync", .. }), "{error:?}");
        set(SETTINGS);
        if is_stopped {
            rig.uring.stop().expect("stopped");
            let failed = rig.uring.wait(iocbs, LONG).expect("ended").failed;
            assert_eq!(failed, [(0, Ended::Reset)]);
        } else {
            drop((rig, iocbs));
        }
        stream.synchronize(LONG).expect("ended without being carried out");
    }
}

#[test]
fn a_stream_of_another_gpu_is_refused() {
    let _alone = alone("gpus=2");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    let other = Gpu::open(1).expect("a GPU");
    let stream = Stream::new(&other, Priority::Normal).expect("a stream");
    let iocbs = rig.uring.get_iocb([read(1, 0)], None).expect("a block");
    let error = rig.uring.wait_cqe(&iocbs, &stream).expect_err("a stream of GPU 1");
    assert!(error.is_usage() && error.to_string().contains("a stream of GPU 1"), "{error:?}");
    assert!(stream.is_idle().expect("a stream"));
}

#[test]
fn what_is_said_to_be_done_was_flushed_once() {
    const FAILS: &str = "coherent,ordering=0,fail=cuFlushGPUDirectRDMAWrites:1";
    let _alone = alone("coherent,ordering=0");
    let rig = Rig::new(&[SOFT], Place::Gpu, &options());
    assert_eq!(rig.uring.description().places, Some((Place::Gpu, Place::Gpu)));
    let iocbs = rig.uring.get_iocb([read(3, 0)], None).expect("a block");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    set(FAILS);
    let polled = || {
        std::iter::repeat_with(|| rig.uring.poll(&iocbs)).find(|done| !matches!(done, Ok(false)))
    };
    let error = polled().expect("it ends").expect_err("done, and not flushed").to_string();
    assert!(error.contains("cuFlushGPUDirectRDMAWrites"), "{error}");
    set("coherent,ordering=0");
    assert!(rig.uring.poll(&iocbs).expect("flushed"));
    set(FAILS);
    assert!(rig.uring.poll(&iocbs).expect("flushed before"));
    assert!(rig.uring.wait(iocbs, Duration::ZERO).expect("flushed before").is_success());
}
