//! What uses a block device; [`Usage`](super::usage::Usage) finds it.

use adit_tools_common::human::shell_word;
use serde::Serialize;

use super::process::Process;

/// A use of a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Use {
    /// A file system is mounted, in this process's or another mount namespace.
    Mounted {
        /// The block device: the namespace, a partition, or a device made of it.
        device: String,
        /// The mount point.
        at: String,
        /// The file system.
        fstype: String,
        /// A process of its mount namespace; `None` for `adit`'s own.
        inside: Option<Process>,
    },
    /// It is used for swap.
    Swap {
        /// The block device.
        device: String,
    },
    /// Another block device is made of it.
    Holder {
        /// The block device that is held.
        device: String,
        /// That device, such as `dm-0`, `md127`, `bcache0`.
        holder: String,
        /// A description: `LVM volume vg0-data`, `MD raid1 md127`, `dm-crypt luks-…`, `multipath mpatha`,
        /// `bcache`, `loop device`, `ZFS pool`.
        what: String,
    },
    /// A process has it open.
    Open {
        /// The block device.
        device: String,
        /// The process that has it open.
        process: Process,
    },
    /// The kernel exports it, as a target of NVMe over fabrics or SCSI.
    Exported {
        /// The block device, or the controller.
        device: String,
        /// The target.
        by: String,
        /// The command that ends the export.
        switch: String,
    },
    /// The kernel also reaches the namespace through another controller.
    OtherPath {
        /// The multipath device.
        device: String,
        /// The other controller, such as `nvme1`.
        controller: String,
    },
}

impl Use {
    /// Describes the use, and how to end it.
    pub fn in_words(&self) -> (String, String) {
        match self {
            Use::Mounted { device, at, fstype, inside } => {
                mounted(device, at, fstype, inside.as_ref())
            }
            Use::Swap { device } => {
                (format!("{device} is used for swap"), format!("swapoff /dev/{device}"))
            }
            Use::Holder { device, holder, what } => {
                (part_of(device, holder, what), release(holder, what))
            }
            Use::Open { device, process } => process.opened(device),
            Use::Exported { device, by, switch } => {
                (format!("{device} is exported by {by}"), switch.clone())
            }
            Use::OtherPath { device, controller } => (
                format!("{device} has another path, through {controller}"),
                format!("detach the namespace from {controller}"),
            ),
        }
    }
}

fn part_of(device: &str, holder: &str, what: &str) -> String {
    match what {
        "loop device" => format!("{device} is behind the loop device {holder}"),
        // Arrays go by the kernel's name.
        _ if what.ends_with(holder) => format!("{device} is part of {what}"),
        _ => format!("{device} is part of {what} ({holder})"),
    }
}

fn mounted(device: &str, at: &str, fstype: &str, inside: Option<&Process>) -> (String, String) {
    let reason = format!("{device} is mounted at {at} ({fstype})");
    match inside {
        None if at == "/" => (reason, "none: this machine runs from it".to_owned()),
        None => (reason, format!("umount {}", shell_word(at))),
        Some(Process { pid, name }) => (
            format!("{reason} in the mount namespace of process {pid} ({name})"),
            format!(
                "end that container, or: nsenter --mount --target {pid} umount {}",
                shell_word(at)
            ),
        ),
    }
}

/// Returns the command that releases a holder's devices, to be run after releasing whatever is made of the
/// holder.
fn release(holder: &str, what: &str) -> String {
    let (kind, name) = what.rsplit_once(' ').unwrap_or((what, holder));
    let name = shell_word(name);
    match kind {
        "LVM volume" => format!("lvchange --activate n /dev/mapper/{name}"),
        "dm-crypt" => format!("cryptsetup close {name}"),
        "multipath" => format!("multipath -f {name}"),
        "device mapper" => format!("dmsetup remove {name}"),
        "bcache" => format!("echo 1 > /sys/block/{holder}/bcache/stop"),
        "loop" => format!("losetup --detach /dev/{holder}"),
        "ZFS" => format!("zpool export {}", shell_word(holder)),
        kind if kind.starts_with("MD ") => format!("mdadm --stop /dev/{holder}"),
        _ => format!("take {holder} apart, or move it to other devices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_holder_has_its_own_command() {
        for (holder, what, command) in [
            ("dm-0", "LVM volume vg-a", "lvchange --activate n /dev/mapper/vg-a"),
            ("dm-0", "dm-crypt luks-x", "cryptsetup close luks-x"),
            ("dm-0", "multipath mpatha", "multipath -f mpatha"),
            ("dm-0", "device mapper x", "dmsetup remove x"),
            ("md127", "MD raid1 md127", "mdadm --stop /dev/md127"),
            ("loop5", "loop device", "losetup --detach /dev/loop5"),
            ("tank", "ZFS pool", "zpool export tank"),
            ("bcache0", "bcache", "echo 1 > /sys/block/bcache0/bcache/stop"),
        ] {
            assert_eq!(release(holder, what), command);
        }
        assert!(release("drbd0", "drbd0").contains("take drbd0 apart"));
    }

    #[test]
    fn remedies_are_for_a_shell() {
        let mounted = Use::Mounted {
            device: "nvme0n1".to_owned(),
            at: "/srv/it's $(here)".to_owned(),
            fstype: "ext4".to_owned(),
            inside: None,
        };
        assert_eq!(mounted.in_words().1, "umount '/srv/it'\\''s $(here)'");
    }
}
