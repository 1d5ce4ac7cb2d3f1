//! What uses a block device; [`Usage`](super::usage::Usage) finds it.

use serde::Serialize;

use super::process::Process;

/// A use of a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Use {
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
