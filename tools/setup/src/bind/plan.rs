//! Decides what `bind` does with each requested device, for all of them before any is changed.
//!
//! All obstacles are reported at once, so that one run shows everything to fix.

use adit_driver::bus::pci::PciAddress;

use crate::device::Device;
use crate::failure::Result;
use crate::inventory::{Function, Inventory, Obstacle, ObstacleKind};
use crate::operation;
use crate::record::{self, DeviceRecord, Phase};
use adit_guard::root::Root;

/// The conditions under which devices are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    /// All devices of the command; they may share IOMMU groups.
    pub(super) together: &'a [PciAddress],
    /// Whether to erase signatures.
    pub(super) erase: bool,
    /// Whether to accept drives whose contents are not visible.
    pub(super) unseen: bool,
    /// Whether to accept a missing IOMMU.
    pub(super) no_iommu: bool,
    /// Whether a grant may also open other devices of the IOMMU group.
    pub(super) with_group: bool,
}

/// The task for one device.
#[derive(Debug)]
pub(super) enum Task<'a> {
    /// Bind it.
    Take(&'a Function),
    /// Keep it: an earlier run bound it, with this record.
    Have(Box<DeviceRecord>),
    /// Report it: it was bound by other means, without a record.
    Foreign(String),
}

impl<'a> Task<'a> {
    /// Returns the function to bind, if it is to be bound.
    pub(super) fn to_take(&self) -> Option<&'a Function> {
        match self {
            Task::Take(function) => Some(function),
            Task::Have(_) | Task::Foreign(_) => None,
        }
    }
}

/// Returns the task for each of `devices`.
///
/// # Errors
/// All obstacles of all devices.
pub(super) fn tasks<'a>(
    root: &Root,
    inventory: &'a Inventory,
    devices: &[PciAddress],
    terms: Terms,
) -> Result<Vec<Task<'a>>> {
    let mut tasks = Vec::new();
    let mut reasons = Vec::new();
    for (at, &address) in devices.iter().enumerate() {
        if devices[..at].contains(&address) {
            continue;
        }
        match task(root, inventory, address, terms) {
            Ok(task) => tasks.push(task),
            Err(found) => reasons.extend(found),
        }
    }
    if reasons.is_empty() { Ok(tasks) } else { Err(operation::refusal(&reasons)) }
}

fn task<'a>(
    root: &Root,
    inventory: &'a Inventory,
    address: PciAddress,
    terms: Terms,
) -> std::result::Result<Task<'a>, Vec<String>> {
    let function = find(root, inventory, address).map_err(|why| vec![why])?;
    // The inventory ignores damaged records.
    let record = record::load(root, address).map_err(|why| vec![why.to_string()])?;
    match record {
        Some(record) if record.phase != Phase::Bound => {
            return Err(vec![format!(
                "{address}: an earlier 'adit setup' was interrupted while it worked on the device; run 'adit setup restore' first"
            )]);
        }
        // Our bindings do not survive a reboot.
        Some(record) if function.is_bound() && record.is_of_this_boot(root) => {
            return Ok(Task::Have(Box::new(record)));
        }
        _ if function.is_bound() => return Ok(Task::Foreign(function.bdf.clone())),
        _ => {}
    }
    let reasons = reasons(function, terms);
    if reasons.is_empty() { Ok(Task::Take(function)) } else { Err(reasons) }
}

/// Finds the NVMe controller at `address`, or returns why it is none.
pub(super) fn find<'a>(
    root: &Root,
    inventory: &'a Inventory,
    address: PciAddress,
) -> std::result::Result<&'a Function, String> {
    let name = address.to_string();
    if let Some(function) = inventory.controllers.iter().find(|function| function.bdf == name) {
        return Ok(function);
    }
    let device = Device::at(address);
    if !device.is_there(root) {
        return Err(format!(
            "{address}: there is no such PCI device; 'adit setup status' lists the NVMe controllers"
        ));
    }
    let class = device.class(root).map(|class| format!(" (class {class})")).unwrap_or_default();
    Err(format!(
        "{address}: this PCI device is no NVMe controller{class}; 'adit setup status' lists those"
    ))
}

/// Returns the obstacles to taking `function` on these terms.
pub(super) fn reasons(function: &Function, terms: Terms) -> Vec<String> {
    let stands = |obstacle: &&Obstacle| match obstacle.kind {
        ObstacleKind::Signature => !terms.erase,
        ObstacleKind::Unseen => !terms.unseen,
        ObstacleKind::NoIommu => !terms.no_iommu,
        ObstacleKind::Group => !is_group_asked_for(function, terms.together),
        ObstacleKind::InUse | ObstacleKind::Unknown | ObstacleKind::Vmd | ObstacleKind::Foreign => {
            true
        }
    };
    let obstacles = function.obstacles.iter().filter(stands);
    let mut reasons: Vec<String> = obstacles
        .map(|found| format!("{}: {}; {}", function.bdf, found.reason, found.remedy))
        .collect();
    // A partition table has a backup at the end of the drive.
    reasons.dedup();
    reasons
}

/// Returns whether the command takes all devices that make the function's group unusable, which makes it
/// usable.
fn is_group_asked_for(function: &Function, together: &[PciAddress]) -> bool {
    let members = function.iommu_group.iter().flat_map(|group| &group.members);
    let asked = |bdf: &str| bdf.parse().is_ok_and(|address| together.contains(&address));
    members.filter(|member| !member.viable).all(|member| asked(&member.bdf))
}

/// Returns whether this device requires `unsafe_no_iommu`.
pub(super) fn lacks_iommu(function: &Function) -> bool {
    function.obstacles.iter().any(|found| found.kind == ObstacleKind::NoIommu)
}
