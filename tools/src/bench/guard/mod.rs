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

use super::options::RunOptions;
use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::setup::inventory::{Disk, Signature, Use, disk_of_file, told_once};
use crate::setup::root::Root;

/// What jobs are about to write to or trim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intent<'a> {
    /// What was asked for.
    pub(crate) target: &'a Target,
    /// The same, open. A queue of it must be free for a moment.
    pub(crate) device: &'a Device,
    /// What is allowed.
    pub(crate) run: &'a RunOptions,
}

/// Looks at what would be overwritten. With `--allow-destroy` that is told as warnings.
///
/// # Errors
/// A usage failure that says what is there and how to go on.
pub(crate) fn check(intent: &Intent) -> Result<()> {
    let target = intent.target;
    if intent.run.readonly {
        return Err(Failure::usage(format!(
            "{target}: a job writes or trims, which --readonly forbids; leave one of them out"
        )));
    }
    let findings = look(&Root::open(None)?, intent);
    for warning in judge(target, &findings, intent.run.allow_destroy)? {
        tracing::warn!("{warning}");
    }
    Ok(())
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
fn look(root: &Root, intent: &Intent) -> Vec<Finding> {
    match place(root, intent.target) {
        Place::Free => Vec::new(),
        Place::Opaque => of_signatures(ends::signatures(root, intent.device), "it"),
        Place::Disk(name) => {
            let mut disk = Disk::read(root, &name);
            if disk.signatures.is_err()
                && let Ok(true) = ends::are_zero(intent.device)
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
        Target::Soft { options, .. } => match options.parse::<soft::Options>() {
            Ok(options) if !matches!(options.storage, Storage::File { .. }) => Place::Free,
            _ => Place::Opaque,
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

/// The warnings, or the refusal.
fn judge(target: &Target, findings: &[Finding], allow_destroy: bool) -> Result<Vec<String>> {
    let refuses = |finding: &&Finding| match finding.kind {
        Kind::Impossible => true,
        Kind::Loss => !allow_destroy,
        Kind::Beside => false,
    };
    let against: Vec<&Finding> = findings.iter().filter(refuses).collect();
    if against.is_empty() {
        Ok(findings.iter().map(|finding| warning(target, finding)).collect())
    } else {
        Err(refusal(target, &against))
    }
}

fn refusal(target: &Target, against: &[&Finding]) -> Failure {
    let mut text = format!("{target}: nothing was written, because");
    for finding in against {
        let remedy = finding.remedy.as_ref().map(|remedy| format!("; {remedy}"));
        write!(text, "\n  {}{}", finding.reason, remedy.unwrap_or_default())
            .expect("a String takes all");
    }
    let liftable = against.iter().all(|finding| finding.kind == Kind::Loss);
    text.push_str(if liftable {
        "\nuse another device, or add --allow-destroy if all that is there may be lost"
    } else {
        "\nuse another device"
    });
    Failure::usage(text)
}

fn warning(target: &Target, finding: &Finding) -> String {
    let reason = &finding.reason;
    match finding.kind {
        Kind::Beside => {
            format!("{target}: {reason}, so its figures and data may not be ours alone")
        }
        _ => format!("{target}: {reason}, and is OVERWRITTEN, as --allow-destroy says"),
    }
}

#[cfg(test)]
mod tests;
