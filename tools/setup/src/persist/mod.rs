//! Binding again at each boot: a systemd unit that runs `adit setup bind --recorded`, and vfio-pci among the modules that
//! are loaded at boot.
//!
//! The unit says nothing about devices: those are the recorded ones, and `bind` looks at each again. Root runs what the
//! unit names at every boot, so a program that others could replace is refused.

mod program;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::args::PersistArgs;
use super::change::Change;
use super::operation::{self, Operation};
use super::record::{self, STATE};
use super::root::Root;
use crate::failure::{Failure, Result};

/// The unit's file.
const UNIT: &str = "/etc/systemd/system/adit-setup.service";
/// The link by which a boot starts it, as `systemctl enable` makes it.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/adit-setup.service";
/// The list of modules (modules-load.d(5)).
const MODULES: &str = "/etc/modules-load.d/adit.conf";
/// Where it is to be seen that systemd has booted the machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// Who may read the files: nothing in them is secret.
const MODE: u32 = 0o644;

/// What a boot does from now on.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    /// Whether the unit is there.
    persistent: bool,
    /// The recorded devices that it binds.
    devices: Vec<String>,
}

/// `adit setup persist`.
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

/// The recorded devices, if there are any and a boot can bind them.
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

/// Installs the unit; `program` is what it runs.
fn begin(operation: &mut Operation, devices: Vec<String>, program: &str) -> Result<Outcome> {
    let root = operation.root;
    let files = [
        Change::File { path: MODULES.into(), content: modules(), mode: MODE },
        Change::File { path: UNIT.into(), content: unit(program), mode: MODE },
    ];
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
        "each boot binds {} after checking it again; 'journalctl -u adit-setup' tells what came of it, and a service that \
         uses the drives needs After=adit-setup.service",
        devices.join(", ")
    ))?;
    Ok(Outcome { persistent: true, devices })
}

fn modules() -> String {
    "# Written by 'adit setup persist'; 'adit setup persist --remove' removes it.\nvfio-pci\n"
        .to_owned()
}

/// The unit. By systemd's defaults it runs after the local file systems that a boot needs are mounted and swap is on, so
/// that what uses a drive is in the kernel's lists (mounts with `nofail` may come later: their signatures keep those
/// drives); `bind` itself waits for drives that are still being looked at.
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

/// Removes the unit and its files, if they are there; says whether there was something to do.
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
        operation.change(Change::Remove { path: path.into() })?;
    }
    reload(operation)?;
    Ok(true)
}

/// Lets systemd read its units now. The next boot does in any case, so nothing depends on this.
fn reload(operation: &mut Operation) -> Result<()> {
    if !operation.root.exists(SYSTEMD) {
        return Ok(());
    }
    let arguments = vec!["daemon-reload".to_owned()];
    match operation.change(Change::Run { program: "systemctl".to_owned(), arguments }) {
        Ok(()) => Ok(()),
        Err(why) => operation.say(format!("{why}; the next boot sees it all the same")),
    }
}
