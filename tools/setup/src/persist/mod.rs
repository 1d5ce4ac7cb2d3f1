//! Rebinds devices at each boot: installs a systemd unit that runs `adit setup bind --recorded`, and loads
//! vfio-pci at boot.
//!
//! The unit names no devices; `bind` checks each recorded one again. Root runs the unit's program at every
//! boot, so a program that other users could replace is refused.

mod program;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::args::PersistArgs;
use super::change::Change;
use super::operation::{self, Operation};
use super::record::{self, STATE};
use super::root::{Root, SYSTEMD};
use crate::failure::{Failure, Result};

/// The unit's file.
const UNIT: &str = "/etc/systemd/system/adit-setup.service";
/// The link that enables the unit, as `systemctl enable` creates it.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/adit-setup.service";
/// The list of modules to load (modules-load.d(5)).
const MODULES: &str = "/etc/modules-load.d/adit.conf";
const MODULES_TEXT: &str =
    "# Written by 'adit setup persist'; 'adit setup persist --remove' removes it.\nvfio-pci\n";

/// What happens at boot from now on.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    /// Whether the unit is installed.
    persistent: bool,
    /// The recorded devices it binds.
    devices: Vec<String>,
}

/// Runs `adit setup persist`.
///
/// # Errors
/// A machine without systemd, no recorded device, a program that others can change, a change that fails.
pub(crate) fn run(root: &Root, args: &PersistArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| {
        if args.remove {
            return end(operation);
        }
        let devices = devices(root)?;
        begin(operation, devices, &program::path(root)?)
    })
}

/// Returns the recorded devices, if there are any and a boot can bind them.
fn devices(root: &Root) -> Result<Vec<String>> {
    let devices: Vec<String> = record::addresses(root).iter().map(ToString::to_string).collect();
    if devices.is_empty() {
        return Err(Failure::failed(
            "nothing is recorded as bound, so there is nothing to bind at boot; begin with 'sudo adit setup bind BDF'",
        ));
    }
    if !root.exists(SYSTEMD) {
        return Err(Failure::failed(
            "systemd has not booted this machine; let your init system run 'modprobe vfio-pci' and 'adit setup bind \
             --recorded' once the drives are there and /var is mounted",
        ));
    }
    Ok(devices)
}

/// Installs the unit that runs `program`.
fn begin(operation: &mut Operation, devices: Vec<String>, program: &str) -> Result<Outcome> {
    let root = operation.root;
    let files = [Change::file(MODULES, MODULES_TEXT), Change::file(UNIT, unit(program))];
    let mut written = false;
    for file in files {
        written |= operation.keep(file)?;
    }
    if root.link_name(ENABLED).is_none() {
        operation.change(Change::Link { path: ENABLED.into(), target: UNIT.into() })?;
        written = true;
    }
    if written {
        reload(operation)?;
    }
    operation.say(format!(
        "each boot binds {} after checking it again; 'journalctl -u adit-setup' shows the result, and a service that \
         uses the drives needs After=adit-setup.service",
        devices.join(", ")
    ))?;
    Ok(Outcome { persistent: true, devices })
}

/// Returns the unit's text. By systemd's defaults it runs after the required local file systems are mounted and
/// swap is on, so the kernel's lists show which drives are used. Mounts with `nofail` may come later;
/// signatures protect those drives. `bind` itself waits for drives that are still being scanned.
fn unit(program: &str) -> String {
    format!(
        "# Written by 'adit setup persist'; 'adit setup persist --remove' removes it.\n\
         [Unit]\n\
         Description=Bind the recorded NVMe drives to vfio-pci for Adit\n\
         Documentation=man:adit-setup-persist(1)\n\
         ConditionDirectoryNotEmpty={STATE}/devices\n\
         RequiresMountsFor={STATE} {program}\n\
         After=systemd-modules-load.service local-fs.target swap.target\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart={program} setup bind --recorded\n\
         TimeoutStartSec=15min\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

fn end(operation: &mut Operation) -> Result<Outcome> {
    if !remove(operation)? {
        operation
            .say("'adit setup persist' has installed nothing, so there is nothing to remove")?;
    }
    Ok(Outcome { persistent: false, devices: Vec::new() })
}

/// Removes the unit and its files, if they exist; returns whether there was anything to do.
///
/// # Errors
/// When a change fails.
pub(crate) fn remove(operation: &mut Operation) -> Result<bool> {
    let root = operation.root;
    let mut left =
        [ENABLED, UNIT, MODULES].into_iter().filter(|path| root.is_left(path)).peekable();
    if left.peek().is_none() {
        return Ok(false);
    }
    for path in left {
        operation.change(Change::remove(path))?;
    }
    reload(operation)?;
    Ok(true)
}

/// Makes systemd reload its units. The next boot does so anyway, so failure is harmless.
fn reload(operation: &mut Operation) -> Result<()> {
    if !operation.root.exists(SYSTEMD) {
        return Ok(());
    }
    operation.prompt("systemctl", &["daemon-reload"], "the next boot reads it anyway")
}
