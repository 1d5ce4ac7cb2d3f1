//! Finds devices that a grant opens besides its own. An IOMMU group has one file, and a user who may open it
//! may open every device of the group that a VFIO driver has.
//!
//! Such a device, if it is not granted to the same user, is accepted only with `--with-group`. Its record keeps
//! that, for binding at boot.

use std::path::PathBuf;

use adit_driver::bus::pci::{PciAddress, is_vfio};

use super::rule;
use super::user::User;
use crate::device::Device;
use crate::failure::Result;
use crate::inventory::NO_IOMMU_GROUP;
use crate::operation::{self, Operation};
use crate::record;
use adit_guard::root::Root;

/// A device to bind or grant, as far as its group is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing<'a> {
    pub(crate) address: PciAddress,
    /// The user it is granted to.
    pub(crate) user: Option<&'a str>,
    /// Whether it may be opened together with others of its group.
    pub(crate) with_group: bool,
    /// Devices that the same command grants to the same user.
    pub(crate) together: &'a [PciAddress],
}

/// A device a user could open through a shared group.
struct Along {
    /// The device, granted to another user or to none.
    device: PciAddress,
    /// The member of its group that is granted to `user`.
    by: PciAddress,
    user: String,
    group: String,
    /// Whether this is accepted, now or by a record.
    agreed: bool,
}

/// Reports which devices the grants of `devices` also open.
///
/// # Errors
/// All such devices that are not accepted; an unknown user.
pub(crate) fn admit(operation: &mut Operation, devices: &[Sharing]) -> Result<()> {
    let mut all = Vec::new();
    for sharing in devices {
        all.extend(along(operation.root, sharing)?);
    }
    let refused: Vec<String> =
        all.iter().filter(|one| !one.agreed).map(|one| one.refusal(devices)).collect();
    if !refused.is_empty() {
        return Err(operation::refusal(&refused));
    }
    all.iter().try_for_each(|one| operation.say(one.told()))
}

fn along(root: &Root, sharing: &Sharing) -> Result<Vec<Along>> {
    let Sharing { address, user, with_group, together } = *sharing;
    let Some(group) =
        Device::at(address).group(root).filter(|group| !is_without_iommu(root, group))
    else {
        return Ok(Vec::new());
    };
    let others = neighbours(root, address, &group);
    let agreed = |one| with_group || is_agreed(root, address) || is_agreed(root, one);
    let one = |device, by, user: &str, other| Along {
        device,
        by,
        user: user.to_owned(),
        group: group.clone(),
        agreed: agreed(other),
    };
    let Some(user) = user else {
        let held = others.into_iter().filter_map(|other| Some((other, rule::holder(root, other)?)));
        return Ok(held.map(|(other, holder)| one(address, other, &holder, other)).collect());
    };
    if User::find(root, user)?.uid == 0 {
        return Ok(Vec::new());
    }
    let goes = |other: &PciAddress| {
        let is_granted = || rule::holder(root, *other).is_some();
        is_open_to_group(root, *other) && !together.contains(other) && !is_granted()
    };
    Ok(others.into_iter().filter(goes).map(|other| one(other, address, user, other)).collect())
}

impl Along {
    fn told(&self) -> String {
        let Along { device, by, user, group, .. } = self;
        format!("{user} may open {device} too: it shares IOMMU group {group} with {by}")
    }

    fn refusal(&self, devices: &[Sharing]) -> String {
        let Along { device, by, user, group, .. } = self;
        let remedy = if devices.iter().any(|sharing| sharing.address == *device) {
            format!("add --user {user} to grant it, or --with-group to let it go along")
        } else {
            format!(
                "add --with-group to let it go along, or give it back first \
                 ('sudo adit setup unbind {device}', or the tool that bound it)"
            )
        };
        format!(
            "{by}: IOMMU group {group} has one file, so {user} could also open {device}; {remedy}"
        )
    }
}

/// Returns whether the device's record accepts opening it together with its group.
fn is_agreed(root: &Root, address: PciAddress) -> bool {
    record::load(root, address).ok().flatten().is_some_and(|record| record.with_group)
}

/// Returns whether the group's file opens the device: only if a VFIO driver has it.
fn is_open_to_group(root: &Root, address: PciAddress) -> bool {
    Device::at(address).driver(root).is_some_and(|driver| is_vfio(&driver))
}

/// Returns a group's file.
pub(super) fn file(group: &str) -> PathBuf {
    format!("/dev/vfio/{group}").into()
}

/// Returns whether VFIO created the group without an IOMMU.
pub(super) fn is_without_iommu(root: &Root, group: &str) -> bool {
    let name = root.text(format!("/sys/kernel/iommu_groups/{group}/name"));
    name.as_deref() == Some(NO_IOMMU_GROUP) || root.present(format!("/dev/vfio/noiommu-{group}"))
}

/// Returns the other PCI devices of a group.
pub(super) fn neighbours(root: &Root, address: PciAddress, group: &str) -> Vec<PciAddress> {
    let names = root.names(format!("/sys/kernel/iommu_groups/{group}/devices"));
    let members = names.iter().filter_map(|name| name.parse().ok());
    members.filter(|&member| member != address).collect()
}
