//! Moves devices from their driver to vfio-pci step by step; undoes everything if a step fails or the user
//! interrupts.
//!
//! Block devices stay claimed from before the last check until the driver is gone, so that nothing can start to
//! use them in between. The record is on disk before the first step.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::back::{self, Afterwards};
use super::erase;
use super::no_iommu;
use super::plan::{self, Terms};
use crate::change::{Change, Claim};
use crate::device::{Device, VFIO_PCI, driver_directory, has_file};
use crate::failure::{Failure, Result};
use crate::grant;
use crate::inventory::{Function, Inventory};
use crate::operation::{self, Operation};
use crate::record::{self, Before, DeviceRecord, Identity, Phase};
use adit_guard::root::Root;

/// Time limit for vfio-pci to create its file.
const GROUP_FILE: Duration = Duration::from_secs(10);

/// Time limit for short-lived users of a drive, such as udev after each write to it.
const PASSERS_BY: Duration = Duration::from_secs(5);

/// The work of a run that may have to be undone or reported.
#[derive(Default)]
struct Progress {
    /// Devices being bound or already bound.
    begun: Vec<Begun>,
    /// Where copies of erased signatures are.
    erased: Vec<String>,
}

/// The devices to take, and the conditions.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) functions: &'a [&'a Function],
    pub(super) terms: Terms<'a>,
    /// The user who may open them.
    pub(super) user: Option<&'a str>,
}

/// A device being bound.
struct Begun {
    record: DeviceRecord,
    /// The record of an earlier boot that the new one replaced.
    earlier: Option<DeviceRecord>,
}

/// Takes all devices or, if one fails, none.
///
/// # Errors
/// The first failure, and the resulting state of the devices.
pub(super) fn take_all(operation: &mut Operation, request: &Request) -> Result<Vec<DeviceRecord>> {
    let mut progress = Progress::default();
    match forward(operation, request, &mut progress) {
        Ok(()) => Ok(progress.begun.into_iter().map(|one| one.record).collect()),
        Err(failure) => Err(undo(operation, progress, failure)),
    }
}

/// Does everything that can fail without side effects before erasing the first signature, and erases before
/// changing the first device.
fn forward(operation: &mut Operation, request: &Request, progress: &mut Progress) -> Result<()> {
    let mut claims = claim_all(operation, request)?;
    load_module(operation)?;
    if request.functions.iter().any(|function| plan::lacks_iommu(function)) {
        no_iommu::allow(operation)?;
    }
    for function in request.functions {
        look_again(operation, function, request.terms)?;
    }
    if request.functions.iter().any(|function| erase::is_needed(function)) {
        // wipefs needs exclusive access itself.
        drop(claims);
        for function in request.functions {
            // Names of block devices can change, so the erased devices must be those just seen below this
            // function.
            look_again(operation, function, request.terms)?;
            erase::erase(operation, function, &mut progress.erased)?;
        }
        claims = claim_all(operation, request)?;
    }
    for (function, claims) in request.functions.iter().zip(claims) {
        // Signatures to erase are gone by now.
        let terms = Terms { erase: request.terms.erase && operation.is_dry(), ..request.terms };
        look_again(operation, function, terms)?;
        take(operation, function, claims, request, &mut progress.begun)?;
    }
    Ok(())
}

fn claim_all(operation: &mut Operation, request: &Request) -> Result<Vec<Vec<Claim>>> {
    request.functions.iter().map(|function| claim(operation, function)).collect()
}

/// Claims the namespaces. A claim of a whole namespace includes its partitions, and is refused while one is in
/// use.
fn claim(operation: &mut Operation, function: &Function) -> Result<Vec<Claim>> {
    let bdf = &function.bdf;
    let refused = |name: &str, why: &io::Error| match why.kind() {
        io::ErrorKind::ResourceBusy => Failure::failed(format!(
            "{bdf}: the kernel has {name} in use, though not by a mount, swap or another block device: \
             perhaps a ZFS pool or a storage target; end that first"
        )),
        _ => Failure::failed(format!("{bdf}: /dev/{name} cannot be claimed: {why}")),
    };
    let names = names(operation.root, function).into_iter();
    names
        .map(|name| {
            let claimed = operation.claim(&Path::new("/dev").join(&name));
            claimed.map_err(|why| refused(&name, &why))
        })
        .collect()
}

/// Returns the namespaces that have a node.
fn names(root: &Root, function: &Function) -> Vec<String> {
    let names = function.namespaces.iter().map(|namespace| namespace.name.clone());
    names.filter(|name| has_file(root, name)).collect()
}

fn load_module(operation: &mut Operation) -> Result<()> {
    if operation.root.exists(driver_directory(VFIO_PCI)) {
        return Ok(());
    }
    let kernel = operation.root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let loaded = operation.step(Change::run("modprobe", &[VFIO_PCI]));
    loaded.map_err(|failure| {
        failure.and(format!(
            "the kernel {kernel} has no module {VFIO_PCI} that could be loaded: install its modules \
             (linux-modules-extra-{kernel} on Ubuntu), or load {VFIO_PCI} on the host where this is a container"
        ))
    })
}

/// Checks again that the device is unused, because a claim does not keep processes from opening it.
fn look_again(operation: &mut Operation, function: &Function, terms: Terms) -> Result<()> {
    let against = |root: &Root| {
        let inventory = Inventory::read(root);
        let same = inventory.controllers.iter().find(|same| same.bdf == function.bdf);
        match same.filter(|same| is_unchanged(same, function)) {
            Some(same) => plan::reasons(same, terms),
            None => vec![format!("{}: it changed while this looked; run it again", function.bdf)],
        }
    };
    let mut reasons = Vec::new();
    operation.wait("waiting for others to close it", PASSERS_BY, |root| {
        reasons = against(root);
        reasons.is_empty()
    });
    if reasons.is_empty() { Ok(()) } else { Err(operation::refusal(&reasons)) }
}

/// Returns whether the device is unchanged; a namespace added since was not claimed.
fn is_unchanged(now: &Function, then: &Function) -> bool {
    let names = |function: &Function| -> Vec<String> {
        function.namespaces.iter().map(|namespace| namespace.name.clone()).collect()
    };
    now.driver == then.driver && now.serial == then.serial && names(now) == names(then)
}

fn take(
    operation: &mut Operation,
    function: &Function,
    claims: Vec<Claim>,
    request: &Request,
    begun: &mut Vec<Begun>,
) -> Result<()> {
    let record = record_of(operation.root, function, request.terms.with_group);
    let earlier = function.record.clone();
    operation.heed()?;
    if let Err(failure) = operation.change(record.stored()) {
        // The record may be on disk all the same. Nothing else was begun.
        let before = earlier.map_or_else(|| record.forgotten(), |earlier| earlier.stored());
        return Err(match operation.change(before) {
            Ok(()) => failure,
            Err(also) => failure.and(also),
        });
    }
    begun.push(Begun { record, earlier });
    let record = &mut begun.last_mut().expect("just pushed").record;
    let device = Device::at(record.address());
    operation.step(device.set_override(Some(VFIO_PCI)))?;
    if record.before.driver.is_some() {
        operation.step(device.unbind())?;
    }
    drop(claims);
    operation.step(device.probe())?;
    verify(operation, device)?;
    record.phase = Phase::Bound;
    operation.step(record.stored())?;
    let user = request.user.map(str::to_owned).or_else(|| record.grant.clone());
    let with_group = request.terms.with_group;
    if let Some(user) = user {
        grant::give(operation, record.address(), Some(record), &user, with_group)?;
    }
    Ok(())
}

fn record_of(root: &Root, function: &Function, with_group: bool) -> DeviceRecord {
    DeviceRecord {
        version: record::VERSION,
        bdf: function.bdf.clone(),
        phase: Phase::Binding,
        before: Before {
            driver: function.driver.clone(),
            driver_override: function.driver_override.clone(),
        },
        identity: Identity {
            ids: function.ids.clone(),
            model: function.model.clone(),
            serial: function.serial.clone(),
            firmware: function.firmware.clone(),
            size_bytes: function.size_bytes,
            namespaces: names(root, function),
        },
        boot_id: record::boot_id(root),
        grant: grant_before(function),
        with_group: with_group || earlier(function).is_some_and(|record| record.with_group),
    }
}

/// Returns the earlier record of this drive, as a grant is for a drive and not for its address.
fn earlier(function: &Function) -> Option<&DeviceRecord> {
    function.record.as_ref().filter(|earlier| is_of(earlier, function))
}

/// Returns the user the drive was granted to when an earlier boot bound it.
pub(super) fn grant_before(function: &Function) -> Option<String> {
    earlier(function)?.grant.clone()
}

/// Returns whether an earlier record is of this drive, by the serial number the kernel's driver has read.
/// Without that driver, the inventory would repeat the record.
fn is_of(earlier: &DeviceRecord, function: &Function) -> bool {
    let Identity { ids, serial, .. } = &earlier.identity;
    let is_read = function.is_live() && serial.is_some();
    is_read && *ids == function.ids && *serial == function.serial
}

fn verify(operation: &mut Operation, device: Device) -> Result<()> {
    let is_taken = |root: &Root| device.driver(root).as_deref() == Some(VFIO_PCI);
    let came = operation.wait("waiting for vfio-pci", GROUP_FILE, |root| {
        is_taken(root) && device.has_group_file(root)
    });
    if came {
        return Ok(());
    }
    Err(Failure::failed(if is_taken(operation.root) {
        format!("{device}: its file did not appear in /dev/vfio; 'dmesg' may say why")
    } else {
        format!("{device}: vfio-pci did not take it; 'dmesg' may say why")
    }))
}

/// Returns the begun devices in reverse order, and reports the result.
fn undo(operation: &mut Operation, progress: Progress, failure: Failure) -> Failure {
    let Progress { begun, erased } = progress;
    if operation.is_stuck() {
        return failure
            .and("once the kernel has finished, 'adit setup restore' brings everything back");
    }
    let mut failures = Vec::new();
    for mut one in begun.into_iter().rev() {
        let afterwards = one.earlier.as_ref().map_or(Afterwards::Forget, Afterwards::Keep);
        failures.extend(back::give_back(operation, &mut one.record, afterwards).err());
    }
    failures.extend(no_iommu::put_back_if_unused(operation).err());
    let failure = match Failure::all(failures) {
        None if erased.is_empty() => failure.and("everything is as it was before"),
        None => failure.and("everything but the signatures is as it was before"),
        Some(more) => failure.and(format!(
            "bringing it back failed too: {more}; run 'adit setup restore' to complete that"
        )),
    };
    erased.iter().fold(failure, |failure, directory| {
        failure
            .and(format!("{directory}/README says how to put back the signatures that were erased"))
    })
}
