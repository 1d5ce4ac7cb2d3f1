//! The inventory: the host, its NVMe controllers, their users, and whether Adit may take them.
//!
//! Reads sysfs, procfs and `wipefs`'s findings; opens nothing for writing. The field names are those of the
//! JSON.

mod disk;
mod exports;
mod function;
mod host;
mod mounts;
mod namespace;
mod notes;
mod open_files;
pub(crate) mod pool;
mod signature;
mod usage;
mod verdict;

use adit_driver::bus::pci::{VirtualFunction, is_vfio};
use serde::Serialize;

use super::record::DeviceRecord;
use super::root::Root;

use usage::Usage;

pub use disk::{Disk, disk_of_file, signatures_of_file};
pub(crate) use host::{Host, Hugepages, ModuleState, NO_IOMMU_GROUP};
pub use verdict::told_once;
pub(crate) use verdict::{Obstacle, ObstacleKind};

/// The machine.
#[derive(Debug, Serialize)]
pub(crate) struct Inventory {
    /// What all controllers share.
    pub(crate) host: Host,
    /// The NVMe controllers by address.
    pub(crate) controllers: Vec<Function>,
    /// What could not be seen, and where missing controllers may be; one sentence each.
    pub(crate) notes: Vec<String>,
}

/// An NVMe PCI function.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    /// Its address, such as `0000:01:00.0`.
    pub(crate) bdf: String,
    /// Vendor and device ids, such as `8086:0a54`.
    pub(crate) ids: String,
    /// Its model, from the kernel's driver, or from our record while it is bound to vfio-pci.
    pub(crate) model: Option<String>,
    /// Its serial number, from the same source.
    pub(crate) serial: Option<String>,
    /// Its firmware revision, from the same source.
    pub(crate) firmware: Option<String>,
    /// Bytes of all namespaces, from the same source.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) driver: Option<String>,
    /// The controller's state according to the kernel's NVMe driver: `live`, `resetting`, …; empty if the
    /// driver is too old to tell.
    pub(crate) state: Option<String>,
    /// Number of SR-IOV virtual functions.
    pub(crate) virtual_functions: u32,
    /// Its physical function, if it is a virtual function.
    #[serde(serialize_with = "function::virtual_function")]
    pub(crate) virtual_function: Option<VirtualFunction>,
    /// Its `driver_override`, if set.
    pub(crate) driver_override: Option<String>,
    /// Its IOMMU group; `None` without an IOMMU.
    pub(crate) iommu_group: Option<Group>,
    /// Its PCIe link; `None` if unknown.
    pub(crate) link: Option<Link>,
    /// The Intel VMD controller above it.
    pub(crate) vmd: Option<String>,
    /// Its block devices, while the kernel's driver has it.
    pub(crate) namespaces: Vec<Namespace>,
    /// Processes that have its character devices or its group's file open.
    pub(crate) open_by: Vec<Process>,
    /// The record written when it was bound.
    pub(crate) record: Option<DeviceRecord>,
    /// Whether it was bound in this boot: if vfio-pci has the device of an older record, another tool bound it.
    #[serde(skip)]
    pub(crate) is_recorded_now: bool,
    /// Why Adit may not take it; empty if it may.
    pub(crate) obstacles: Vec<Obstacle>,
}

/// An IOMMU group: devices the IOMMU cannot isolate from each other.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) number: u32,
    /// All its devices, including this one.
    pub(crate) members: Vec<Member>,
}

/// A device of a group.
#[derive(Debug, Serialize)]
pub(crate) struct Member {
    /// Its address.
    pub(crate) bdf: String,
    /// Its PCI class, such as `0x020000`.
    pub(crate) class: Option<String>,
    pub(crate) driver: Option<String>,
    /// Whether the group is usable while that driver has it.
    pub(crate) viable: bool,
}

/// A PCIe link: its current state, and the best one the slower of its ends supports.
#[derive(Debug, Serialize)]
pub(crate) struct Link {
    /// Current speed, such as `16.0 GT/s`.
    pub(crate) speed: String,
    /// Maximum speed.
    pub(crate) speed_max: String,
    /// Current number of lanes.
    pub(crate) width: u32,
    /// Maximum number of lanes.
    pub(crate) width_max: u32,
    /// Whether it is below its maximum.
    pub(crate) degraded: bool,
}

/// A namespace as a block device of the kernel.
#[derive(Debug, Serialize)]
pub(crate) struct Namespace {
    /// Its name, such as `nvme0n1`.
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Its LBA size.
    pub(crate) lba_bytes: u32,
    /// Its partitions, such as `nvme0n1p1`.
    pub(crate) partitions: Vec<String>,
    /// Uses of it or its partitions.
    pub(crate) uses: Vec<Use>,
    /// Signatures on it and its partitions; `None` if unknown.
    pub(crate) signatures: Option<Vec<Signature>>,
    /// Why they are unknown.
    pub(crate) unreadable: Option<String>,
    /// Whether it is a device of a store of Adit, by either superblock; `None` if that cannot be read. A store does not
    /// keep a drive from being taken, as it is used through VFIO.
    pub(crate) holds_store: Option<bool>,
}

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

/// A process of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id.
    pub(crate) pid: u32,
    /// Its command name.
    pub(crate) name: String,
}

/// The signature of a file system, RAID, volume manager or partition table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// The block device.
    pub(crate) device: String,
    /// Its byte offset.
    pub offset: u64,
    /// Its type: `ext4`, `LVM2_member`, `linux_raid_member`, `zfs_member`, `gpt`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Its usage: `filesystem`, `raid`, `partition-table`, `crypto` or `other`.
    pub(crate) usage: String,
    pub(crate) label: Option<String>,
    pub(crate) uuid: Option<String>,
}

impl Function {
    /// Returns whether the kernel's NVMe driver operates it.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state.as_deref(), Some("live" | ""))
    }

    /// Returns its place on its physical function if it may not be online there: the kernel's driver lets go
    /// of a virtual function that does not answer.
    pub(crate) fn perhaps_offline(&self) -> Option<&VirtualFunction> {
        let let_go = self.driver.is_none() && self.record.is_none();
        self.virtual_function.as_ref().filter(|_| let_go)
    }

    /// Returns whether a VFIO driver has it.
    pub(crate) fn is_bound(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }
}

impl Inventory {
    /// Takes the inventory.
    pub(crate) fn read(root: &Root) -> Inventory {
        let host = Host::read(root);
        let usage = Usage::read(root);
        let controllers = function::all(root, &host, &usage);
        let notes = notes::all(root, &controllers, &usage);
        Inventory { host, controllers, notes }
    }
}
