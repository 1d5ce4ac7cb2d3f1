//! `unbind` and `restore`: choose the devices to return, and keep the failure of one from affecting the others.

use adit_driver::bus::pci::PciAddress;

use super::back::{self, Afterwards, Returned};
use super::no_iommu;
use crate::args::UnbindArgs;
use crate::device::{Device, VFIO_PCI};
use crate::failure::{Failure, Result};
use crate::grant;
use crate::inventory::Inventory;
use crate::operation::{self, Operation};
use crate::record::{self, DeviceRecord};
use adit_guard::disk::Process;
use adit_guard::root::Root;

/// Returns the named devices, or all. If one of the named devices cannot be returned, none is.
///
/// # Errors
/// The obstacles, or the failures after all were tried.
pub(super) fn unbind(operation: &mut Operation, args: &UnbindArgs) -> Result<Vec<Returned>> {
    let root = operation.root;
    let mut devices = args.devices.clone();
    devices.sort_unstable();
    devices.dedup();
    let mut reasons = Vec::new();
    for &device in &devices {
        let against = match record::load(root, device)? {
            None => Some(unrecorded(root, device)),
            Some(record) => held(root, &record),
        };
        reasons.extend(against);
    }
    if !reasons.is_empty() {
        return Err(operation::refusal(&reasons));
    }
    if args.all {
        devices = record::addresses(root);
    }
    if devices.is_empty() {
        operation.say("nothing is recorded as bound, so there is nothing to give back")?;
    }
    let (returned, mut failures) = return_all(operation, &devices);
    failures.extend(no_iommu::put_back_if_unused(operation).err());
    Failure::all(failures).map_or(Ok(returned), Err)
}

/// Undoes all changes made by `adit setup`.
///
/// # Errors
/// The failures, after everything was tried.
pub(super) fn restore(operation: &mut Operation) -> Result<Vec<Returned>> {
    let devices = record::addresses(operation.root);
    let (returned, mut failures) = return_all(operation, &devices);
    let mut others = false;
    let mut note = |result: Result<bool>| match result {
        Ok(was) => others |= was,
        Err(failure) => failures.push(failure),
    };
    for fragment in record::fragments(operation.root) {
        note(operation.change(fragment).map(|()| true));
    }
    // Grants left over belong to devices bound by hand.
    note(grant::withdraw_all(operation));
    note(no_iommu::put_back_if_unused(operation));
    if let Some(failure) = Failure::all(failures) {
        return Err(failure);
    }
    if returned.is_empty() && !others {
        operation.say("nothing is recorded, so there is nothing to bring back")?;
    }
    Ok(returned)
}

fn return_all(operation: &mut Operation, devices: &[PciAddress]) -> (Vec<Returned>, Vec<Failure>) {
    let mut returned = Vec::new();
    let mut failures = Vec::new();
    for &device in devices {
        if operation.is_interrupted() {
            failures.push(Failure::stopped("interrupted; 'adit setup restore' completes it"));
            break;
        }
        match return_one(operation, device) {
            Ok(one) => returned.extend(one),
            Err(failure) => failures.push(failure),
        }
        if operation.is_stuck() {
            failures.push(Failure::failed(
                "nothing more was tried: once the kernel has finished, 'adit setup restore' completes it",
            ));
            break;
        }
    }
    (returned, failures)
}

fn return_one(operation: &mut Operation, device: PciAddress) -> Result<Option<Returned>> {
    let root = operation.root;
    let Some(mut record) = record::load(root, device)? else { return Ok(None) };
    if !Device::any(root) {
        return Err(Failure::failed(format!(
            "{device}: no PCI device can be seen at all; in a container, run this on the host"
        )));
    }
    if let Some(reason) = held(root, &record) {
        return Err(Failure::failed(reason));
    }
    let one = back::give_back(operation, &mut record, Afterwards::Forget)?;
    operation.say(one.sentence(operation.is_dry()))?;
    Ok(Some(one))
}

/// Returns why a bound device cannot go: vfio-pci would wait in the kernel indefinitely for its users. A device
/// that another tool has bound since the boot stays bound, so its users do not matter.
fn held(root: &Root, record: &DeviceRecord) -> Option<String> {
    if !record.is_of_this_boot(root) {
        return None;
    }
    let device = &record.bdf;
    let inventory = Inventory::read(root);
    let function = inventory.controllers.iter().find(|function| function.bdf == *device)?;
    if function.driver.as_deref() != Some(VFIO_PCI) || function.open_by.is_empty() {
        return None;
    }
    let who = |process: &Process| format!("{} (pid {})", process.name, process.pid);
    let who: Vec<String> = function.open_by.iter().map(who).collect();
    Some(format!("{device}: in use by {}; end that first, then run this again", who.join(", ")))
}

/// Returns why a device without a record cannot be given back.
fn unrecorded(root: &Root, address: PciAddress) -> String {
    let device = Device::at(address);
    if device.driver(root).as_deref() == Some(VFIO_PCI) {
        let directory = format!("/sys/bus/pci/devices/{address}");
        return format!(
            "{address}: it is bound to vfio-pci, but not by 'adit setup', which has recorded nothing to go back to; by hand, \
             as root: echo > {directory}/driver_override; echo {address} > {directory}/driver/unbind; \
             echo {address} > /sys/bus/pci/drivers_probe"
        );
    }
    let recorded = record::addresses(root);
    let recorded: Vec<String> = recorded.iter().map(ToString::to_string).collect();
    let recorded = if recorded.is_empty() { "nothing".to_owned() } else { recorded.join(", ") };
    format!("{address}: 'adit setup' has not bound it; recorded as bound: {recorded}")
}
