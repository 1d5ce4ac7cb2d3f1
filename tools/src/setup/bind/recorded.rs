//! Binding again, at boot, what an earlier boot had bound.
//!
//! A boot may number drives differently, and anybody may have changed or filled them meanwhile: each device must be the
//! recorded one by its serial number, and free by the same checks as ever. One that is not is left, and the others go on.

use std::time::Duration;

use adit_driver::bus::pci::PciAddress;

use super::back::{self, Afterwards};
use super::device::{Device, VFIO_PCI};
use super::plan::{self, Terms};
use super::{Bound, bind_tasks, boot_id};
use crate::failure::{Failure, Result};
use crate::setup::args::BindArgs;
use crate::setup::inventory::{Function, Inventory};
use crate::setup::operation::Operation;
use crate::setup::record::{self, DeviceRecord, Phase};

/// How long the kernel's driver may take to read the serial number, early in a boot.
const IDENTITY: Duration = Duration::from_secs(10);

/// Binds everything that is recorded as bound; completes what was cut off on its way back.
///
/// # Errors
/// What failed, after all were tried.
pub(super) fn bind(operation: &mut Operation, args: &BindArgs) -> Result<Vec<Bound>> {
    let devices = record::addresses(operation.root);
    if devices.is_empty() {
        operation.say("nothing is recorded as bound, so there is nothing to bind")?;
    }
    let terms = Terms { together: &devices, erase: false, no_iommu: args.unsafe_no_iommu };
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
    if record.boot_id != boot_id(operation.root) {
        let device = Device::at(address);
        operation.wait(&format!("waiting for the driver of {address}"), IDENTITY, |root| {
            !device.is_there(root) || device.has_serial(root)
        });
    }
    let inventory = Inventory::read(operation.root);
    let function = plan::find(operation.root, &inventory, address).map_err(Failure::failed)?;
    if function.driver.as_deref() != Some(VFIO_PCI) {
        check_identity(function, &record)?;
    }
    let tasks = plan::tasks(operation.root, &inventory, &[address], terms)?;
    bind_tasks(operation, tasks, terms, user)
}

/// Whether it is the device that was bound, as far as can be known.
fn check_identity(function: &Function, record: &DeviceRecord) -> Result<()> {
    let name = |serial: &Option<String>| serial.clone().unwrap_or_else(|| "unknown".to_owned());
    let (found, recorded) = (&function.serial, &record.identity.serial);
    if function.ids == record.identity.ids && found.is_some() && found == recorded {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{bdf}: it may be another drive than the one that was bound (serial number {}, recorded was {}), so it was left \
         alone; bind it with 'adit setup bind {bdf}', or forget it with 'adit setup unbind {bdf}'",
        name(found),
        name(recorded),
        bdf = function.bdf,
    )))
}
