//! Drops in every order with commands in flight; events.

use adit_driver::bus::BusEvent;
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Lba, Lid, Nsid, Qid, Status};
use adit_driver::{Buffer, Event, QueuePair};

use crate::rig::Rig;

fn held() -> (Rig, QueuePair<Buffer>) {
    let rig = Rig::new("mem=16M,ioqueues=1");
    let mut pair = rig.pair(16);
    rig.all_io(Verdict::Hold);
    for bytes in [512, 4096, 256 << 10] {
        let buffer = rig.controller.allocate(bytes).expect("buffer");
        pair.submit(rig.now(), rig.namespace.read(Lba(0), buffer)).expect("room");
    }
    rig.settle();
    (rig, pair)
}

#[test]
fn a_queue_dropped_with_commands_in_flight_is_deleted_before_their_memory_goes() {
    let (rig, pair) = held();
    let mapped = rig.bus.mapped();
    drop(pair);
    rig.settle();
    rig.bus.soft.release_held();
    assert_eq!(rig.bus.soft.dma_faults(), 0);
    assert!(rig.bus.mapped() < mapped);
    rig.controller.check().expect("in service");
    rig.clear_hook();
    let mut again = rig.pair::<Buffer>(16);
    assert_eq!(again.qid(), Qid(1));
    let buffer = rig.controller.allocate(512).expect("buffer");
    again.execute(rig.namespace.read(Lba(0), buffer)).expect("works");
    drop(again);
    rig.finish();
}

#[test]
fn a_queue_outlives_the_controllers_handle() {
    let (rig, mut pair) = held();
    let bus = rig.bus.clone();
    rig.clear_hook();
    let Rig { controller, namespace, .. } = rig;
    let buffer = controller.allocate(4096).expect("buffer");
    drop(controller);
    bus.soft.release_held();
    pair.poll(adit_driver::bus::Bus::now(&*bus), drop);
    let (buffer, _) = pair.execute(namespace.read(Lba(0), buffer)).expect("works");
    drop(pair);
    assert!(bus.take_early_unmaps().iter().all(|&bytes| bytes < 1 << 20));
    drop(buffer);
    assert_eq!((bus.mapped(), bus.soft.dma_faults()), (0, 0));
}

#[test]
fn buffers_outlive_their_queue_and_controller() {
    let (rig, pair) = held();
    let mut buffer = rig.controller.allocate(1 << 20).expect("buffer");
    let bus = rig.bus.clone();
    drop(rig);
    drop(pair);
    buffer.fill(7);
    assert_eq!(bus.mapped(), 2, "the buffer and its lists");
    drop(buffer);
    assert_eq!((bus.mapped(), bus.soft.dma_faults()), (0, 0));
}

#[test]
fn a_queue_that_the_controller_does_not_delete_is_reset_before_its_memory_goes() {
    for verdict in [Verdict::Lose, Verdict::Fail(Status::INTERNAL_ERROR)] {
        for opcode in [AdminOpcode::DELETE_IO_SQ, AdminOpcode::DELETE_IO_CQ] {
            let (rig, pair) = held();
            rig.admin(opcode, verdict);
            rig.bus.take_early_unmaps();
            rig.bounded(|| drop(pair));
            assert_eq!(rig.bus.take_early_unmaps(), [0; 0], "unmapped from an enabled controller");
            assert!(rig.controller.check().is_err());
            rig.finish();
        }
    }
}

#[test]
fn a_controller_that_is_never_shut_down_is_dropped_in_bounded_time() {
    let rig = Rig::new("mem=16M");
    rig.bus.soft.with_controller(|controller| controller.fail());
    rig.bus.lie(|offset, truth| if offset == 0x1c { truth & !0xc } else { truth });
    let bus = rig.bus.clone();
    let started = rig.now();
    drop(rig);
    assert!(adit_driver::bus::Bus::now(&*bus).since(started).as_secs() < 100);
    assert_eq!(bus.mapped(), 0);
}

#[test]
fn a_ready_bit_that_comes_back_after_shutdown_is_no_panic() {
    let rig = Rig::new("mem=16M");
    let mut disabled_reads = 0;
    let (bus, shown) = (rig.bus.clone(), rig.bus.soft.clone());
    rig.bus.lie(move |offset, truth| {
        let disabled = offset == 0x1c && adit_driver::bus::Bus::read32(&*shown, 0x14) & 1 == 0;
        disabled_reads += u32::from(disabled && truth & 1 == 0);
        if disabled_reads > 1 { truth | 1 } else { truth }
    });
    drop(rig);
    assert_eq!(bus.mapped(), 0);
}

#[test]
fn events_are_taken_once_and_asked_for_again() {
    let rig = Rig::new("mem=16M");
    for _ in 0..10 {
        assert_eq!(rig.controller.poll(rig.now()), None);
        // The namespace is not open.
        rig.bus.soft.with_controller(|controller| controller.namespace_changed(2));
        rig.settle();
        let event = rig.controller.poll(rig.now());
        assert_eq!(event, Some(Event::NamespaceRemoved { nsid: Nsid(2) }));
        assert_eq!(rig.controller.poll(rig.now()), None);
    }
    rig.finish();
}

#[test]
fn events_beyond_what_is_kept_do_not_grow_and_requests_that_fail_are_not_repeated() {
    let rig = Rig::new("mem=16M");
    rig.admin(AdminOpcode::ASYNC_EVENT_REQUEST, Verdict::Fail(Status::INTERNAL_ERROR));
    for _ in 0..100 {
        rig.bus.soft.with_controller(|controller| controller.namespace_changed(1));
        rig.settle();
        rig.controller.poll(rig.now());
        rig.controller.log_page(Lid::CHANGED_NAMESPACES, Nsid::ALL, 4096).expect("read");
    }
    rig.controller.check().expect("in service");
    rig.finish();
}

#[test]
fn bus_events_are_passed_on_in_order_and_end_the_service() {
    let rig = Rig::new("mem=16M");
    rig.bus.soft.report(BusEvent::Error);
    rig.bus.soft.report(BusEvent::RemovalRequested);
    assert_eq!(rig.controller.poll(rig.now()), Some(Event::Bus(BusEvent::Error)));
    let error = rig.controller.check().expect_err("out of service").to_string();
    assert!(error.contains("AER"), "{error}");
    assert_eq!(rig.controller.poll(rig.now()), Some(Event::Bus(BusEvent::RemovalRequested)));
    assert_eq!(rig.controller.poll(rig.now()), None);
    let error = rig.controller.recover().expect_err("it is to be closed").to_string();
    assert!(error.contains("asked for the device to be released"), "{error}");
    rig.finish();
}
