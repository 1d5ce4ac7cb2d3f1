//! Gives a user who is not root access to a device: its files, now and after each boot, and locked memory.
//!
//! The owner (in the device's record, or in the udev rule if it was bound by hand) is written first and removed
//! last, so a run that was interrupted can always be completed. All operations can be repeated. Programs keep
//! files they have open, because the kernel checks rights at open only.
//!
//! An IOMMU group has one file with one owner. So devices of one group cannot be granted to two users, and a
//! device that is not granted is opened along with another only if that was accepted ([`group`]).

pub(crate) mod group;
mod rule;
#[cfg(test)]
mod tests;
mod user;

use std::collections::BTreeSet;
use std::path::PathBuf;

use adit_driver::bus::pci::PciAddress;
use serde::Serialize;

use super::args::{GrantArgs, RevokeArgs};
use super::change::Change;
use super::device::{Device, VFIO_PCI};
use super::machine::is_left;
use super::operation::{self, Operation};
use super::record::{self, DeviceRecord, Phase};
use crate::failure::{Failure, Result};
use adit_guard::root::Root;
use group::{is_without_iommu, neighbours};
use user::User;

/// udev's socket, if it runs.
const UDEV: &str = "/run/udev/control";
/// Possible paths of its program.
const UDEVADM: [&str; 3] = ["/usr/bin/udevadm", "/bin/udevadm", "/sbin/udevadm"];

/// A device's owner.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Granted {
    bdf: String,
    /// `None` if only root may open it.
    user: Option<String>,
}

/// Runs `adit setup grant`.
///
/// # Errors
/// A device that is not bound or cannot be granted, an unknown user, a change that fails.
pub(crate) fn grant(root: &Root, args: &GrantArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| {
        grant_one(operation, args.device, &args.user, args.with_group)
    })
}

/// Runs `adit setup revoke`.
///
/// # Errors
/// A damaged record, a change that fails.
pub(crate) fn revoke(root: &Root, args: &RevokeArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| revoke_one(operation, args.device))
}

fn grant_one(
    operation: &mut Operation,
    address: PciAddress,
    user: &str,
    with_group: bool,
) -> Result<Granted> {
    let root = operation.root;
    let mut record = record::load(root, address)?;
    check_bound(root, address, record.as_ref())?;
    let sharing = group::Sharing { address, user: Some(user), with_group, together: &[] };
    group::admit(operation, &[sharing])?;
    let user = give(operation, address, record.as_mut(), user, with_group)?;
    Ok(Granted { bdf: address.to_string(), user })
}

/// Checks that the device is bound.
fn check_bound(root: &Root, address: PciAddress, record: Option<&DeviceRecord>) -> Result<()> {
    let why = match record.map(|record| record.phase) {
        Some(Phase::Bound) => return Ok(()),
        Some(Phase::Binding | Phase::Unbinding) => {
            "an earlier 'adit setup' was interrupted; run 'sudo adit setup restore' first".into()
        }
        None if !Device::at(address).is_there(root) => {
            "there is no such PCI device; see 'adit setup status'".into()
        }
        None => match Device::at(address).driver(root).as_deref() {
            Some(VFIO_PCI) => return Ok(()),
            _ => format!("it is not bound; run 'sudo adit setup bind {address}' first"),
        },
    };
    Err(Failure::failed(format!("{address}: {why}")))
}

/// Checks that the user exists, before anything is changed.
///
/// # Errors
/// When the user does not exist.
pub(crate) fn check_user(root: &Root, name: &str) -> Result<()> {
    User::find(root, name).map(drop)
}

/// Grants a device to `user`, and stores that in its record; one that was bound by hand has only its udev rule. The
/// device's group file must exist, and other devices of its group must be [admitted](group::admit). Returns the owner.
///
/// # Errors
/// When the user does not exist, the device cannot be granted, or a change fails.
pub(crate) fn give(
    operation: &mut Operation,
    address: PciAddress,
    mut record: Option<&mut DeviceRecord>,
    user: &str,
    with_group: bool,
) -> Result<Option<String>> {
    let held = record.as_ref().and_then(|record| record.grant.clone());
    let Some(user) = admit(operation, address, user)? else { return Ok(held) };
    let before = held.or_else(|| rule::holder(operation.root, address));
    if let Some(before) = before.filter(|before| *before != user.name) {
        operation.say(format!("{address} goes from {before} to {}", user.name))?;
        take_back(operation, address, record.as_deref_mut())?;
    }
    if let Some(record) = &mut record
        && (record.grant.as_ref() != Some(&user.name) || (with_group && !record.with_group))
    {
        record.grant = Some(user.name.clone());
        record.with_group |= with_group;
        operation.change(record.stored())?;
    }
    write(operation, address, &user)?;
    if record.is_none() {
        operation.say(format!(
            "{address} was not bound by 'adit setup'; 'sudo adit setup revoke {address}' revokes the grant anyway"
        ))?;
    }
    Ok(Some(user.name))
}

/// Returns the user if the device can be granted; `None` for root, who needs no grant.
fn admit(operation: &mut Operation, address: PciAddress, name: &str) -> Result<Option<User>> {
    let root = operation.root;
    let user = User::find(root, name)?;
    if user.uid == 0 {
        operation
            .say(format!("{name} is root and may open {address} anyway; nothing is granted"))?;
        return Ok(None);
    }
    let refused = |why: String| Err(Failure::failed(format!("{address}: {why}")));
    let Some(group) = Device::at(address).group(root) else {
        return refused("it has no IOMMU group, so only root can use it: turn the IOMMU on".into());
    };
    if is_without_iommu(root, &group) {
        return refused(format!(
            "it is bound without an IOMMU; only processes with the capability CAP_SYS_RAWIO may then open it, so it \
             cannot be granted to {name}: run the program as root, or turn the IOMMU on and bind it again"
        ));
    }
    for other in neighbours(root, address, &group) {
        if let Some(holder) = rule::holder(root, other).filter(|holder| holder != name) {
            return refused(format!(
                "{other} is in the same IOMMU group ({group}) and is {holder}'s, and a group has one file with one owner; \
                 run 'sudo adit setup revoke {other}' first"
            ));
        }
    }
    Ok(Some(user))
}

/// Writes the files that keep the grant, then changes the device's own.
fn write(operation: &mut Operation, address: PciAddress, user: &User) -> Result<()> {
    if operation.keep(rule::written(address, &user.name))? {
        reload(operation)?;
    }
    operation.keep(rule::limits_written(&user.name))?;
    let mut files = device_files(operation.root, address);
    if operation.is_dry() && files.is_empty() {
        // The file appears when the device is bound.
        files.extend(Device::at(address).group(operation.root).map(|group| group::file(&group)));
    }
    if files.is_empty() {
        operation
            .say(format!("{address} has no file in /dev/vfio yet; its rule is for when it has"))?;
    }
    for path in files {
        operation.change(Change::Owner { path, uid: user.uid })?;
    }
    operation.say(format!(
        "{0} may open {address}; to lock memory for it {0} has to log in again ('ulimit -l' says unlimited then), and a \
         systemd service needs LimitMEMLOCK=infinity",
        user.name
    ))
}

/// Revokes a grant made with [`give`], if any, and updates the record.
///
/// # Errors
/// When a change fails.
pub(crate) fn take_back(
    operation: &mut Operation,
    address: PciAddress,
    record: Option<&mut DeviceRecord>,
) -> Result<()> {
    withdraw(operation, address, record.as_deref())?;
    if let Some(record) = record
        && record.grant.take().is_some()
    {
        record.with_group = false;
        operation.change(record.stored())?;
    }
    Ok(())
}

/// Revokes what the device's rule and its record grant. The rule is removed last, because it may be the only
/// record.
///
/// The files are ours only in the boot in which they were granted: the rule ends with that boot, and a record
/// of an earlier boot does not tell who owns them now.
fn withdraw(
    operation: &mut Operation,
    address: PciAddress,
    record: Option<&DeviceRecord>,
) -> Result<()> {
    let root = operation.root;
    let recorded = record.and_then(|record| record.grant.as_deref());
    let ruled = rule::holder(root, address);
    let is_ruled = is_left(root, &rule::path(address));
    if recorded.is_none() && !is_ruled {
        return Ok(());
    }
    if is_ruled || record.is_some_and(|record| record.is_of_this_boot(root)) {
        for path in files_to_return(root, address) {
            operation.change(Change::Owner { path, uid: 0 })?;
        }
    }
    let users: BTreeSet<&str> = recorded.into_iter().chain(ruled.as_deref()).collect();
    for user in users {
        let path = rule::limits_path(user);
        if is_left(root, &path) && !has_others(root, user, address) {
            operation.change(Change::remove(path))?;
        }
    }
    if is_ruled {
        operation.change(Change::remove(rule::path(address)))?;
        reload(operation)?;
    }
    Ok(())
}

/// Revokes the grants of all rules without a record, for devices that were bound by hand; returns whether there
/// was anything to do.
///
/// # Errors
/// When a change fails.
pub(crate) fn withdraw_all(operation: &mut Operation) -> Result<bool> {
    let recorded = record::addresses(operation.root);
    let mut devices = rule::devices(operation.root);
    devices.retain(|device| !recorded.contains(device));
    for &device in &devices {
        withdraw(operation, device, None)?;
    }
    Ok(!devices.is_empty())
}

fn revoke_one(operation: &mut Operation, address: PciAddress) -> Result<Granted> {
    let root = operation.root;
    let mut record = record::load(root, address)?;
    let granted = record.as_ref().and_then(|record| record.grant.clone());
    let had = granted.or_else(|| rule::holder(root, address));
    let is_ruled = is_left(root, &rule::path(address));
    take_back(operation, address, record.as_mut())?;
    operation.say(match had {
        Some(user) => format!(
            "{address} is not {user}'s any more; a program that has it open keeps it until it ends"
        ),
        None if is_ruled => format!("{address}: what was left of a grant is gone"),
        None => format!("{address} is not granted, so there is nothing to revoke"),
    })?;
    Ok(Granted { bdf: address.to_string(), user: None })
}

/// Makes udev reload its rules. It does so by itself after a few seconds, so failure is harmless.
fn reload(operation: &mut Operation) -> Result<()> {
    let root = operation.root;
    if !root.present(UDEV) || !UDEVADM.iter().any(|program| root.present(program)) {
        return Ok(());
    }
    let otherwise = "udev will look for new rules by itself";
    operation.prompt("udevadm", &["control", "--reload"], otherwise)
}

/// Returns the existing files through which user space opens the device: its group's, and with iommufd its own.
fn device_files(root: &Root, address: PciAddress) -> Vec<PathBuf> {
    let device = Device::at(address);
    let own =
        device.vfio_files(root).into_iter().map(|name| format!("/dev/vfio/devices/{name}").into());
    let files = device.group(root).map(|group| group::file(&group)).into_iter().chain(own);
    files.filter(|file| root.present(file)).collect()
}

/// Returns the files that become root's again; not the group's while another device of the group is granted.
fn files_to_return(root: &Root, address: PciAddress) -> Vec<PathBuf> {
    let mut files = device_files(root, address);
    if let Some(group) = Device::at(address).group(root) {
        let others = neighbours(root, address, &group);
        if others.into_iter().any(|other| rule::holder(root, other).is_some()) {
            files.retain(|file| *file != group::file(&group));
        }
    }
    files
}

/// Returns whether the user has been granted other devices.
fn has_others(root: &Root, user: &str, address: PciAddress) -> bool {
    let others = rule::devices(root).into_iter().filter(|&other| other != address);
    others.into_iter().any(|other| rule::holder(root, other).as_deref() == Some(user))
}
