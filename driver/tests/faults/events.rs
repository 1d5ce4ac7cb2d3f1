//! Controller events: how `poll` handles them, and what handles see.

use std::time::Duration;

use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Lba, Nsid, Status};
use adit_driver::{Buffer, ControllerOptions, Event, QueuePair, QueuePairOptions, RejectReason};

use crate::rig::{Rig, Watch};

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

#[test]
fn an_open_namespace_that_is_resized_has_its_new_size_everywhere() {
    let rig = Rig::new("mem=16M,namespaces=2");
    let before = rig.namespace.lba_count();
    let handle = rig.namespace.clone();
    rig.bus.soft.with_controller(|controller| {
        controller.resize_namespace(1, before / 2).expect("smaller");
    });
    rig.settle();
    let lba_count = before / 2;
    let event = rig.controller.poll(rig.now());
    assert_eq!(event, Some(Event::NamespaceResized { nsid: Nsid(1), lba_count }));
    assert_eq!((handle.lba_count(), rig.namespace.lba_count()), (lba_count, lba_count));
    let mut pair = rig.pair::<Buffer>(8);
    let buffer = rig.controller.allocate(512).expect("buffer");
    let rejected = pair.submit(rig.now(), handle.read(Lba(lba_count), buffer)).expect_err("end");
    assert!(matches!(rejected.reason, RejectReason::OutOfRange { .. }), "{rejected}");
    drop((pair, rejected, handle));
    rig.finish();
}

/// Command timeout, shorter than an activation may take (MTFA).
const SHORT: Duration = Duration::from_secs(1);

fn impatient() -> Rig {
    let options = ControllerOptions { admin_timeout: SHORT, ..ControllerOptions::default() };
    Rig::open(Watch::new("mem=16M"), &options)
}

/// Reads while the controller activates firmware for `pause`; returns the results.
fn read_during_activation(
    pause: Duration,
    polls_controller: bool,
) -> (Result<u32, adit_driver::CommandError>, adit_driver::Stats) {
    let rig = impatient();
    let options = QueuePairOptions { timeout: SHORT, ..QueuePairOptions::default() };
    let mut pair: QueuePair<Buffer> = rig.controller.create_queue_pair(options).expect("pair");
    rig.bus.soft.with_controller(|controller| controller.activate_firmware(pause));
    rig.settle();
    if polls_controller {
        match rig.controller.poll(rig.now()) {
            Some(Event::FirmwareActivation { until }) => assert!(until > rig.now()),
            other => panic!("{other:?}"),
        }
    }
    let buffer = rig.controller.allocate(512).expect("buffer");
    pair.submit(rig.now(), rig.namespace.read(Lba(0), buffer)).expect("room");
    let finished = rig.drain(&mut pair);
    let (result, stats) = (finished[0].result, pair.stats());
    drop((finished, pair));
    rig.finish();
    (result, stats)
}

#[test]
fn a_command_that_is_overdue_because_firmware_is_activated_is_waited_for() {
    let (result, stats) = read_during_activation(5 * SHORT, false);
    assert_eq!((result, stats.aborts), (Ok(0), 0), "CSTS.PP says so");
    let (result, stats) = read_during_activation(5 * SHORT, true);
    assert_eq!((result, stats.aborts), (Ok(0), 0), "it was announced");
}

#[test]
fn an_admin_command_waits_for_firmware_as_well_and_a_second_activation_is_announced() {
    let rig = impatient();
    for _ in 0..3 {
        rig.bus.soft.with_controller(|controller| controller.activate_firmware(5 * SHORT));
        rig.settle();
        let event = rig.controller.poll(rig.now());
        assert!(matches!(event, Some(Event::FirmwareActivation { .. })), "{event:?}");
        let started = rig.now();
        rig.controller.namespace_ids().expect("answered after the pause");
        assert!(rig.now().since(started) > 4 * SHORT);
        assert_eq!(rig.controller.poll(rig.now()), None);
    }
    rig.controller.check().expect("in service");
    rig.finish();
}

#[test]
fn an_activation_that_takes_too_long_is_a_failure_like_any() {
    let (result, stats) = read_during_activation(Duration::from_secs(200), false);
    assert!(result.is_err() && stats.aborts > 0, "{result:?} {stats:?}");
}

#[test]
fn a_status_that_asks_for_a_delay_gets_it_unless_it_is_longer_than_a_minute() {
    let rig = Rig::new("mem=16M,crdt=100ms+1s+6553500ms");
    let mut pair = rig.pair::<Buffer>(8);
    for (crd, seconds) in [(2, 1), (3, 60)] {
        let busy = Status::NAMESPACE_NOT_READY.with_crd(crd);
        rig.all_reads(Verdict::Fail(busy));
        let buffer = rig.controller.allocate(512).expect("buffer");
        pair.submit(rig.now(), rig.namespace.read(Lba(0), buffer)).expect("room");
        let finished = rig.drain(&mut pair);
        let error = finished[0].result.expect_err("it is not ready");
        assert_eq!(rig.controller.retry_delay(&error), Some(Duration::from_secs(seconds)));
    }
    drop(pair);
    rig.finish();
}

#[test]
fn notices_of_firmware_without_end_do_not_put_off_a_deadline_for_ever() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.hook(|sqe, qid| match (qid.is_admin(), sqe.admin_opcode()) {
        (false, _) => Verdict::Lose,
        // Answers each event request at once with Firmware Activation Starting.
        (true, AdminOpcode::ASYNC_EVENT_REQUEST) => Verdict::Answer(0x0003_0102),
        _ => Verdict::Run,
    });
    // One event first, so that requests are posted again.
    rig.bus.soft.with_controller(|controller| controller.set_temperature(400));
    let buffer = rig.controller.allocate(512).expect("buffer");
    pair.submit(rig.now(), rig.namespace.read(Lba(0), buffer)).expect("room");
    let (started, mut events) = (rig.now(), 0);
    while pair.in_flight() > 0 {
        pair.poll(rig.now(), |_| ());
        events += u32::from(rig.controller.poll(rig.now()).is_some());
        rig.bus.soft.step();
        rig.bus.soft.advance(Duration::from_millis(100));
        assert!(rig.now().since(started) < Duration::from_secs(60), "{events} events");
    }
    assert!(events > 10, "they were announced: {events}");
    drop(pair);
    rig.finish();
}

#[test]
fn a_namespace_that_cannot_be_looked_at_keeps_its_size() {
    let rig = Rig::new("mem=16M,namespaces=2");
    let before = rig.namespace.lba_count();
    rig.admin(AdminOpcode::IDENTIFY, Verdict::Fail(Status::INTERNAL_ERROR));
    rig.bus.soft.with_controller(|controller| controller.namespace_changed(1));
    rig.settle();
    assert!(matches!(rig.controller.poll(rig.now()), Some(Event::Other(_))));
    assert_eq!(rig.namespace.lba_count(), before);
    rig.finish();
}

#[test]
fn a_controller_that_activates_firmware_while_it_is_opened_is_waited_for() {
    let bus = Watch::new("mem=16M");
    bus.soft.with_controller(|controller| controller.activate_firmware(15 * SHORT));
    let rig = Rig::open(bus, &ControllerOptions::default());
    rig.finish();
}
