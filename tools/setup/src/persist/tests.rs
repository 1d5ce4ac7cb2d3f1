//! Tests installing and removing the unit on a simulated machine.

use super::*;
use crate::simulated::{Fault, World};

const PROGRAM: &str = "/usr/local/bin/adit";

/// The ways a process can be killed at a change.
const KILLS: [Fault; 3] = [Fault::KilledBefore, Fault::KilledAmid, Fault::KilledAfter];

/// A machine booted by systemd, with a record.
fn machine() -> World {
    let world = World::new(&[], 1);
    world.kernel.put(format!("{SYSTEMD}/x").as_ref(), "");
    world.kernel.put(format!("{STATE}/devices/0000:01:00.0.json").as_ref(), "{}");
    world
}

fn persist(world: &mut World, blow: Option<(usize, Fault)>) -> Option<Result<Outcome>> {
    world.run(blow, |operation| begin(operation, devices(operation.root)?, PROGRAM)).ok()
}

fn unpersist(world: &mut World, blow: Option<(usize, Fault)>) -> Option<Result<Outcome>> {
    world.run(blow, end).ok()
}

fn told(world: &World) -> Vec<String> {
    world.kernel.made().iter().map(Change::to_string).collect()
}

#[test]
fn the_unit_is_installed_enabled_and_removed_without_a_trace() {
    let mut world = machine();
    let before = world.snapshot();
    let outcome = persist(&mut world, None).expect("not killed").expect("no failure");
    assert_eq!(outcome.devices, ["0000:01:00.0"]);
    assert_eq!(
        told(&world),
        [
            format!("write {MODULES}"),
            format!("write {UNIT}"),
            format!("ln -s {UNIT} {ENABLED}"),
            "systemctl daemon-reload".into(),
        ]
    );
    let unit = world.root.text(UNIT).expect("a unit");
    assert!(unit.contains("\nExecStart=/usr/local/bin/adit setup bind --recorded\n"), "{unit}");
    persist(&mut world, None).expect("not killed").expect("no failure");
    assert_eq!(told(&world), [""; 0], "it is there already");
    let outcome = unpersist(&mut world, None).expect("not killed").expect("no failure");
    assert_eq!(outcome, Outcome { persistent: false, devices: vec![] });
    assert_eq!(
        told(&world),
        [
            format!("rm {ENABLED}"),
            format!("rm {UNIT}"),
            format!("rm {MODULES}"),
            "systemctl daemon-reload".into(),
        ]
    );
    assert_eq!(world.snapshot(), before);
    unpersist(&mut world, None).expect("not killed").expect("no failure");
    assert_eq!(told(&world), [""; 0], "there is nothing");
}

#[test]
fn whatever_kills_it_is_repaired_by_the_next_run() {
    let before = machine().snapshot();
    for at in 0..4 {
        for kill in KILLS {
            let mut world = machine();
            assert!(persist(&mut world, Some((at, kill))).is_none(), "{at} did not strike");
            unpersist(&mut world, None).expect("not killed").expect("no failure");
            assert_eq!(world.snapshot(), before, "installing, {at} {kill:?}");
            persist(&mut world, None).expect("not killed").expect("no failure");
            let whole = world.snapshot();
            assert!(unpersist(&mut world, Some((at, kill))).is_none(), "{at} did not strike");
            persist(&mut world, None).expect("not killed").expect("no failure");
            assert_eq!(world.snapshot(), whole, "removing, {at} {kill:?}");
        }
    }
}

#[test]
fn without_records_or_systemd_nothing_is_installed() {
    let mut world = machine();
    std::fs::remove_dir_all(world.root.path(SYSTEMD)).expect("removed");
    let before = world.snapshot();
    let why = persist(&mut world, None).expect("not killed").expect_err("no systemd").to_string();
    assert!(why.contains("adit setup bind --recorded"), "{why}");
    let mut bare = World::new(&[], 1);
    let why = persist(&mut bare, None).expect("not killed").expect_err("no record").to_string();
    assert!(why.contains("nothing is recorded as bound"), "{why}");
    assert_eq!(world.snapshot(), before);
}

#[test]
fn that_systemd_cannot_be_told_is_no_failure() {
    let mut world = machine();
    let fault = Fault::Refused(nix::errno::Errno::ECONNREFUSED);
    persist(&mut world, Some((3, fault))).expect("not killed").expect("no failure");
    assert!(world.root.exists(UNIT));
}
