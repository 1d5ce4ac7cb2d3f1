//! Enabling and disabling that is slow, hangs or is refused; subsystem resets; retry delays.

use super::*;
use crate::Verdict;
use std::time::Duration;

const CC: u32 = 0x14;
const NSSR: u32 = 0x20;
const NSSRO: u64 = 1 << 4;

fn off(rig: &mut Rig) {
    rig.controller.write_register(CC, 4, 0x0046_0000);
}

fn on(rig: &mut Rig) {
    rig.controller.write_register(CC, 4, 0x0046_0001);
}

#[test]
fn a_subsystem_reset_is_a_reset_that_leaves_its_mark() {
    let mut rig = Rig::new("mem=1M,vwc=on");
    assert_eq!(rig.controller.read_register(0, 8) >> 36 & 1, 1);
    rig.poke(DATA, &pattern(512, 1));
    rig.ok(write(3, 1));
    rig.controller.write_register(NSSR, 4, 0x1234);
    assert_eq!(rig.csts(), 1, "only the one value resets");
    rig.controller.write_register(NSSR, 4, 0x4e56_4d65);
    assert_eq!((rig.csts(), rig.controller.read_register(CC, 4)), (NSSRO, 0));
    assert_eq!(rig.controller.read_register(NSSR, 4), 0);
    rig.controller.write_register(0x24, 4, 0x003f_003f);
    rig.controller.write_register(0x28, 8, ASQ);
    rig.controller.write_register(0x30, 8, ACQ);
    on(&mut rig);
    rig.step();
    assert_eq!(rig.csts(), NSSRO | 1, "it stays until the host clears it");
    rig.controller.write_register(0x1c, 4, NSSRO);
    off(&mut rig);
    rig.step();
    rig.enable();
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
    rig.ok(read(3, 1));
    assert_eq!(rig.peek(DATA, 512), pattern(512, 1), "a reset is no power loss");
}

#[test]
fn a_subsystem_reset_can_be_missing_or_do_nothing() {
    for tail in ["mem=1M,nssr=off", "mem=1M,faults=refuse-nssr"] {
        let mut rig = Rig::admin_only(tail);
        assert_eq!(rig.controller.read_register(0, 8) >> 36 & 1, u64::from(!tail.contains("off")));
        rig.controller.write_register(NSSR, 4, 0x4e56_4d65);
        assert_eq!(rig.csts(), 1, "{tail}");
    }
    let mut rig = Rig::admin_only("mem=1M");
    rig.controller.refuse_subsystem_reset(true);
    rig.controller.write_register(NSSR, 4, 0x4e56_4d65);
    assert_eq!(rig.csts(), 1);
}

#[test]
fn ready_can_be_late_both_ways() {
    let mut rig = Rig::admin_only("mem=1M,faults=slow-enable(3ms)@n=2+slow-disable(2ms)@n=1");
    let start = rig.ns;
    off(&mut rig);
    rig.step_at(start + 1);
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(start + 2_000_001)));
    rig.step_at(start + 2_000_000);
    assert_eq!(rig.csts(), 1);
    rig.step_at(start + 2_000_001);
    assert_eq!(rig.csts(), 0);
    on(&mut rig);
    rig.step_at(start + 3_000_000);
    rig.step_at(start + 5_999_999);
    assert_eq!(rig.csts(), 0);
    rig.step_at(start + 6_000_000);
    assert_eq!((rig.csts(), rig.controller.next_due()), (1, None));
    rig.controller.set_delays(Duration::from_millis(5), Duration::from_millis(1));
    off(&mut rig);
    rig.step_at(start + 10_000_000);
    rig.step_at(start + 11_000_000);
    assert_eq!(rig.csts(), 0);
    on(&mut rig);
    rig.step_at(start + 12_000_000);
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(start + 17_000_000)));
}

#[test]
fn a_hang_at_enable_ends_with_the_next_attempt() {
    let mut rig = Rig::admin_only("mem=1M,faults=hang-enable@n=2");
    off(&mut rig);
    rig.step();
    on(&mut rig);
    for _ in 0..10_000 {
        rig.step();
    }
    assert_eq!((rig.csts(), rig.controller.next_due()), (0, None));
    off(&mut rig);
    rig.step();
    rig.enable();
    rig.controller.hang_enable(true);
    off(&mut rig);
    rig.step();
    on(&mut rig);
    rig.step();
    assert_eq!(rig.csts(), 0);
    rig.controller.hang_enable(false);
    rig.step();
    assert_eq!(rig.csts(), 1);
}

#[test]
fn a_disable_refused_by_plan_is_mended_by_a_reset_unless_that_is_refused_too() {
    let mut rig = Rig::admin_only("mem=1M,faults=refuse-disable+refuse-reset@n=1");
    off(&mut rig);
    rig.step();
    assert_eq!(rig.csts(), 1);
    assert!(!rig.controller.reset());
    assert_eq!(rig.csts(), 1);
    assert!(rig.controller.reset());
    assert_eq!(rig.csts(), 0);
    rig.enable();
    rig.controller.refuse_reset(true);
    assert!(!rig.controller.reset());
    rig.controller.cut_power(&rig.ram, 1);
    rig.controller.restore_power();
    assert!(rig.controller.reset(), "without power it forgets that it refuses");
}

#[test]
fn a_failure_by_the_clock_comes_at_its_time() {
    let mut rig = Rig::new("mem=1M,faults=cfs@t=50ms");
    let due = rig.controller.next_due().expect("the fault");
    assert_eq!(due, Time::from_ns(50_000_000));
    rig.step_at(49_999_999);
    assert_eq!(rig.csts(), 1);
    rig.submit(1, read(0, 1));
    assert_eq!((rig.step_at(50_000_000), rig.csts()), (0, 3));
    assert!(rig.reap(1).is_empty());
}

#[test]
fn a_retry_delay_is_told_only_to_hosts_that_asked() {
    let mut rig = Rig::new("mem=1M,crdt=100ms+2s");
    rig.admin(identify(1, 0));
    assert_eq!(rig.peek(DATA + 128, 6), [1, 0, 20, 0, 0, 0]);
    let busy = Status::NAMESPACE_NOT_READY.with_crd(2);
    rig.controller
        .set_hook(move |_, qid| if qid.is_admin() { Verdict::Run } else { Verdict::Fail(busy) });
    assert_eq!(rig.io(read(0, 1)), busy.with_crd(0));
    // Host Behavior Support, ACRE.
    rig.poke(DATA, &[1]);
    assert_eq!(rig.admin(feature(9, 0x16, 0)).status, Status::SUCCESS);
    assert_eq!(rig.io(read(0, 1)), busy);
    rig.poke(DATA, &[0xff; 512]);
    assert_eq!(rig.admin(feature(0xa, 0x16, 0)).status, Status::SUCCESS);
    assert_eq!(rig.peek(DATA, 2), [1, 0]);
    rig.admin(feature(0xa, 0x16 | 1 << 8, 0));
    assert_eq!(rig.peek(DATA, 1), [0], "the default");
    assert_eq!(rig.admin(feature(0xa, 0x16 | 3 << 8, 0)).dw0, 4);
    rig.poke(DATA, &[7]);
    assert_eq!(rig.admin(feature(9, 0x16, 0)).status, Status::INVALID_FIELD_IN_COMMAND);
    off(&mut rig);
    rig.step();
    rig.enable();
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
    assert_eq!(rig.io(read(0, 1)), busy.with_crd(0), "a reset forgets it");
}

#[test]
fn what_cannot_happen_is_not_due() {
    let mut rig = Rig::new("mem=1M,faults=delay(1ms)@io+cfs@t=1s");
    rig.submit(1, read(0, 1));
    rig.step();
    let due = rig.controller.next_due().expect("the read");
    assert!(due < Time::from_ns(rig.ns + 1_000_001));
    rig.controller.fail();
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(1_000_000_000)));
    rig.controller.refuse_disable(true);
    off(&mut rig);
    rig.step();
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(1_000_000_000)));
    rig.controller.cut_power(&rig.ram, 1);
    assert_eq!(rig.controller.next_due(), None);
}
