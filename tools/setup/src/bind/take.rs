//! From the driver that a device has to vfio-pci, step by step; undone where a step fails or the person asks to end.
//!
//! The block devices are claimed before the last look and until the driver is gone, so that nothing can begin to use
//! them in between. What was is on disk before the first step.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::back::{self, Afterwards};
use super::device::{Device, VFIO_PCI, driver_directory, has_file};
use super::erase;
use super::no_iommu;
use super::plan::{self, Terms};
use crate::change::{Change, Claim};
use crate::failure::{Failure, Result};
use crate::grant;
use crate::inventory::{Function, Inventory};
use crate::operation::Operation;
use crate::record::{self, Before, DeviceRecord, Identity, Phase};
use crate::root::Root;

/// How long vfio-pci may take to show its file.
const GROUP_FILE: Duration = Duration::from_secs(10);

/// How long others may look at a drive that nothing else keeps: udev does, whenever one was written to.
const PASSERS_BY: Duration = Duration::from_secs(5);

/// What a run has done so far that may have to be undone, or told.
#[derive(Default)]
struct Progress {
    /// Devices that are on their way or there.
    begun: Vec<Begun>,
    /// Where copies of erased signatures are.
    erased: Vec<String>,
}

/// What is to be taken, and on which terms.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The devices.
    pub(super) functions: &'a [&'a Function],
    /// On which terms.
    pub(super) terms: Terms<'a>,
    /// Who may open them.
    pub(super) user: Option<&'a str>,
}

/// A device on its way.
struct Begun {
    record: DeviceRecord,
    /// The record of an earlier boot that this one took the place of.
    earlier: Option<DeviceRecord>,
}

/// Takes all of them or, where one fails, none.
///
/// # Errors
/// The first failure, and what became of the devices.
pub(super) fn take_all(operation: &mut Operation, request: &Request) -> Result<Vec<DeviceRecord>> {
    let mut progress = Progress::default();
    match forward(operation, request, &mut progress) {
        Ok(()) => Ok(progress.begun.into_iter().map(|one| one.record).collect()),
        Err(failure) => Err(undo(operation, progress, failure)),
    }
}

/// Everything that can fail without a trace comes before the first signature is erased, and that before the first device
/// is touched.
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
        // What erases wants a claim of its own.
        drop(claims);
        for function in request.functions {
            // Names of block devices move: what is erased is what was just seen below this device.
            look_again(operation, function, request.terms)?;
            erase::erase(operation, function, &mut progress.erased)?;
        }
        claims = claim_all(operation, request)?;
    }
    for (function, claims) in request.functions.iter().zip(claims) {
        // What was to be erased is gone by now.
        let terms = Terms { erase: request.terms.erase && operation.is_dry(), ..request.terms };
        look_again(operation, function, terms)?;
        take(operation, function, claims, request, &mut progress.begun)?;
    }
    Ok(())
}

fn claim_all(operation: &mut Operation, request: &Request) -> Result<Vec<Vec<Claim>>> {
    request.functions.iter().map(|function| claim(operation, function)).collect()
}

/// Claims the namespaces. The claim to a whole namespace keeps its partitions too, and is refused while one is in use.
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

/// The namespaces that somebody could use.
fn names(root: &Root, function: &Function) -> Vec<String> {
    let names = function.namespaces.iter().map(|namespace| namespace.name.clone());
    names.filter(|name| has_file(root, name)).collect()
}

fn load_module(operation: &mut Operation) -> Result<()> {
    if operation.root.exists(driver_directory(VFIO_PCI)) {
        return Ok(());
    }
    let kernel = operation.root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let arguments = vec![VFIO_PCI.to_owned()];
    let loaded = step(operation, Change::Run { program: "modprobe".into(), arguments });
    loaded.map_err(|failure| {
        failure.and(format!(
            "the kernel {kernel} has no module {VFIO_PCI} that could be loaded: install its modules \
             (linux-modules-extra-{kernel} on Ubuntu), or load {VFIO_PCI} on the host where this is a container"
        ))
    })
}

/// Nothing uses it still: processes can open a device in spite of a claim.
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
    if reasons.is_empty() { Ok(()) } else { Err(plan::refusal(&reasons)) }
}

/// Whether it is what was decided about: a namespace that came since was not claimed.
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
    heed(operation)?;
    if let Err(failure) = operation.change(record.stored()) {
        // It may have come to disk all the same. Nothing else was begun.
        let before = earlier.map_or_else(|| record.forgotten(), |earlier| earlier.stored());
        return Err(match operation.change(before) {
            Ok(()) => failure,
            Err(also) => failure.and(also),
        });
    }
    begun.push(Begun { record, earlier });
    let record = &mut begun.last_mut().expect("just pushed").record;
    let device = Device::at(record.address());
    step(operation, device.set_override(Some(VFIO_PCI)))?;
    if record.before.driver.is_some() {
        step(operation, device.unbind())?;
    }
    drop(claims);
    step(operation, device.probe())?;
    verify(operation, device)?;
    record.phase = Phase::Bound;
    step(operation, record.stored())?;
    let user = request.user.map(str::to_owned).or_else(|| record.grant.clone());
    let with_group = request.terms.with_group;
    user.map_or(Ok(()), |user| grant::give(operation, record, &user, with_group))
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

/// The earlier record of this drive: granted is a drive, not whatever has come to its address since.
fn earlier(function: &Function) -> Option<&DeviceRecord> {
    function.record.as_ref().filter(|earlier| is_of(earlier, function))
}

/// Who was granted the drive when an earlier boot had it bound.
pub(super) fn grant_before(function: &Function) -> Option<String> {
    earlier(function)?.grant.clone()
}

/// Whether an earlier record is of this drive, by the serial number that the kernel's driver has read. Without that
/// driver the inventory tells what the record says.
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

/// One change on the way forward.
pub(super) fn step(operation: &mut Operation, change: Change) -> Result<()> {
    heed(operation)?;
    operation.change(change)
}

/// Nothing more is begun once the person has asked to end.
fn heed(operation: &Operation) -> Result<()> {
    if operation.is_interrupted() { Err(Failure::stopped("interrupted")) } else { Ok(()) }
}

/// Brings back what was begun, the last first, and tells what came of it.
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
