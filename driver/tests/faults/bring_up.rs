//! Opening a broken or lying controller fails with one sentence, in bounded time, and leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::bus::pci::VirtualFunction;
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Status};
use adit_driver::{Controller, ControllerOptions, Error};

use crate::rig::{Rig, Watch};

const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
const CRTO: u32 = 0x68;

/// Returns the error of opening, after checking that it was quick and left nothing.
fn refusal(bus: &Arc<Watch>) -> Error {
    let started = bus.now();
    let opened = Controller::attach(Arc::<Watch>::clone(bus), &ControllerOptions::default());
    let error = opened.expect_err("must be refused");
    let took = bus.now().since(started);
    assert!(took < Duration::from_secs(30 * 60), "{error} took {took:?}");
    assert_eq!(bus.mapped(), 0, "{error} left mappings");
    while bus.soft.step() > 0 {}
    assert_eq!(bus.soft.dma_faults(), 0, "{error}");
    error
}

fn refused_by(lie: impl FnMut(u32, u64) -> u64 + Send + 'static) -> String {
    let bus = Watch::new("mem=16M");
    bus.lie(lie);
    refusal(&bus).to_string()
}

/// Replaces the bits of `mask` of the register at `offset` by `value`.
fn instead(offset: u32, mask: u64, value: u64) -> impl FnMut(u32, u64) -> u64 + Send + 'static {
    move |at, truth| if at == offset { truth & !mask | value & mask } else { truth }
}

#[test]
fn each_register_that_cannot_be_is_one_sentence() {
    let all_ones = refused_by(|_, _| u64::MAX);
    assert!(all_ones.contains("read as all ones"), "{all_ones}");
    let zeros = refused_by(|_, _| 0);
    assert!(zeros.contains("read as zero"), "{zeros}");
    let version = refused_by(instead(VS, u64::MAX, 0));
    assert!(version.contains("NVMe version 0"), "{version}");
    let pages = refused_by(instead(CAP, 0xf << 48, 1 << 48));
    assert!(pages.contains("is 8192 bytes (CAP.MPSMIN), not 4096"), "{pages}");
    let entries = refused_by(instead(CAP, 0xffff, 0));
    assert!(entries.contains("hold one entry (CAP.MQES)"), "{entries}");
    let sets = refused_by(instead(CAP, 0xff << 37, 0));
    assert!(sets.contains("NVM command set (CAP.CSS)"), "{sets}");
}

/// The refusal of a virtual function of 0000:01:00.0 that shows `lie`.
fn virtual_refused_by(lie: impl FnMut(u32, u64) -> u64 + Send + 'static) -> String {
    let physical = "0000:01:00.0".parse().expect("an address");
    let bus = Watch::new("mem=16M");
    bus.be_virtual(VirtualFunction { physical, controller: Some("nvme3".to_owned()), number: 2 });
    bus.lie(lie);
    refusal(&bus).to_string()
}

#[test]
fn a_virtual_function_that_is_not_online_is_told_as_such() {
    // QEMU's reads as zero but for CSTS; others show their capabilities.
    let zeros = virtual_refused_by(|offset, _| if offset == CSTS { 2 } else { 0 });
    let fatal = virtual_refused_by(instead(CSTS, 3, 2));
    for said in [&zeros, &fatal] {
        assert!(said.contains("it is a virtual function that is not online: "), "{said}");
        assert!(said.contains("its physical function 0000:01:00.0 "), "{said}");
        assert!(said.contains("nvme virt-mgmt /dev/nvme3 --cntlid=C --act=9"), "{said}");
        assert!(!said.contains("power-cycle"), "{said}");
    }
    assert!(zeros.contains("read as zero") && fatal.contains("fatal status (CSTS.CFS)"));
    let physical = refused_by(instead(CSTS, 3, 2));
    assert!(physical.contains("power-cycle") && !physical.contains("online"), "{physical}");
}

#[test]
fn a_virtual_function_that_is_gone_points_to_its_physical_function() {
    let said = virtual_refused_by(|_, _| u64::MAX);
    assert!(said.contains("read as all ones"), "{said}");
    assert!(said.contains("/sys/bus/pci/devices/0000:01:00.0/sriov_numvfs"), "{said}");
    assert!(!said.contains("check the slot"), "{said}");
}

#[test]
fn a_device_without_an_address_is_reset_and_opened() {
    let bus = Watch::new("mem=16M");
    let resets = bus.clone();
    bus.lie(move |_, truth| if resets.resets() == 0 { 0 } else { truth });
    let rig = Rig::open(bus, &ControllerOptions::default());
    assert_eq!(rig.bus.resets(), 1);
    rig.finish();
}

#[test]
fn a_fatal_status_on_enable_is_said() {
    let enabled_with = |status: u64| {
        let mut enabled = false;
        let bus = Watch::new("mem=16M");
        let soft = bus.soft.clone();
        bus.lie(move |offset, truth| {
            enabled |= soft.read32(CC) & 1 == 1;
            if offset == CSTS && enabled && soft.read32(CC) & 1 == 1 { status } else { truth }
        });
        refusal(&bus).to_string()
    };
    assert!(enabled_with(2).contains("fatal status (CSTS.CFS)"));
    assert!(enabled_with(3).contains("fatal status (CSTS.CFS)"));
    assert!(enabled_with(0).contains("CSTS.RDY after CC.EN = 1"));
    assert!(enabled_with(0xffff_ffff).contains("all ones"));
}

#[test]
fn a_controller_that_never_leaves_ready_or_fatal_is_given_up_on() {
    let ready = refused_by(instead(CSTS, 1, 1));
    assert!(ready.contains("CSTS.RDY to become 0"), "{ready}");
    let fatal = refused_by(instead(CSTS, 3, 2));
    assert!(fatal.contains("fatal status"), "{fatal}");
}

#[test]
fn timeouts_of_zero_and_of_hours_are_bounded() {
    let never = |hours: bool| {
        let bus = Watch::new("mem=16M");
        bus.lie(move |offset, truth| match offset {
            CAP if hours => truth | 0xff << 24,
            CAP => truth & !(0xff << 24) & !(3 << 59),
            CRTO if hours => 0xffff_ffff,
            CRTO => 0,
            CSTS => 0,
            _ => truth,
        });
        let started = bus.now();
        refusal(&bus);
        bus.now().since(started)
    };
    assert!(never(false) >= Duration::from_millis(500));
    assert!(never(true) >= Duration::from_secs(127));
    let bus = Watch::new("mem=16M");
    bus.lie(instead(CAP, 0xff << 24, 0));
    Rig::open(bus, &ControllerOptions::default()).finish();
}

#[test]
fn a_controller_that_was_left_enabled_is_reset_first() {
    let bus = Watch::new("mem=16M");
    let options = ControllerOptions::default();
    // Bypasses the watch and leaks the handle, as a killed process would.
    std::mem::forget(Controller::attach(bus.soft.clone(), &options).expect("opened"));
    bus.soft.with_controller(|controller| controller.fail());
    let again = Controller::attach(bus, &options).expect("opened again");
    again.namespace_ids().expect("answers");
}

/// Makes a bus whose controller gives admin commands with `opcode` a `verdict`.
fn bus_with(opcode: AdminOpcode, verdict: Verdict) -> Arc<Watch> {
    let bus = Watch::new("mem=16M,vwc=on");
    bus.soft.with_controller(|controller| {
        controller.set_hook(
            move |sqe, _| {
                if sqe.admin_opcode() == opcode { verdict } else { Verdict::Run }
            },
        );
    });
    bus
}

#[test]
fn an_admin_command_that_is_lost_ends_the_start() {
    for opcode in [
        AdminOpcode::IDENTIFY,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::DOORBELL_BUFFER_CONFIG,
    ] {
        let error = refusal(&bus_with(opcode, Verdict::Lose));
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}

#[test]
fn an_admin_command_that_fails_ends_the_start_where_it_is_needed() {
    let fails = Verdict::Fail(Status::INTERNAL_ERROR);
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::SET_FEATURES] {
        let error = refusal(&bus_with(opcode, fails));
        assert!(matches!(error, Error::Status { .. }), "{error}");
    }
    let bus = bus_with(AdminOpcode::GET_FEATURES, fails);
    let rig = Rig::open(bus, &ControllerOptions::default());
    assert!(rig.controller.info().volatile_write_cache, "unknown is taken for enabled");
    rig.finish();
}

#[test]
fn shadow_doorbells_are_unmapped_only_after_the_controller_is_disabled() {
    let bus = bus_with(AdminOpcode::DOORBELL_BUFFER_CONFIG, Verdict::Lose);
    refusal(&bus);
    let early = bus.take_early_unmaps();
    assert!(early.iter().all(|&bytes| bytes == 4096), "only pages of answered commands: {early:?}");
}

#[test]
fn interrupts_of_a_device_without_vectors_are_refused_cleanly() {
    let bus = Watch::new("mem=16M");
    bus.hide_vectors();
    let options = ControllerOptions { interrupts: true, ..Default::default() };
    let error = Controller::attach(Arc::<Watch>::clone(&bus), &options).expect_err("no vectors");
    assert!(error.to_string().contains("no interrupt vectors"), "{error}");
    let early = bus.take_early_unmaps();
    assert!(early.iter().all(|&bytes| bytes == 4096), "{early:?}");
    assert_eq!(bus.mapped(), 0);
}
