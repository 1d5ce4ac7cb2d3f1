//! Tests `bind`, `unbind` and `restore` on a simulated machine.

mod failures;
mod groups;
mod killed;
mod recorded;
mod refusals;
mod returns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;

use super::{Bound, BoundState, back, bind_on};
use crate::args::{BindArgs, ChangeArgs, UnbindArgs};
use crate::change::Change;
use crate::failure::Result;
use crate::simulated::{Drive, Fault, Killed, World};

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";

/// Files and links with their contents.
type Files = BTreeMap<PathBuf, String>;

/// Two drives in separate groups, one with two namespaces.
fn two_drives() -> Vec<Drive> {
    vec![Drive::new(A, 12), Drive { namespaces: 2, ..Drive::new(B, 13) }]
}

fn bind_args(devices: &[&str]) -> BindArgs {
    BindArgs {
        devices: devices.iter().map(|bdf| bdf.parse().expect("an address")).collect(),
        recorded: false,
        user: None,
        force_erase_signature: false,
        unsafe_no_iommu: false,
        with_group: false,
        change: ChangeArgs::default(),
    }
}

fn recorded_args() -> BindArgs {
    BindArgs { recorded: true, ..bind_args(&[]) }
}

fn unbind_args(devices: &[&str]) -> UnbindArgs {
    UnbindArgs {
        devices: bind_args(devices).devices,
        all: devices.is_empty(),
        change: ChangeArgs::default(),
    }
}

/// A fault and the change it happens at.
type Blow = Option<(usize, Fault)>;

fn bind(
    world: &mut World,
    devices: &[&str],
    blow: Blow,
) -> std::result::Result<Result<Vec<Bound>>, Killed> {
    bind_with(world, &bind_args(devices), blow)
}

fn bind_with(
    world: &mut World,
    args: &BindArgs,
    blow: Blow,
) -> std::result::Result<Result<Vec<Bound>>, Killed> {
    world.run(blow, |operation| bind_on(operation, args))
}

fn unbind(
    world: &mut World,
    devices: &[&str],
    blow: Blow,
) -> std::result::Result<Result<Vec<back::Returned>>, Killed> {
    world.run(blow, |operation| super::restore::unbind(operation, &unbind_args(devices)))
}

fn restore(
    world: &mut World,
    blow: Blow,
) -> std::result::Result<Result<Vec<back::Returned>>, Killed> {
    world.run(blow, super::restore::restore)
}

/// Requires success.
fn done<T>(ended: std::result::Result<Result<T>, Killed>) -> T {
    ended.expect("not killed").expect("no failure")
}

/// Requires a failure and returns its message.
fn failure<T: Debug>(ended: std::result::Result<Result<T>, Killed>) -> String {
    ended.expect("not killed").expect_err("a failure").to_string()
}

/// Returns a device's driver.
fn driver(world: &World, bdf: &str) -> Option<String> {
    world.root.link_name(format!("/sys/bus/pci/devices/{bdf}/driver"))
}

/// Returns the changes of the last run as shown to the user.
fn told(world: &World) -> Vec<String> {
    world.kernel.made().iter().map(Change::to_string).collect()
}

/// Asserts that nothing differs from `before`; `what` describes the case.
fn same(world: &World, before: &Files, what: impl Debug) {
    let after = world.snapshot();
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).filter(differs).collect();
    assert!(paths.is_empty(), "{what:?}: {paths:?} are not as they were");
}

#[test]
fn a_drive_is_bound_step_by_step_with_its_record_first() {
    let mut world = World::new(&two_drives(), 1);
    let bound = done(bind(&mut world, &[A], None));
    assert_eq!(
        told(&world),
        [
            "modprobe vfio-pci",
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
            "echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override",
            "echo 0000:01:00.0 > /sys/bus/pci/devices/0000:01:00.0/driver/unbind",
            "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe",
            "write /var/lib/adit/setup/devices/0000:01:00.0.json",
        ]
    );
    let expected = Bound {
        bdf: A.into(),
        target: "vfio:0000:01:00.0".into(),
        state: BoundState::Bound,
        user: None,
    };
    assert_eq!(bound, [expected]);
    assert_eq!(driver(&world, A).as_deref(), Some("vfio-pci"));
    assert_eq!(driver(&world, B).as_deref(), Some("nvme"));
    assert!(world.root.exists("/dev/vfio/12"));
}

#[test]
fn a_drive_goes_back_step_by_step_with_its_record_last() {
    let mut world = World::new(&two_drives(), 2);
    let before = world.snapshot();
    done(bind(&mut world, &[B], None));
    let returned = done(unbind(&mut world, &[B], None));
    assert_eq!(
        told(&world),
        [
            "write /var/lib/adit/setup/devices/0000:02:00.0.json",
            "echo > /sys/bus/pci/devices/0000:02:00.0/driver_override",
            "echo 0000:02:00.0 > /sys/bus/pci/devices/0000:02:00.0/driver/unbind",
            "echo 0000:02:00.0 > /sys/bus/pci/drivers/nvme/bind",
            "rm /var/lib/adit/setup/devices/0000:02:00.0.json",
        ]
    );
    assert_eq!(returned[0].sentence(false), "0000:02:00.0 is back: driver nvme, nvme1n1, nvme1n2");
    same(&world, &before, "");
}

#[test]
fn what_is_bound_already_stays_so() {
    let mut world = World::new(&two_drives(), 3);
    done(bind(&mut world, &[A], None));
    let again = done(bind(&mut world, &[A, A], None));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].state, BoundState::AlreadyBound);
    assert_eq!(told(&world), [""; 0]);
}

#[test]
fn what_others_have_bound_is_left_to_them() {
    let mut world = World::new(&two_drives(), 4);
    take_by_hand(&mut world, A, "vfio-pci");
    let before = world.snapshot();
    let bound = done(bind(&mut world, &[A], None));
    assert_eq!(bound[0].state, BoundState::BoundByOthers);
    same(&world, &before, "");
    let why = failure(unbind(&mut world, &[A], None));
    assert!(why.contains("but not by 'adit setup'") && why.contains("drivers_probe"), "{why}");
    done(restore(&mut world, None));
    same(&world, &before, "");
}

/// Binds a device as another tool or a user would.
fn take_by_hand(world: &mut World, bdf: &str, driver: &str) {
    let device = format!("/sys/bus/pci/devices/{bdf}");
    world.kernel.load(driver);
    world.kernel.write(&format!("{device}/driver_override"), driver);
    world.kernel.unbind_by_hand(bdf);
    world.kernel.write("/sys/bus/pci/drivers_probe", bdf);
}
