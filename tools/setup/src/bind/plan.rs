//! What `bind` is to do with each device that was asked for, decided for all of them before any is touched.
//!
//! Every reason against is told at once, so that one run shows all there is to mend.

use adit_driver::bus::pci::PciAddress;

use super::device::Device;
use crate::failure::{Failure, Result};
use crate::inventory::{Function, Inventory, Obstacle, ObstacleKind};
use crate::record::{self, DeviceRecord, Phase};
use crate::root::Root;

/// On which terms devices are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    /// All that the command is about: they may share IOMMU groups.
    pub(super) together: &'a [PciAddress],
    /// Signatures may be there: they are erased.
    pub(super) erase: bool,
    /// It may hold what cannot be looked at.
    pub(super) unseen: bool,
    /// It may be done without an IOMMU.
    pub(super) no_iommu: bool,
    /// Devices may be opened by the grant of another in their IOMMU group.
    pub(super) with_group: bool,
}

/// What is to be done with one device.
#[derive(Debug)]
pub(super) enum Task<'a> {
    /// It is bound.
    Take(&'a Function),
    /// It was bound by an earlier run, with this record.
    Have(Box<DeviceRecord>),
    /// It was bound by other means: nothing was recorded.
    Foreign(String),
}

impl<'a> Task<'a> {
    /// The function that is to be bound, if it is.
    pub(super) fn to_take(&self) -> Option<&'a Function> {
        match self {
            Task::Take(function) => Some(function),
            Task::Have(_) | Task::Foreign(_) => None,
        }
    }
}

/// The task for each of `devices`.
///
/// # Errors
/// Everything that is in the way, for all of them.
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
    if reasons.is_empty() { Ok(tasks) } else { Err(refusal(&reasons)) }
}

/// One sentence, or a list where there are several reasons.
pub(super) fn refusal(reasons: &[String]) -> Failure {
    match reasons {
        [reason] => Failure::failed(reason),
        _ => Failure::list("nothing was changed:", reasons),
    }
}

fn task<'a>(
    root: &Root,
    inventory: &'a Inventory,
    address: PciAddress,
    terms: Terms,
) -> std::result::Result<Task<'a>, Vec<String>> {
    let function = find(root, inventory, address).map_err(|why| vec![why])?;
    // The inventory takes a damaged record for none.
    let record = record::load(root, address).map_err(|why| vec![why.to_string()])?;
    match record {
        Some(record) if record.phase != Phase::Bound => {
            return Err(vec![format!(
                "{address}: an earlier 'adit setup' was cut off while it had the device; run 'adit setup restore' first"
            )]);
        }
        // No binding of ours outlives a boot.
        Some(record) if function.is_bound() && record.is_of_this_boot(root) => {
            return Ok(Task::Have(Box::new(record)));
        }
        _ if function.is_bound() => return Ok(Task::Foreign(function.bdf.clone())),
        _ => {}
    }
    let reasons = reasons(function, terms);
    if reasons.is_empty() { Ok(Task::Take(function)) } else { Err(reasons) }
}

/// The function at `address` among the NVMe controllers, or why it is not one.
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

/// What is in the way of taking `function` on these terms.
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
    // A partition table has a copy of itself at the end of the drive.
    reasons.dedup();
    reasons
}

/// Whether all that make the function's group unusable are taken by the same command: then it is usable afterwards.
fn is_group_asked_for(function: &Function, together: &[PciAddress]) -> bool {
    let members = function.iommu_group.iter().flat_map(|group| &group.members);
    let asked = |bdf: &str| bdf.parse().is_ok_and(|address| together.contains(&address));
    members.filter(|member| !member.viable).all(|member| asked(&member.bdf))
}

/// Whether only `unsafe_no_iommu` makes this device possible.
pub(super) fn lacks_iommu(function: &Function) -> bool {
    function.obstacles.iter().any(|found| found.kind == ObstacleKind::NoIommu)
}
