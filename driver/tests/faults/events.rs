//! Events of the controller: what `poll` makes of them, and what handles see.

use std::time::Duration;

use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Lba, Nsid, Status};
use adit_driver::{Buffer, Event, RejectReason};

use crate::rig::Rig;

#[test]
fn a_namespace_that_goes_away_takes_no_more_requests() {
    let rig = Rig::new("mem=16M,namespaces=2");
    let second = rig.controller.namespace(Nsid(2)).expect("active");
    let clone = second.clone();
    let mut pair = rig.pair::<Buffer>(8);
    rig.bus.soft.with_controller(|controller| assert!(controller.attach_namespace(2, false)));
    rig.settle();
    let event = rig.controller.poll(rig.now());
    assert_eq!(event, Some(Event::NamespaceRemoved { nsid: Nsid(2) }));
    let buffer = rig.controller.allocate(512).expect("buffer");
    let rejected = pair.submit(rig.now(), clone.read(Lba(0), buffer)).expect_err("it is gone");
    assert_eq!(rejected.reason, RejectReason::OutOfRange { lba: 0, end: 1, lbas: 0 });
    assert_eq!(second.lba_count(), 0);
    rig.bus.soft.with_controller(|controller| assert!(controller.attach_namespace(2, true)));
    rig.settle();
    let event = rig.controller.poll(rig.now());
    let lba_count = clone.lba_count();
    assert_eq!(event, Some(Event::NamespaceResized { nsid: Nsid(2), lba_count }));
    pair.submit(rig.now(), second.read(Lba(0), rejected.buffer)).expect("it is back");
    assert_eq!(rig.drain(&mut pair).len(), 1);
    drop(pair);
    rig.finish();
}

#[test]
fn a_hot_controller_is_an_event_of_its_health() {
    let rig = Rig::new("mem=16M");
    rig.bus.soft.with_controller(|controller| controller.set_temperature(400));
    rig.settle();
    match rig.controller.poll(rig.now()) {
        Some(Event::Health { warnings, .. }) => assert!(warnings.temperature(), "{warnings:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.controller.poll(rig.now()), None);
    rig.finish();
}

#[test]
fn an_event_whose_log_cannot_be_read_is_told_as_it_is() {
    let rig = Rig::new("mem=16M");
    rig.admin(AdminOpcode::GET_LOG_PAGE, Verdict::Fail(Status::INTERNAL_ERROR));
    rig.bus.soft.with_controller(|controller| controller.set_temperature(400));
    rig.settle();
    assert!(matches!(rig.controller.poll(rig.now()), Some(Event::Other(_))));
    rig.controller.check().expect("in service");
    rig.finish();
}

#[test]
fn sizes_are_looked_at_again_after_recovery() {
    let rig = Rig::new("mem=16M,namespaces=2");
    let second = rig.controller.namespace(Nsid(2)).expect("active");
    rig.bus.soft.with_controller(|controller| {
        controller.fail();
        assert!(controller.attach_namespace(2, false));
    });
    assert_eq!(rig.controller.poll(rig.now()), None);
    rig.controller.recover().expect("recovered");
    let event = rig.controller.poll(rig.now());
    assert_eq!(event, Some(Event::NamespaceRemoved { nsid: Nsid(2) }));
    assert_eq!((second.lba_count(), second.bytes()), (0, 0));
    rig.finish();
}

#[test]
fn a_failure_is_found_without_a_deadline() {
    let rig = Rig::new("mem=16M");
    let started = rig.now();
    rig.bus.soft.unplug();
    assert!(matches!(rig.controller.poll(rig.now()), Some(Event::Bus(_))));
    rig.controller.check().expect_err("gone");
    assert!(rig.now().since(started) < Duration::from_secs(1));
    rig.finish();
}
