//! Keeps commands that write to devices from destroying data.
//!
//! Before a benchmark or a new store writes, its device is inspected. A block device, or that of a generic NVMe device,
//! must not be mounted, used for swap, part of another device, exported or claimed, and must hold no signature
//! of a file system, RAID, volume manager or partition table. `adit setup bind` makes the same judgement with
//! the same code. Controllers that the kernel does not manage are only searched for signatures, through a queue of
//! our own (`ends`). The permission to overwrite turns refusals into warnings.
//!
//! As in fio, files are overwritten without a question, unless they hold a store of Adit, which counts as a signature
//! everywhere. Targets made for the run (`soft:mem`, `null:`) hold no data.

pub mod disk;
mod ends;
pub mod program;
pub mod root;
mod tree;

use std::fs::File;

use adit_driver::soft::{self, Storage};
use adit_driver::target::KernelPath;
use adit_driver::{Device, Target};
use adit_kvstore::survey;
use adit_tools_common::failure::{Failure, Result};
use adit_tools_common::human::printable;
use adit_tools_common::output::Warning;

use crate::disk::{Disk, Signature, Use, disk_of_file, told_once};
use crate::root::Root;

/// A device that a job writes to or trims.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The requested target.
    pub target: &'a Target,
    /// The open device; it must be able to provide a queue for a moment.
    pub device: &'a Device,
    /// Whether it is open exclusively ([`adit_driver::DeviceOptions::exclusive`]), so that a claim of a block device is
    /// our own: it would not have opened if another had claimed it.
    pub is_ours: bool,
}

/// The option of `adit bench` that allows overwriting.
pub const ALLOW_DESTROY: Permission =
    Permission { option: "--allow-destroy", is_given: false, spares_stores: true };

/// Whether overwriting is allowed, and by which option.
#[derive(Clone, Copy, Debug)]
pub struct Permission {
    /// The option's spelling.
    pub option: &'static str,
    /// Whether it is on the command line.
    pub is_given: bool,
    /// Whether stores of Adit are looked for. Callers that format stores do so themselves.
    pub spares_stores: bool,
}

/// Inspects what would be overwritten. With permission, findings become warnings.
///
/// # Errors
/// A usage failure that lists each device's findings and how to continue.
pub fn check(written: &[Written], permission: Permission) -> Result<Vec<Warning>> {
    let root = Root::open(None)?;
    let look = |one: Written| {
        let mut findings = look(&root, &one);
        if permission.spares_stores {
            findings.extend(of_store(&root, &one));
        }
        (one.target.to_string(), findings)
    };
    let looked: Vec<(String, Vec<Finding>)> = distinct(written).into_iter().map(look).collect();
    judge(&looked, permission)
}

/// Inspects devices, open exclusively, on which a store is formatted; with `force`, findings are only logged as
/// warnings. Takes back what opening them made of their files if it refuses.
///
/// # Errors
/// As [`check`].
pub fn check_format(targets: &[Target], devices: &[Device], force: bool) -> Result<()> {
    let written = targets.iter().zip(devices);
    let written: Vec<Written<'_>> =
        written.map(|(target, device)| Written { target, device, is_ours: true }).collect();
    let permission = Permission { option: "--force", is_given: force, spares_stores: false };
    let checked = check(&written, permission);
    for warning in checked.inspect_err(|_| devices.iter().for_each(Device::take_back_file))? {
        tracing::warn!("{}", warning.text);
    }
    Ok(())
}

/// Inspects a file that would become longer, also for jobs that only read it: the end of a store's file is where its
/// second superblock is.
///
/// # Errors
/// As [`check`]; nothing was opened for writing.
pub fn check_lengthening(target: &Target, permission: Permission) -> Result<()> {
    let Target::Kernel(kernel) = target else { return Ok(()) };
    // What cannot be read is not known to be a store, and opening it says why.
    let found = File::open(&kernel.file).and_then(|file| survey::is_of_store(&file));
    if permission.spares_stores && found.unwrap_or(false) {
        judge(&[(target.to_string(), vec![store_found(target)])], permission)?;
    }
    Ok(())
}

/// Removes duplicate targets, which jobs may share. One device under two names is reported twice.
fn distinct<'a>(written: &[Written<'a>]) -> Vec<Written<'a>> {
    let mut distinct: Vec<Written> = Vec::new();
    for one in written {
        if distinct.iter().all(|other| other.target != one.target) {
            distinct.push(*one);
        }
    }
    distinct
}

/// One reason against writing to a device.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    kind: FindingKind,
    /// A phrase such as `nvme0n1 is mounted at /mnt (ext4)`.
    reason: String,
    /// How to remove the reason, if known.
    remedy: Option<String>,
}

/// The consequence of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FindingKind {
    /// Always a refusal.
    Impossible,
    /// A refusal, or a warning with `--allow-destroy`.
    Loss,
    /// Always a warning.
    Beside,
}

impl Finding {
    fn new(kind: FindingKind, reason: impl ToString, remedy: Option<String>) -> Finding {
        Finding {
            kind,
            reason: printable(&reason.to_string()),
            remedy: remedy.as_deref().map(printable),
        }
    }
}

/// Returns all findings for one device.
fn look(root: &Root, written: &Written) -> Vec<Finding> {
    match place(root, written.target) {
        Contents::Free | Contents::File => Vec::new(),
        Contents::Opaque => of_signatures(ends::signatures(root, written.device), "it"),
        Contents::Disk(name) => {
            let mut disk = Disk::read(root, &name);
            if disk.signatures.is_err()
                && let Ok(true) = ends::are_zero(written.device)
            {
                // Zeroes contain no signature; no program is needed to tell.
                disk.signatures = Ok(Vec::new());
            }
            disk.is_claimed &= !written.is_ours;
            of_disk(&disk)
        }
    }
}

/// Returns the finding of a store of Adit. What cannot be read is not known to be one.
fn of_store(root: &Root, written: &Written) -> Option<Finding> {
    let is_store = place(root, written.target) != Contents::Free
        && ends::hold_store(written.device) == Ok(true);
    is_store.then(|| store_found(written.target))
}

fn store_found(target: &Target) -> Finding {
    let remedy = format!("adit kv info {}", target.device());
    Finding::new(FindingKind::Loss, "it is a device of a store of Adit", Some(remedy))
}

/// Where a target's data is, if it may be lost.
#[derive(Debug, PartialEq, Eq)]
enum Contents {
    /// Made for the run.
    Free,
    /// A file, which may be overwritten unless it holds a store.
    File,
    /// The kernel's block device of this name.
    Disk(String),
    /// Not visible to the kernel.
    Opaque,
}

fn place(root: &Root, target: &Target) -> Contents {
    match target {
        Target::Kernel(kernel) if kernel.path == KernelPath::Null => Contents::Free,
        Target::Kernel(kernel) => match disk_of_file(root, &kernel.file) {
            Some(name) => Contents::Disk(name),
            // A namespace without a block device has a format the kernel cannot use.
            None if kernel.path == KernelPath::UringCmd => Contents::Opaque,
            None => Contents::File,
        },
        Target::Soft { options, .. } => match options.parse::<soft::Options>().map(|o| o.storage) {
            // The software controller may store its data on one of the kernel's disks.
            Ok(Storage::File { path, .. }) => {
                disk_of_file(root, &path).map_or(Contents::Opaque, Contents::Disk)
            }
            Ok(_) => Contents::Free,
            Err(_) => Contents::Opaque,
        },
        // vfio, vfio-user, and future targets.
        _ => Contents::Opaque,
    }
}

fn of_disk(disk: &Disk) -> Vec<Finding> {
    let name = &disk.name;
    let mut findings: Vec<Finding> = disk.uses.iter().map(of_use).collect();
    if disk.is_claimed && findings.iter().all(|finding| finding.kind == FindingKind::Beside) {
        let reason = format!("{name} is claimed by the kernel or by an unknown process");
        findings.push(Finding::new(FindingKind::Loss, reason, Some(format!("lsblk /dev/{name}"))));
    }
    if disk.is_read_only {
        let remedy = format!("blockdev --setrw /dev/{name}");
        findings.push(Finding::new(
            FindingKind::Impossible,
            format!("{name} is read-only"),
            Some(remedy),
        ));
    }
    findings.extend(of_signatures(disk.signatures.clone(), name));
    findings
}

fn of_use(used: &Use) -> Finding {
    let (reason, remedy) = used.in_words();
    // An idle monitor also has it open; users that need exclusive access claim it.
    let kind =
        if matches!(used, Use::Open { .. }) { FindingKind::Beside } else { FindingKind::Loss };
    Finding::new(kind, reason, Some(remedy))
}

fn of_signatures(
    signatures: std::result::Result<Vec<Signature>, String>,
    device: &str,
) -> Vec<Finding> {
    match signatures {
        Ok(found) => told_once(&found)
            .into_iter()
            .map(|(reason, _)| Finding::new(FindingKind::Loss, reason, None))
            .collect(),
        Err(why) => {
            let reason = format!("the contents of {device} are unknown ({why})");
            let remedy = if why.contains("not installed") {
                "install wipefs (package util-linux)"
            } else {
                "reading it needs permission"
            };
            vec![Finding::new(FindingKind::Loss, reason, Some(remedy.to_owned()))]
        }
    }
}

/// Returns the warnings, or one refusal for all refused devices.
fn judge(looked: &[(String, Vec<Finding>)], permission: Permission) -> Result<Vec<Warning>> {
    let refuses = |finding: &&Finding| match finding.kind {
        FindingKind::Impossible => true,
        FindingKind::Loss => !permission.is_given,
        FindingKind::Beside => false,
    };
    let refusals = looked.iter().filter_map(|(device, findings)| {
        let against: Vec<&Finding> = findings.iter().filter(refuses).collect();
        (!against.is_empty()).then(|| refusal(device, &against, permission.option))
    });
    if let Some(failure) = Failure::all(refusals.collect()) {
        return Err(failure);
    }
    let warn = |(device, findings): &(String, Vec<Finding>)| {
        findings
            .iter()
            .map(|finding| warning(device, finding, permission.option))
            .collect::<Vec<_>>()
    };
    Ok(looked.iter().flat_map(warn).collect())
}

fn refusal(device: &str, against: &[&Finding], option: &str) -> Failure {
    let reason = |finding: &&Finding| {
        let remedy = finding.remedy.as_ref().map(|remedy| format!("; {remedy}"));
        format!("{}{}", finding.reason, remedy.unwrap_or_default())
    };
    let reasons: Vec<String> = against.iter().map(reason).collect();
    let liftable = against.iter().all(|finding| finding.kind == FindingKind::Loss);
    let remedy = match liftable {
        true => format!("use another device, or add {option} if all of its data may be lost"),
        false => "use another device".to_owned(),
    };
    Failure::refusal(&format!("{device}: nothing was written, because"), &reasons, &remedy)
}

fn warning(device: &str, finding: &Finding, option: &str) -> Warning {
    let reason = &finding.reason;
    match finding.kind {
        FindingKind::Beside => Warning {
            code: "device-shared",
            text: format!("{device}: {reason}, so other users may affect its figures and data"),
        },
        _ => Warning {
            code: "data-destroyed",
            text: format!("{device}: {reason}, and is OVERWRITTEN, as {option} says"),
        },
    }
}

#[cfg(test)]
mod tests;
