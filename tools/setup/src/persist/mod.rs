//! Prints what binds the recorded devices at each boot: a systemd unit that runs `adit setup bind --recorded`,
//! and a line that loads vfio-pci.
//!
//! The unit names no devices; `bind` checks each recorded one again. Root runs the unit's program at every
//! boot, so a program that other users could replace is refused.

mod program;

use super::record::{self, STATE};
use super::script::{Script, ScriptFile};
use crate::failure::{Failure, Result};
use adit_guard::root::Root;

/// The unit's file.
const UNIT: &str = "/etc/systemd/system/adit-setup.service";
/// The list of modules to load (modules-load.d(5)).
const MODULES: &str = "/etc/modules-load.d/adit.conf";
/// Exists after systemd has booted the machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// Runs `adit setup persist`.
///
/// # Errors
/// A machine without systemd, no recorded device, a program that others can change.
pub(crate) fn run(root: &Root, json: bool) -> Result<()> {
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
    script(&devices, &program::path(root)?).print(json)
}

/// Returns what installs the unit that runs `program`.
fn script(devices: &[String], program: &str) -> Script {
    Script {
        notes: vec![
            format!("Each boot binds {} after checking it again.", devices.join(", ")),
            "'journalctl -u adit-setup' shows the result; a service that uses the drives needs \
             After=adit-setup.service."
                .to_owned(),
        ],
        files: vec![
            ScriptFile { path: MODULES, content: "vfio-pci\n".to_owned() },
            ScriptFile { path: UNIT, content: unit(program) },
        ],
        commands: vec!["systemctl enable adit-setup.service".to_owned()],
        undo: vec![
            "systemctl disable adit-setup.service".to_owned(),
            format!("rm {UNIT} {MODULES}"),
            "systemctl daemon-reload".to_owned(),
        ],
    }
}

/// Returns the unit's text. By systemd's defaults it runs after the required local file systems are mounted and
/// swap is on, so the kernel's lists show which drives are used. Mounts with `nofail` may come later;
/// signatures protect those drives. `bind` itself waits for drives that are still being scanned.
fn unit(program: &str) -> String {
    format!(
        "[Unit]\n\
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
