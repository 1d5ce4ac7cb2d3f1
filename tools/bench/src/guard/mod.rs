//! What keeps a benchmark from destroying what somebody wants to keep.
//!
//! Before a job writes or trims, its device is looked at. A block device, or the one of a generic NVMe device, must not
//! be mounted, swapped to, part of something, exported or claimed, and must hold no signature of a file system,
//! RAID, volume manager or partition table: the judgement of `adit setup`, by the same code. Of a controller that
//! the kernel does not have only the signatures can be looked for; they are read through a queue of our own
//! (`ends`). `--allow-destroy` turns all this into warnings.
//!
//! Files are overwritten without a question, as fio does; what is made for the run (`soft:mem`, `null:`) holds nothing.

mod ends;

use std::fmt::Write;

use adit_driver::soft::{self, Storage};
use adit_driver::target::KernelPath;
use adit_driver::{Device, Target};

use super::options::Request;
use super::outcome::Warning;
use crate::failure::{Failure, Result};
use crate::human::printable;
use adit_setup::{Disk, Root, Signature, Use, disk_of_file, told_once};

/// A device that a job writes to or trims.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// What was asked for.
    pub target: &'a Target,
    /// The same, open. A queue of it must be free for a moment.
    pub device: &'a Device,
}

/// Refuses jobs that write or trim where `--readonly` forbids it.
///
/// # Errors
/// A usage failure that names the first such job.
pub(crate) fn refuse_writes(request: &Request) -> Result<()> {
    let mut jobs = request.sections.iter().map(|section| &section.job);
    match jobs.find(|job| job.rw.writes || job.rw.trims) {
        Some(job) if request.run.readonly => Err(Failure::usage(format!(
            "job '{}' writes or trims, which --readonly forbids; leave one of them out",
            printable(&job.name)
        ))),
        _ => Ok(()),
    }
}

/// The option of `adit bench` that lets things be overwritten.
pub(crate) const ALLOW_DESTROY: Permission =
    Permission { option: "--allow-destroy", is_given: false };

/// Whether things may be overwritten, and by which option.
#[derive(Clone, Copy, Debug)]
pub struct Permission {
    /// How the option is written.
    pub option: &'static str,
    /// Whether it stands on the command line.
    pub is_given: bool,
}

/// Looks at what would be overwritten. Where that is permitted it is told as warnings.
///
/// # Errors
/// A usage failure that says what is there on each device and how to go on.
pub fn check(written: &[Written], permission: Permission) -> Result<Vec<Warning>> {
    let root = Root::open(None)?;
    let look = |one: Written| (one.target.to_string(), look(&root, &one));
    let looked: Vec<(String, Vec<Finding>)> = distinct(written).into_iter().map(look).collect();
    judge(&looked, permission)
}

/// Each target once: several jobs may have the same. One device by two names is told twice.
fn distinct<'a>(written: &[Written<'a>]) -> Vec<Written<'a>> {
    let mut distinct: Vec<Written> = Vec::new();
    for one in written {
        if distinct.iter().all(|other| other.target != one.target) {
            distinct.push(*one);
        }
    }
    distinct
}

/// One thing that stands against writing to a device.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    kind: Kind,
    /// In words: `nvme0n1 is mounted at /mnt (ext4)`.
    reason: String,
    /// What would remove it, where that is known.
    remedy: Option<String>,
}

/// What a finding leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A refusal, whatever is allowed.
    Impossible,
    /// A refusal, or with `--allow-destroy` a warning.
    Loss,
    /// A warning.
    Beside,
}

impl Finding {
    fn new(kind: Kind, reason: impl ToString, remedy: Option<String>) -> Finding {
        Finding {
            kind,
            reason: printable(&reason.to_string()),
            remedy: remedy.as_deref().map(printable),
        }
    }
}

/// All that stands against writing to one device.
fn look(root: &Root, written: &Written) -> Vec<Finding> {
    match place(root, written.target) {
        Place::Free => Vec::new(),
        Place::Opaque => of_signatures(ends::signatures(root, written.device), "it"),
        Place::Disk(name) => {
            let mut disk = Disk::read(root, &name);
            if disk.signatures.is_err()
                && let Ok(true) = ends::are_zero(written.device)
            {
                // Zeroes are nobody's signature, and it takes no program to see them.
                disk.signatures = Ok(Vec::new());
            }
            of_disk(&disk)
        }
    }
}

/// Where a target's data is, as far as anything may be lost there.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Made for the run, or a file, which is nobody's business.
    Free,
    /// The kernel's block device of this name.
    Disk(String),
    /// Out of the kernel's sight.
    Opaque,
}

fn place(root: &Root, target: &Target) -> Place {
    match target {
        Target::Kernel(kernel) if kernel.path == KernelPath::Null => Place::Free,
        Target::Kernel(kernel) => match disk_of_file(root, &kernel.file) {
            Some(name) => Place::Disk(name),
            // A namespace without a block device: the kernel cannot use its format.
            None if kernel.path == KernelPath::UringCmd => Place::Opaque,
            None => Place::Free,
        },
        Target::Soft { options, .. } => match options.parse::<soft::Options>().map(|o| o.storage) {
            // The software controller keeps its data where it is told, which may be a disk of the kernel's.
            Ok(Storage::File { path, .. }) => {
                disk_of_file(root, &path).map_or(Place::Opaque, Place::Disk)
            }
            Ok(_) => Place::Free,
            Err(_) => Place::Opaque,
        },
        // Vfio, vfio-user, and what else there may be one day.
        _ => Place::Opaque,
    }
}

fn of_disk(disk: &Disk) -> Vec<Finding> {
    let name = &disk.name;
    let mut findings: Vec<Finding> = disk.uses.iter().map(of_use).collect();
    if disk.is_claimed && findings.iter().all(|finding| finding.kind == Kind::Beside) {
        let reason = format!("{name} is claimed by the kernel or a process that cannot be seen");
        findings.push(Finding::new(Kind::Loss, reason, Some(format!("lsblk /dev/{name}"))));
    }
    if disk.is_read_only {
        let remedy = format!("blockdev --setrw /dev/{name}");
        findings.push(Finding::new(Kind::Impossible, format!("{name} is read-only"), Some(remedy)));
    }
    findings.extend(of_signatures(disk.signatures.clone(), name));
    findings
}

fn of_use(used: &Use) -> Finding {
    let (reason, remedy) = used.in_words();
    // An idle monitor has it open, too; who minds claims it.
    let kind = if matches!(used, Use::Open { .. }) { Kind::Beside } else { Kind::Loss };
    Finding::new(kind, reason, Some(remedy))
}

fn of_signatures(
    signatures: std::result::Result<Vec<Signature>, String>,
    device: &str,
) -> Vec<Finding> {
    match signatures {
        Ok(found) => told_once(&found)
            .into_iter()
            .map(|(reason, _)| Finding::new(Kind::Loss, reason, None))
            .collect(),
        Err(why) => {
            let reason = format!("what {device} holds cannot be told ({why})");
            let remedy = if why.contains("not installed") {
                "install wipefs (package util-linux)"
            } else {
                "it takes the right to read it"
            };
            vec![Finding::new(Kind::Loss, reason, Some(remedy.to_owned()))]
        }
    }
}

/// The warnings, or the refusal of all devices that are refused.
fn judge(looked: &[(String, Vec<Finding>)], permission: Permission) -> Result<Vec<Warning>> {
    let refuses = |finding: &&Finding| match finding.kind {
        Kind::Impossible => true,
        Kind::Loss => !permission.is_given,
        Kind::Beside => false,
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
    let mut text = format!("{device}: nothing was written, because");
    for finding in against {
        let remedy = finding.remedy.as_ref().map(|remedy| format!("; {remedy}"));
        write!(text, "\n  {}{}", finding.reason, remedy.unwrap_or_default())
            .expect("a String takes all");
    }
    let liftable = against.iter().all(|finding| finding.kind == Kind::Loss);
    text.push_str("\nuse another device");
    if liftable {
        write!(text, ", or add {option} if all that is there may be lost")
            .expect("a String takes all");
    }
    Failure::usage(text)
}

fn warning(device: &str, finding: &Finding, option: &str) -> Warning {
    let reason = &finding.reason;
    match finding.kind {
        Kind::Beside => Warning {
            code: "device-shared",
            text: format!("{device}: {reason}, so its figures and data may not be ours alone"),
        },
        _ => Warning {
            code: "data-destroyed",
            text: format!("{device}: {reason}, and is OVERWRITTEN, as {option} says"),
        },
    }
}

#[cfg(test)]
mod tests;
