//! Rings with a running persistent kernel, and other requests to the same GPU meanwhile.

use std::sync::Arc;

use adit_gpu::{Error, GioUring, Gpu, KernelChoice, Options, Place, Pool, Result};
use adit_gpu_emulated::report;

use crate::life::read;
use crate::rig::{LONG, REGIONS, Rig, alone, device, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";

fn is_refused<T>(asked: Result<T>) {
    let error = asked.err().expect("a persistent kernel runs");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("stop the other rings first"), "{error}");
}

#[test]
fn nothing_is_made_beside_other_rings_persistent_kernel_until_they_are_stopped() {
    let _alone = alone("");
    let other = device(SOFT);
    let first = Rig::new(&[SOFT], Place::Host, &options());
    let controllers = [Arc::clone(&other.controller)];
    let allocate = || Pool::allocate(&first.gpu, &controllers, &REGIONS, Some(Place::Host));
    let pool = allocate().expect("a pool");
    let init = || GioUring::init_queue(&first.gpu, vec![other.clone()], pool.clone(), &options());
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    let rig = Rig::new(&[SOFT], Place::Host, &persistent);

    let before = report();
    is_refused(init());
    is_refused(allocate());
    // Existing rings continue, and the persistent ones with them.
    for uring in [&first.uring, &rig.uring] {
        let iocbs = uring.get_iocb([read(0, 0)], None).expect("a block");
        uring.issue_io(&iocbs, 0).expect("issued");
        assert!(uring.wait(iocbs, LONG).expect("done").is_success());
    }
    assert_eq!(report().frees_behind_kernels, before.frees_behind_kernels);

    rig.uring.stop().expect("stopped");
    init().expect("nothing runs that does not end");
    rig.uring.recover().expect("recovered");
    is_refused(allocate());
    drop(rig);
    allocate().expect("nothing runs any more");
}

#[test]
fn a_persistent_kernel_that_every_stream_waits_behind_is_refused() {
    let _alone = alone("queues=1");
    let gpu = Gpu::open(0).expect("a GPU");
    let device = device(SOFT);
    let controllers = [Arc::clone(&device.controller)];
    let pool = Pool::allocate(&gpu, &controllers, &REGIONS, Some(Place::Host)).expect("a pool");
    let init =
        |options: &Options| GioUring::init_queue(&gpu, vec![device.clone()], pool.clone(), options);
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };

    let error = init(&persistent).err().expect("nothing would go on beside it");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("start the program with CUDA_DEVICE_MAX_CONNECTIONS=32"), "{text}");
    assert_eq!(report().kernels_running, 0, "it was stopped");

    let rings = init(&options()).expect("one-shot kernels end");
    let iocbs = rings.get_iocb([read(0, 0)], None).expect("a block");
    rings.issue_io(&iocbs, 0).expect("issued");
    assert!(rings.wait(iocbs, LONG).expect("done").is_success());
}

#[test]
fn a_persistent_kernel_with_a_hardware_queue_of_its_own_runs() {
    let _alone = alone("queues=32");
    let persistent = Options { kernel: KernelChoice::Persistent, ..options() };
    let rig = Rig::new(&[SOFT], Place::Host, &persistent);
    let iocbs = rig.uring.get_iocb([read(0, 0)], None).expect("a block");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
}
