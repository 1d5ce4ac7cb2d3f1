//! Shadow doorbells.

use super::*;

const SHADOW: u64 = DATA + 0x10_0000;
const EVENTS: u64 = DATA + 0x10_1000;

fn configure() -> Cmd {
    Cmd::new(0x7c).prp(SHADOW, EVENTS)
}

#[test]
fn tails_and_heads_come_from_the_shadow() {
    for dstrd in [0, 1] {
        let mut rig = Rig::admin_only(&format!("mem=1M,dstrd={dstrd}"));
        assert_eq!(rig.admin(configure()).status, Status::SUCCESS);
        rig.add_queue(1, IO_SQ, IO_CQ, 4);
        let slot = |index: u64| index * (4 << dstrd);
        for turn in 1..=9u32 {
            rig.post(1, read(0, 1));
            let tail = rig.rings[&1].tail;
            rig.poke(SHADOW + slot(2), &tail.to_le_bytes());
            rig.step();
            assert!(rig.take_completion(1).is_some(), "turn {turn}");
            let head = rig.rings[&1].head;
            rig.poke(SHADOW + slot(3), &head.to_le_bytes());
            rig.step();
            let behind = tail.wrapping_sub(1);
            assert_eq!(rig.peek_u32(EVENTS + slot(2)), behind, "it looks anyway: no ring");
        }
    }
}

#[test]
fn the_admin_queue_stays_with_its_doorbell() {
    let mut rig = Rig::admin_only("mem=1M");
    assert_eq!(rig.admin(configure()).status, Status::SUCCESS);
    assert_eq!(rig.admin(identify(1, 0)).status, Status::SUCCESS);
}

#[test]
fn a_controller_that_sleeps_wants_the_ring_it_asked_for() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.controller.poll_shadow(false);
    assert_eq!(rig.admin(configure()).status, Status::SUCCESS);
    rig.add_queue(1, IO_SQ, IO_CQ, 8);
    rig.step();
    rig.post(1, read(0, 1));
    rig.poke(SHADOW + 8, &1u32.to_le_bytes());
    assert_eq!(rig.step(), 0);
    rig.ring_doorbell(2, 1);
    assert_eq!(rig.step(), 1);
    assert_eq!(rig.peek_u32(EVENTS + 8), 1);
    rig.controller.poll_shadow(true);
    rig.post(1, read(0, 1));
    rig.poke(SHADOW + 8, &2u32.to_le_bytes());
    assert_eq!(rig.step(), 1, "awake again");
    rig.controller.poll_shadow(false);
    rig.step();
    assert_eq!(rig.peek_u32(EVENTS + 8), 2, "asks before it sleeps");
}

#[test]
fn a_full_completion_queue_is_emptied_through_the_shadow() {
    let mut rig = Rig::admin_only("mem=1M");
    assert_eq!(rig.admin(configure()).status, Status::SUCCESS);
    rig.add_queue(1, IO_SQ, IO_CQ, 4);
    rig.post(1, read(0, 1));
    rig.post(1, read(0, 1));
    rig.post(1, read(0, 1));
    rig.poke(SHADOW + 8, &3u32.to_le_bytes());
    assert_eq!(rig.step(), 3);
    rig.post(1, read(0, 1));
    rig.poke(SHADOW + 8, &0u32.to_le_bytes());
    assert_eq!(rig.step(), 0);
    rig.poke(SHADOW + 12, &2u32.to_le_bytes());
    assert_eq!(rig.step(), 1);
}

#[test]
fn bad_buffers_and_missing_support_are_refused() {
    let mut rig = Rig::admin_only("mem=1M");
    let status = |rig: &mut Rig, a, b| rig.admin(Cmd::new(0x7c).prp(a, b)).status;
    let invalid = Status::INVALID_FIELD_IN_COMMAND;
    assert_eq!(status(&mut rig, SHADOW + 8, EVENTS), invalid);
    assert_eq!(status(&mut rig, SHADOW, EVENTS + 8), invalid);
    assert_eq!(status(&mut rig, SHADOW, 0x1000), Status::DATA_TRANSFER_ERROR);
    let mut rig = Rig::admin_only("mem=1M,dbbuf=off");
    assert_eq!(status(&mut rig, SHADOW, EVENTS), Status::INVALID_COMMAND_OPCODE);
    rig.admin(identify(1, 0));
    assert_eq!(rig.peek(DATA + 257, 1)[0] & 1, 0);
}
