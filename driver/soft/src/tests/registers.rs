//! Properties, enabling, disabling, shutting down, resetting.

use super::*;

#[test]
fn capabilities_say_what_was_asked_for() {
    let rig = Rig::admin_only("mem=1M,mqes=64,dstrd=2,cmb=64k");
    let cap = rig.controller.read_register(0, 8);
    assert_eq!(cap & 0xffff, 63);
    assert_eq!(cap >> 32 & 0xf, 2);
    assert_eq!(cap >> 37 & 1, 1);
    assert_eq!(cap >> 57 & 1, 1);
    assert_eq!(rig.controller.read_register(4, 4), cap >> 32);
    assert_eq!(rig.controller.read_register(8, 4), 0x0002_0000);
    assert_eq!(rig.controller.read_register(0xffc, 8), 0);
}

#[test]
fn a_bad_configuration_is_fatal() {
    for (cc, aqa) in [
        (0x0046_0011, 0x003f_003f),
        (0x0046_0301, 0x003f_003f),
        (0x0056_0001, 0x003f_003f),
        (0x0047_0001, 0x003f_003f),
        (0x0046_0801, 0x003f_003f),
        (0x0046_0001, 0x0000_003f),
        (0x0046_0001, 0x003f_0000),
    ] {
        let mut rig = Rig::admin_only("mem=1M");
        rig.controller.write_register(0x14, 4, 0);
        rig.step();
        assert_eq!(rig.csts(), 0);
        rig.controller.write_register(0x24, 4, aqa);
        rig.controller.write_register(0x14, 4, cc);
        rig.step();
        assert_eq!(rig.csts(), 2, "CC {cc:#x} AQA {aqa:#x}");
        rig.controller.write_register(0x14, 4, 0);
        rig.step();
        rig.enable();
    }
}

#[test]
fn disabling_forgets_queues_and_commands() {
    let mut rig = Rig::new("mem=1M");
    rig.submit(1, read(0, 1));
    rig.controller.write_register(0x14, 4, 0x0046_0000);
    assert_eq!(rig.step(), 0);
    assert_eq!(rig.csts(), 0);
    rig.enable();
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
    rig.ok(read(0, 1));
}

#[test]
fn a_disable_right_before_an_enable_is_not_missed() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.write_register(0x14, 4, 0x0046_0000);
    rig.enable();
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
}

#[test]
fn a_controller_told_to_can_stay_ready() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.refuse_disable(true);
    rig.controller.write_register(0x14, 4, 0x0046_0000);
    rig.step();
    assert_eq!(rig.csts(), 1);
    rig.controller.reset();
    assert_eq!((rig.csts(), rig.controller.read_register(0x28, 8)), (0, 0));
    rig.enable();
}

#[test]
fn shutdown_completes_and_stops_commands() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.write_register(0x14, 4, 0x0046_4001);
    rig.step();
    assert_eq!(rig.csts() >> 2 & 3, 2);
    rig.submit(1, read(0, 1));
    assert_eq!(rig.step(), 0);
    rig.controller.write_register(0x14, 4, 0);
    rig.step();
    rig.enable();
}

#[test]
fn data_outlives_a_reset_in_the_middle_of_work() {
    let mut rig = Rig::new("mem=1M");
    rig.poke(DATA, &pattern(512, 1));
    rig.ok(write(3, 1));
    rig.submit(1, read(0, 1));
    rig.controller.reset();
    assert_eq!(rig.step(), 0);
    rig.enable();
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
    rig.poke(DATA, &[0; 512]);
    rig.ok(read(3, 1));
    assert_eq!(rig.peek(DATA, 512), pattern(512, 1));
}

#[test]
fn queue_memory_that_is_not_there_is_fatal() {
    let mut rig = Rig::new("mem=1M");
    let create = Cmd::new(5).with(10, 0x003f_0002).with(11, 1).prp(0x1000, 0);
    assert_eq!(rig.admin(create).status, Status::SUCCESS);
    let create = Cmd::new(1).with(10, 0x003f_0002).with(11, 2 << 16 | 1).prp(0x2000, 0);
    assert_eq!(rig.admin(create).status, Status::SUCCESS);
    rig.ring_doorbell(4, 1);
    rig.step();
    assert_eq!(rig.csts(), 3);
}

#[test]
fn the_cmb_shows_only_where_the_host_enabled_it() {
    let mut rig = Rig::admin_only("mem=1M,cmb=64k");
    assert_eq!(rig.controller.read_register(0x3c, 4), 0);
    rig.controller.write_register(0x50, 8, 1);
    assert_eq!(rig.controller.read_register(0x38, 4) & 7, 2);
    assert_eq!(rig.controller.read_register(0x3c, 4), 16 << 12 | 0x1f);
    rig.controller.write_register(0x50, 8, 0xffff_ffff_ffff_f003);
    assert_eq!(rig.controller.read_register(0x58, 4), 1);
    rig.controller.write_register(0x50, 8, 0x1_0000_0003);
    assert_eq!(rig.controller.read_register(0x58, 4), 0);
}

#[test]
fn a_submission_queue_and_data_in_the_cmb_work() {
    const CMB: u64 = 0x1_0000_0000;
    let mut rig = Rig::admin_only("mem=1M,cmb=64k");
    rig.controller.write_register(0x50, 8, CMB | 3);
    let size = 0x003f_0001;
    let create = Cmd::new(5).with(10, size).with(11, 1).prp(IO_CQ, 0);
    assert_eq!(rig.admin(create).status, Status::SUCCESS);
    let create = Cmd::new(1).with(10, size).with(11, 1 << 16 | 1).prp(CMB, 0);
    assert_eq!(rig.admin(create).status, Status::SUCCESS);
    // The host writes the CMB through its BAR.
    let command = write(0, 1).prp(CMB + 0x2004, 0).with(0, 0x0009_0001);
    let bytes: Vec<u8> = command.0.iter().flat_map(|dword| dword.to_le_bytes()).collect();
    let cmb = rig.controller.cmb().cloned().expect("CMB");
    cmb.write(0, &bytes);
    cmb.write(0x2004, &pattern(512, 7));
    rig.track(1, CMB, IO_CQ, 64);
    rig.ring_doorbell(2, 1);
    rig.step();
    assert_eq!(rig.reap(1)[0], Done { dw0: 0, sqhd: 1, sqid: 1, cid: 9, status: Status::SUCCESS });
    let read = read(0, 1).with(0, 0x000a_0002);
    let bytes: Vec<u8> = read.0.iter().flat_map(|dword| dword.to_le_bytes()).collect();
    cmb.write(64, &bytes);
    rig.ring_doorbell(2, 2);
    rig.step();
    assert_eq!(rig.reap(1)[0].cid, 10);
    assert_eq!(rig.peek(DATA, 512), pattern(512, 7));
}
