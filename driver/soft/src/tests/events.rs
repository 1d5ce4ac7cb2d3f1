//! Asynchronous events.

use super::*;

const REQUEST: u8 = 0x0c;

fn log(id: u32, retains: bool) -> Cmd {
    Cmd::new(2).with(10, id | 127 << 16 | u32::from(retains) << 15).prp(DATA, 0)
}

#[test]
fn a_changed_namespace_is_reported_once_until_its_log_is_read() {
    let mut rig = Rig::admin_only("mem=1M,namespaces=2");
    rig.admin(feature(9, 11, 1 << 8));
    let first = rig.submit(0, Cmd::new(REQUEST));
    let second = rig.submit(0, Cmd::new(REQUEST));
    rig.step();
    assert!(rig.reap(0).is_empty());
    rig.controller.namespace_changed(2);
    rig.step();
    let done = rig.reap(0);
    assert_eq!((done.len(), done[0].cid, done[0].dw0), (1, first, 0x0004_0002));
    // The event is held back: its log was not read, or was read retaining the event.
    assert!(rig.controller.attach_namespace(1, false));
    rig.step();
    assert!(rig.reap(0).is_empty());
    rig.admin(log(4, true));
    rig.step();
    assert!(rig.reap(0).is_empty());
    rig.submit(0, log(4, false));
    rig.step();
    let done = rig.reap(0);
    assert_eq!((rig.peek_u32(DATA), rig.peek_u32(DATA + 4)), (1, 2));
    assert_eq!((done.len(), done[1].cid, done[1].dw0), (2, second, 0x0004_0002));
    rig.admin(log(4, false));
    assert_eq!(rig.peek_u32(DATA), 0);
}

#[test]
fn events_that_were_not_requested_are_not_reported() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.namespace_changed(1);
    rig.controller.set_temperature(400);
    rig.step();
    assert!(rig.reap(0).is_empty());
    assert!(!rig.controller.attach_namespace(9, true));
}

#[test]
fn heat_is_a_warning_and_an_event() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.admin(feature(9, 11, 2));
    rig.admin(feature(9, 4, 320));
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.set_temperature(319);
    rig.step();
    assert!(rig.reap(0).is_empty());
    rig.controller.set_temperature(321);
    rig.step();
    assert_eq!(rig.reap(0)[0].dw0, 0x0002_0101);
    rig.admin(log(2, false));
    assert_eq!(rig.peek(DATA, 3), [2, 65, 1]);
}

#[test]
fn requests_have_a_limit_and_can_be_aborted() {
    let mut rig = Rig::admin_only("mem=1M");
    let cids: Vec<u16> = (0..4).map(|_| rig.submit(0, Cmd::new(REQUEST))).collect();
    rig.step();
    let refused = rig.admin(Cmd::new(REQUEST));
    assert_eq!(refused.status, Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED);
    rig.submit(0, Cmd::new(8).with(10, u32::from(cids[2]) << 16));
    rig.step();
    let done = rig.reap(0);
    assert_eq!((done[0].cid, done[0].status), (cids[2], Status::COMMAND_ABORT_REQUESTED));
    assert_eq!((done[1].dw0, done[1].status), (0, Status::SUCCESS));
}

#[test]
fn wrong_doorbells_are_errors() {
    let mut rig = Rig::new("mem=1M");
    rig.submit(0, Cmd::new(REQUEST));
    rig.submit(0, Cmd::new(REQUEST));
    rig.ring_doorbell(2, 1000);
    rig.step();
    assert_eq!(rig.reap(0)[0].dw0, 0x0001_0100);
    rig.admin(log(1, false));
    rig.ring_doorbell(20, 1);
    rig.step();
    assert_eq!(rig.reap(0)[0].dw0, 0x0001_0000);
}

#[test]
fn each_critical_warning_is_an_event_of_its_own_kind() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.admin(feature(9, 11, 0b1101));
    for (warning, info) in [(0b1, 2), (0b100, 0), (0b1000, 0)] {
        rig.submit(0, Cmd::new(REQUEST));
        rig.controller.warn_critical(warning);
        rig.step();
        assert_eq!(rig.reap(0)[0].dw0, 0x0002_0001 | info << 8, "warning {warning:#b}");
        rig.admin(log(2, false));
        assert_eq!(rig.peek(DATA, 1), [warning]);
    }
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.warn_critical(0b10);
    rig.step();
    assert!(rig.reap(0).is_empty(), "temperature events are off");
}

#[test]
fn firmware_activation_is_announced_and_pauses_commands_until_it_is_done() {
    let mut rig = Rig::new("mem=1M");
    rig.admin(feature(9, 11, 1 << 9));
    rig.submit(0, Cmd::new(REQUEST));
    rig.step();
    let start = rig.ns;
    rig.controller.activate_firmware(std::time::Duration::from_secs(2));
    rig.submit(1, read(0, 1));
    assert_eq!(rig.step_at(start + 1), 0);
    assert_eq!(rig.reap(0)[0].dw0, 0x0003_0102);
    assert_eq!(rig.csts(), 1 | 1 << 5);
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(start + 1 + 2_000_000_000)));
    assert_eq!(rig.step_at(start + 2_000_000_000), 0);
    assert!(rig.reap(1).is_empty());
    assert_eq!(rig.step_at(start + 2_000_000_001), 1);
    assert_eq!((rig.reap(1).len(), rig.csts()), (1, 1));
    rig.admin(log(3, false));
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.activate_firmware(std::time::Duration::ZERO);
    rig.step();
    assert_eq!(rig.reap(0).len(), 1, "the log was read");
}

#[test]
fn a_log_that_belongs_to_another_event_does_not_release_one() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.admin(feature(9, 11, 1 << 9 | 1 << 8));
    rig.submit(0, Cmd::new(REQUEST));
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.namespace_changed(1);
    rig.step();
    assert_eq!(rig.reap(0).len(), 1);
    rig.admin(log(3, false));
    rig.controller.namespace_changed(1);
    rig.step();
    assert!(rig.reap(0).is_empty(), "the changed namespaces were not read");
}

#[test]
fn resizing_and_removing_a_namespace_are_reported_and_take_effect() {
    let mut rig = Rig::new("mem=1M,namespaces=2");
    rig.admin(feature(9, 11, 1 << 8));
    rig.poke(DATA, &pattern(512, 1));
    rig.ok(write(1023, 1));
    rig.submit(0, Cmd::new(REQUEST));
    rig.controller.resize_namespace(1, 1000).expect("smaller");
    rig.step();
    assert_eq!(rig.reap(0)[0].dw0, 0x0004_0002);
    assert_eq!(rig.io(read(1023, 1)), Status::LBA_OUT_OF_RANGE);
    rig.admin(log(4, false));
    assert_eq!(rig.peek_u32(DATA), 1);
    rig.admin(identify(0, 1));
    assert_eq!(rig.peek_u32(DATA), 1000);
    rig.controller.resize_namespace(1, 1024).expect("as before");
    rig.ok(read(1023, 1));
    assert_eq!(rig.peek(DATA, 512), vec![0; 512], "what was given up is gone");
    assert!(rig.controller.resize_namespace(1, 1025).is_err(), "the second namespace is there");
    assert!(rig.controller.remove_namespace(2) && !rig.controller.remove_namespace(2));
    rig.controller.resize_namespace(1, 2048).expect("all of it");
    rig.ok(read(2047, 1));
    assert_eq!(rig.io(read(0, 1).nsid(2)), Status::INVALID_FIELD_IN_COMMAND);
}
