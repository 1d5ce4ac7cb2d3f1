//! Gives a device back: from any state a run or a crash left it in, to the recorded one.
//!
//! Undoes only our own changes: the `driver_override` if it still is `vfio-pci`, the driver if it still is
//! `vfio-pci`, the owner of its file; and only if the record is of this boot. A device that the kernel's driver
//! has again (after a reboot), or that another tool has taken since, is left alone. The record is removed last,
//! so the next `adit setup restore` completes an interrupted run.

use std::time::Duration;

use serde::Serialize;

use crate::change::Change;
use crate::device::{Device, VFIO_PCI, driver_directory};
use crate::failure::{Failure, Result};
use crate::grant;
use crate::operation::Operation;
use crate::record::{DeviceRecord, Phase};

/// Time limit for a driver to show its block devices again.
const BLOCK_DEVICES: Duration = Duration::from_secs(60);

/// The result for one device.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Returned {
    bdf: String,
    state: ReturnState,
    driver: Option<String>,
    /// Its block devices.
    namespaces: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ReturnState {
    /// In its state from before it was bound.
    Restored,
    /// With a driver that another tool or user gave it.
    LeftAlone,
    /// Not in the machine.
    Gone,
}

impl Returned {
    /// Describes its state, or the state after a dry run.
    pub(super) fn sentence(&self, dry: bool) -> String {
        let Returned { bdf, driver, namespaces, .. } = self;
        let is = if dry { "would be" } else { "is" };
        let driver = driver.as_deref().unwrap_or("none");
        match self.state {
            ReturnState::Restored if namespaces.is_empty() => {
                format!("{bdf} {is} back: driver {driver}")
            }
            ReturnState::Restored => {
                format!("{bdf} {is} back: driver {driver}, {}", namespaces.join(", "))
            }
            ReturnState::LeftAlone => format!("{bdf} {is} left alone, and its record removed"),
            ReturnState::Gone => format!("{bdf} {is} forgotten"),
        }
    }
}

/// The fate of the record once the device is back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Afterwards<'a> {
    /// The record and the grant are removed.
    Forget,
    /// This earlier record is kept, so that the next boot tries again.
    Keep(&'a DeviceRecord),
}

/// Gives the device of `record` back.
///
/// # Errors
/// When a change fails or the driver does not take the device; the record stays.
pub(super) fn give_back(
    operation: &mut Operation,
    record: &mut DeviceRecord,
    afterwards: Afterwards,
) -> Result<Returned> {
    let device = Device::at(record.address());
    if record.phase == Phase::Bound {
        record.phase = Phase::Unbinding;
        operation.change(record.stored())?;
    }
    let granted_before = match afterwards {
        Afterwards::Forget => None,
        Afterwards::Keep(before) => before.grant.as_ref(),
    };
    if record.grant.as_ref() != granted_before || granted_before.is_none() {
        grant::take_back(operation, record.address(), Some(record))?;
    }
    let state = if is_same(operation, device, record) {
        detach(operation, device, record)?;
        attach(operation, device, record)?
    } else {
        operation
            .say(format!("{device} is gone or another device: there is nothing to bring back"))?;
        ReturnState::Gone
    };
    let namespaces = device.block_devices(operation.root);
    let driver = driver_now(operation, device, record);
    operation.change(match afterwards {
        Afterwards::Forget => record.forgotten(),
        Afterwards::Keep(before) => {
            DeviceRecord { grant: record.grant.clone(), ..before.clone() }.stored()
        }
    })?;
    Ok(Returned { bdf: record.bdf.clone(), state, driver, namespaces })
}

/// Returns whether the recorded device is still in the machine; another device at its address is not ours.
fn is_same(operation: &Operation, device: Device, record: &DeviceRecord) -> bool {
    device.ids(operation.root).as_ref() == Some(&record.identity.ids)
}

/// Unbinds it from vfio-pci and clears the override.
fn detach(operation: &mut Operation, device: Device, record: &DeviceRecord) -> Result<()> {
    if !record.is_of_this_boot(operation.root) {
        return Ok(());
    }
    if device.driver_override(operation.root).as_deref() == Some(VFIO_PCI) {
        operation.change(device.set_override(record.before.driver_override.as_deref()))?;
    }
    if device.driver(operation.root).as_deref() == Some(VFIO_PCI) {
        operation.change(device.unbind())?;
    }
    Ok(())
}

/// Binds it to its previous driver, unless it has a driver.
fn attach(operation: &mut Operation, device: Device, record: &DeviceRecord) -> Result<ReturnState> {
    let now = device.driver(operation.root);
    // In a dry run vfio-pci still has it.
    let is_ours = now.as_deref() == Some(VFIO_PCI) && record.is_of_this_boot(operation.root);
    let is_free = now.is_none() || is_ours;
    match (&record.before.driver, now) {
        (Some(before), _) if is_free => rebind(operation, device, before)?,
        (before, Some(now)) if !is_free && before.as_ref() != Some(&now) => {
            operation.say(format!("{device} has the driver {now} by now, and keeps it"))?;
            return Ok(ReturnState::LeftAlone);
        }
        _ => {}
    }
    await_block_devices(operation, device, record)?;
    Ok(ReturnState::Restored)
}

fn rebind(operation: &mut Operation, device: Device, driver: &str) -> Result<()> {
    let other = device.driver_override(operation.root).filter(|name| name != VFIO_PCI);
    if let Some(other) = other {
        return Err(Failure::failed(format!(
            "{device} cannot go back to {driver}: another tool has set its driver_override to {other}; \
             lift that with 'echo > /sys/bus/pci/devices/{device}/driver_override', then run 'adit setup restore'"
        )));
    }
    if !operation.root.exists(driver_directory(driver)) {
        operation.change(Change::run("modprobe", &[driver]))?;
    }
    operation.change(device.bind_to(driver))?;
    let is_back = |device: Device, root: &_| device.driver(root).as_deref() == Some(driver);
    let came = operation
        .wait(&format!("waiting for {driver}"), BLOCK_DEVICES, |root| is_back(device, root));
    if came {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{device} did not go back to {driver}; 'dmesg' may say why, then run 'adit setup restore' again"
    )))
}

/// Waits for as many namespaces as before. After a reboot nothing was rebound, so there is nothing to wait for.
fn await_block_devices(
    operation: &mut Operation,
    device: Device,
    record: &DeviceRecord,
) -> Result<()> {
    let names = &record.identity.namespaces;
    if names.is_empty() || !record.is_of_this_boot(operation.root) {
        return Ok(());
    }
    let what = format!("waiting for {}", names.join(", "));
    let came = operation
        .wait(&what, BLOCK_DEVICES, |root| device.block_devices(root).len() >= names.len());
    if came {
        return Ok(());
    }
    let there = device.block_devices(operation.root);
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    operation.say(format!(
        "warning: {device} has its driver back, but not all of its block devices: there were {}, there is {there}; \
         'dmesg' may say why",
        names.join(", ")
    ))
}

/// Returns its final driver; in a dry run, the driver it would have.
fn driver_now(operation: &Operation, device: Device, record: &DeviceRecord) -> Option<String> {
    let now = device.driver(operation.root);
    let is_ours = now.as_deref() == Some(VFIO_PCI) && record.is_of_this_boot(operation.root);
    if operation.is_dry() && is_ours {
        return record.before.driver.clone();
    }
    now
}
