//! Queues with rings in each place, rung by the emulated GPU and by proxy, and what stays when one cannot be deleted.

use std::time::Duration;

use super::*;
use crate::reach::paths::tests::Rig;

const PLACES: [(Place, Place); 4] = [
    (Place::Host, Place::Host),
    (Place::Host, Place::Gpu),
    (Place::Gpu, Place::Host),
    (Place::Gpu, Place::Gpu),
];

#[test]
fn rings_lie_where_they_are_asked_to_and_leave_nothing_behind() {
    let name =
        concat!(module_path!(), "::rings_lie_where_they_are_asked_to_and_leave_nothing_behind");
    adit_gpu_emulated::alone("", name, || {
        let rig = Rig::new(1);
        let proxy = rig.proxy();
        let before = adit_gpu_emulated::report();
        for places in PLACES {
            let queue = rig.queue_in(300, &proxy, places).expect("a queue");
            assert_eq!(queue.depths, RingDepths { submission: 300, completion: 600 });
            assert_eq!((queue.lba_shift, queue.protection), (9, 0));
            assert_eq!(queue.completions_in_host, places.1 == Place::Host);
            let raw = queue.raw.as_ref().expect("a controller's");
            let here = |space: &RingSpace| space.memory().is_some();
            assert_eq!(here(raw.submission()), places.0 == Place::Host);
            assert_eq!(here(raw.completion()), places.1 == Place::Host);
        }
        let after = adit_gpu_emulated::report();
        assert_eq!(
            (after.registrations, after.physicals),
            (before.registrations, before.physicals)
        );
        assert_eq!(after.misuses, 0);
        drop(proxy);
        rig.finish();
    });
}

#[test]
fn a_completion_ring_is_as_deep_as_the_controller_allows() {
    adit_gpu_emulated::load();
    let rig = Rig::with(&["mem=16M,dbbuf=off,mqes=64"]);
    let proxy = rig.proxy();
    for (submission, completion) in [(16, 32), (32, 64), (40, 64), (64, 64)] {
        let queue = rig.queue(submission, &proxy);
        assert_eq!(queue.depths, RingDepths { submission, completion });
    }
    assert!(rig.queue_in(65, &proxy, (Place::Host, Place::Host)).is_err());
    drop(proxy);
    rig.finish();
}

#[test]
fn a_depth_that_the_controller_does_not_take_leaves_nothing() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let proxy = rig.proxy();
    for depth in [0, 1, 1 << 17] {
        let refused = rig.queue_in(depth, &proxy, (Place::Host, Place::Host));
        assert!(refused.is_err(), "{depth}");
    }
    drop(proxy);
    rig.finish();
}

#[test]
fn a_queue_that_cannot_be_deleted_keeps_its_memory_and_what_it_was_given() {
    adit_gpu_emulated::load();
    for is_stuck in [false, true] {
        let faults =
            "mem=16M,dbbuf=off,nssr=off,faults=lose@admin-op=0+refuse-disable+refuse-reset";
        let options = if is_stuck { faults } else { "mem=16M,dbbuf=off" };
        let rig = Rig::patient(&[options], Duration::from_secs(1));
        let mut queue =
            rig.queue_in(16, &rig.proxy(), (Place::Host, Place::Host)).expect("a queue");
        let kept: Keeper = Arc::new(AtomicKept);
        let weak = Arc::downgrade(&kept);
        queue.keep(kept);
        drop(queue);
        assert_eq!(weak.upgrade().is_some(), is_stuck);
    }
}

/// Memory kept by a queue.
struct AtomicKept;

#[test]
fn a_doorbell_rung_after_its_queue_is_gone_is_not_the_next_queues() {
    adit_gpu_emulated::load();
    let rig = Rig::new(1);
    let Doorbells::Proxy(proxy) = rig.proxy() else { panic!("a proxy") };
    let doorbells = Doorbells::Proxy(Arc::clone(&proxy));
    let first = rig.queue(16, &doorbells);
    let (qid, word) = (first.qid, first.sq_doorbell);
    drop(first);
    let second = rig.queue(16, &doorbells);
    assert_eq!((second.qid, second.sq_doorbell), (qid, word));
    assert_eq!((proxy.stats().rung, proxy.stats().queues), (0, 1));
    drop((second, doorbells, proxy));
    rig.finish();
}
