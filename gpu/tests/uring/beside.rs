//! Rings with a running persistent kernel, and other requests to the same GPU meanwhile.

use std::sync::Arc;

use adit_gpu::{Error, GioUring, KernelChoice, Options, Place, Pool, Result, probe};
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
    let reports = probe(&first.gpu, &other.controller);
    let fared = |report: &adit_gpu::PathReport| report.outcome.clone().err();
    let whys = reports.iter().filter_map(fared).collect::<Vec<_>>();
    assert_eq!(whys.len(), reports.len() - 1, "all but the CPU's own: {reports:?}");
    assert!(whys.iter().all(|why| why.contains("stop the other rings first")), "{whys:?}");
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
