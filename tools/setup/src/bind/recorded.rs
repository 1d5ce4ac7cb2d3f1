//! Binds the recorded devices again at boot.
//!
//! A boot may number drives differently, and drives may have been changed or filled meanwhile. So each device
//! must match its recorded serial number and pass the usual checks. A device that fails is skipped; the others
//! continue.

use std::time::Duration;

use adit_driver::bus::pci::PciAddress;

use super::back::{self, Afterwards};
use super::plan::{self, Terms};
use super::{Bound, bind_tasks};
use crate::args::BindArgs;
use crate::device::{Device, VFIO_PCI};
use crate::failure::{Failure, Result};
use crate::inventory::Inventory;
use crate::operation::Operation;
use crate::record::{self, DeviceRecord, Phase};
use adit_guard::root::Root;

/// Time limit for the kernel's driver to show a device, early in a boot.
const DRIVER: Duration = Duration::from_secs(10);

/// Binds every device recorded as bound, and completes interrupted returns.
///
/// # Errors
/// The failures, after all devices were tried.
pub(super) fn bind(operation: &mut Operation, args: &BindArgs) -> Result<Vec<Bound>> {
    let devices = record::addresses(operation.root);
    if devices.is_empty() {
        operation.say("nothing is recorded as bound, so there is nothing to bind")?;
    }
    let terms = Terms {
        together: &devices,
        erase: false,
        unseen: false,
        no_iommu: args.unsafe_no_iommu,
        with_group: args.with_group,
    };
    let mut bound = Vec::new();
    let mut failures = Vec::new();
    for &device in &devices {
        if operation.is_interrupted() {
            failures.push(Failure::stopped("interrupted; the rest was not looked at"));
            break;
        }
        match bind_one(operation, device, terms, args.user.as_deref()) {
            Ok(one) => bound.extend(one),
            Err(failure) => failures.push(failure),
        }
    }
    Failure::all(failures).map_or(Ok(bound), Err)
}

fn bind_one(
    operation: &mut Operation,
    address: PciAddress,
    terms: Terms,
    user: Option<&str>,
) -> Result<Vec<Bound>> {
    let Some(mut record) = record::load(operation.root, address)? else { return Ok(Vec::new()) };
    if record.phase != Phase::Bound {
        operation.say(format!("{address} was never bound, or on its way back: it goes back"))?;
        back::give_back(operation, &mut record, Afterwards::Forget)?;
        return Ok(Vec::new());
    }
    let device = Device::at(address);
    await_driver(operation, device, &record);
    if device.driver(operation.root).as_deref() != Some(VFIO_PCI) {
        check_identity(operation.root, device, &record)?;
    }
    let inventory = Inventory::read(operation.root);
    let tasks = plan::tasks(operation.root, &inventory, &[address], terms)?;
    bind_tasks(operation, tasks, terms, user)
}

/// Waits until the kernel's driver shows as much as when the device was bound; early in a boot it is still
/// scanning.
fn await_driver(operation: &mut Operation, device: Device, record: &DeviceRecord) {
    let count = record.identity.namespaces.len();
    operation.wait(&format!("waiting for the driver of {device}"), DRIVER, |root| {
        let is_shown = device.serial(root).is_some() && device.block_devices(root).len() >= count;
        is_shown || !device.is_there(root) || device.driver(root).as_deref() == Some(VFIO_PCI)
    });
}

/// Checks as far as possible that it is the recorded device. Reads the device itself, because the inventory
/// falls back to the record.
fn check_identity(root: &Root, device: Device, record: &DeviceRecord) -> Result<()> {
    if !device.is_there(root) {
        return Err(Failure::failed(format!(
            "{device}: it was bound, and is not in the machine any more; 'adit setup unbind {device}' forgets it"
        )));
    }
    let name = |serial: &Option<String>| serial.clone().unwrap_or_else(|| "unknown".to_owned());
    let (found, recorded) = (&device.serial(root), &record.identity.serial);
    let is_same = device.ids(root).as_ref() == Some(&record.identity.ids) && found == recorded;
    if is_same && found.is_some() {
        return check_namespaces(root, device, record);
    }
    Err(Failure::failed(format!(
        "{device}: it may be another drive than the one that was bound (serial number {}, recorded was {}), so it was left \
         alone; bind it with 'adit setup bind {device}', or forget it with 'adit setup unbind {device}'",
        name(found),
        name(recorded),
    )))
}

/// Checks that as many namespaces are visible as recorded; hidden ones could not be inspected.
fn check_namespaces(root: &Root, device: Device, record: &DeviceRecord) -> Result<()> {
    let (shown, recorded) = (device.block_devices(root), &record.identity.namespaces);
    if shown.len() >= recorded.len() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{device}: it shows {} of its {} namespaces, so it was left alone; 'dmesg' may say why",
        shown.len(),
        recorded.len()
    )))
}
