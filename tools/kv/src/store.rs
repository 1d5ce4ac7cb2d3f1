//! A store's devices: what may be opened as one, and what may be written.

use adit_driver::soft::{self, Storage};
use adit_driver::target::KernelPath;
use adit_driver::{Device, DeviceOptions, Target};

use crate::failure::{Failure, Result};

/// Requested I/O queues: the most shards a store can use on a controller that grants them.
const QUEUES: u16 = 64;

/// Returns a store's name for messages: its first device.
pub(crate) fn name(targets: &[Target]) -> String {
    targets.first().map(Target::device).unwrap_or_default()
}

/// Refuses targets that are given twice.
///
/// # Errors
/// A usage failure that names the target.
pub(crate) fn check_distinct(targets: &[Target]) -> Result<()> {
    let is_known = |(index, target): &(usize, &Target)| targets[..*index].contains(target);
    match targets.iter().enumerate().find(is_known) {
        None => Ok(()),
        Some((_, target)) => Err(Failure::usage(format!(
            "{target} is given twice; give each device of the store once"
        ))),
    }
}

/// Refuses repeated targets and files that do not exist; `fix` says what to do about the latter.
///
/// # Errors
/// The target.
pub(crate) fn check_there(targets: &[Target], fix: &str) -> Result<()> {
    let is_missing = |target: &&Target| match target {
        Target::Kernel(kernel) => {
            // If this is unknown, opening the device tells the reason.
            kernel.path != KernelPath::Null && matches!(kernel.file.try_exists(), Ok(false))
        }
        _ => false,
    };
    check_distinct(targets)?;
    match targets.iter().find(is_missing) {
        None => Ok(()),
        Some(target) => Err(Failure::failed(format!("{target}: there is no such file; {fix}"))),
    }
}

/// The advice if there is no store.
pub(crate) const NO_STORE: &str =
    "check the target's name, or create a store with 'adit kv format'";

/// Opens the devices exclusively; creates files if `file_bytes` gives their length.
///
/// # Errors
/// As [`Device::open`]; also if another process has a device open as a store.
pub(crate) fn open_devices(targets: &[Target], file_bytes: Option<u64>) -> Result<Vec<Device>> {
    match file_bytes {
        Some(_) => check_distinct(targets)?,
        None => check_there(targets, "create it with --size, or check the target's name")?,
    }
    let options = DeviceOptions {
        queue_count: QUEUES,
        exclusive: true,
        file_bytes,
        fills_holes: file_bytes.is_some(),
        ..DeviceOptions::default()
    };
    let mut devices: Vec<Device> = Vec::new();
    for target in targets {
        let opened = Device::open(target, &options);
        let opened = opened.inspect_err(|_| devices.iter().for_each(Device::take_back_file));
        devices.push(opened?);
    }
    Ok(devices)
}

/// Returns whether a target's contents exist only for this run.
pub(crate) fn is_made_for_the_run(target: &Target) -> bool {
    match target {
        Target::Kernel(kernel) => kernel.path == KernelPath::Null,
        Target::Soft { options, .. } => options
            .parse::<soft::Options>()
            .is_ok_and(|options| !matches!(options.storage, Storage::File { .. })),
        _ => false,
    }
}
