//! What there is: the host, its NVMe controllers, what uses them, and whether Adit may take them.
//!
//! Read from sysfs, procfs and what `wipefs` finds on the devices; nothing is opened for writing. The field names are
//! those of the JSON.

mod disk;
mod exports;
mod function;
mod host;
mod mounts;
mod namespace;
mod notes;
mod open_files;
mod signature;
mod usage;
mod verdict;

use adit_driver::bus::pci::is_vfio;
use serde::Serialize;

use super::record::DeviceRecord;
use super::root::Root;

use usage::Usage;

pub use disk::{Disk, disk_of_file, signatures_of_file};
pub(crate) use host::{Host, Hugepages, ModuleState};
pub use verdict::told_once;
pub(crate) use verdict::{Obstacle, ObstacleKind};

/// The machine.
#[derive(Debug, Serialize)]
pub(crate) struct Inventory {
    /// What all controllers share.
    pub(crate) host: Host,
    /// The NVMe controllers by address.
    pub(crate) controllers: Vec<Function>,
    /// What could not be seen, and where to look for controllers that are missing; one sentence each.
    pub(crate) notes: Vec<String>,
}

/// One PCI function that speaks NVMe.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    /// Its address, `0000:01:00.0`.
    pub(crate) bdf: String,
    /// Vendor and device, `8086:0a54`.
    pub(crate) ids: String,
    /// From the kernel's driver, or from our record while it is bound to vfio-pci.
    pub(crate) model: Option<String>,
    /// Likewise.
    pub(crate) serial: Option<String>,
    /// Likewise.
    pub(crate) firmware: Option<String>,
    /// Bytes of all namespaces, likewise.
    pub(crate) size_bytes: Option<u64>,
    /// The node it is attached to.
    pub(crate) numa_node: Option<u32>,
    /// The driver that has it.
    pub(crate) driver: Option<String>,
    /// What the kernel's NVMe driver says of its controller: `live`, `resetting`, …; empty where it is too old to tell.
    pub(crate) state: Option<String>,
    /// How many virtual functions it has (SR-IOV).
    pub(crate) virtual_functions: u32,
    /// What `driver_override` says, if anything.
    pub(crate) driver_override: Option<String>,
    /// None while no IOMMU is in use.
    pub(crate) iommu_group: Option<Group>,
    /// None where the kernel does not tell.
    pub(crate) link: Option<Link>,
    /// The Intel VMD controller it is behind.
    pub(crate) vmd: Option<String>,
    /// Its block devices, while the kernel's driver has it.
    pub(crate) namespaces: Vec<Namespace>,
    /// Processes that have it open: its character devices, or its group's file.
    pub(crate) open_by: Vec<Process>,
    /// What was recorded when it was bound.
    pub(crate) record: Option<DeviceRecord>,
    /// Why Adit may not take it; it may where this is empty.
    pub(crate) obstacles: Vec<Obstacle>,
}

/// An IOMMU group: what the IOMMU cannot keep apart.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    /// Its number.
    pub(crate) number: u32,
    /// All its devices, this one included.
    pub(crate) members: Vec<Member>,
}

/// A device of a group.
#[derive(Debug, Serialize)]
pub(crate) struct Member {
    /// Its address.
    pub(crate) bdf: String,
    /// Its PCI class, `0x020000`.
    pub(crate) class: Option<String>,
    /// Its driver.
    pub(crate) driver: Option<String>,
    /// Whether the group can be used while that driver has it.
    pub(crate) viable: bool,
}

/// A PCIe link: as it is, and as the slower of its two ends could have it.
#[derive(Debug, Serialize)]
pub(crate) struct Link {
    /// Now, `16.0 GT/s`.
    pub(crate) speed: String,
    /// At most.
    pub(crate) speed_max: String,
    /// Lanes now.
    pub(crate) width: u32,
    /// At most.
    pub(crate) width_max: u32,
    /// Whether it is below what is possible.
    pub(crate) degraded: bool,
}

/// A namespace as a block device of the kernel.
#[derive(Debug, Serialize)]
pub(crate) struct Namespace {
    /// `nvme0n1`.
    pub(crate) name: String,
    /// Its size.
    pub(crate) size_bytes: u64,
    /// Its LBA size.
    pub(crate) lba_bytes: u32,
    /// Its partitions, `nvme0n1p1`, …
    pub(crate) partitions: Vec<String>,
    /// Who uses it or a partition of it.
    pub(crate) uses: Vec<Use>,
    /// What it and its partitions hold; none where that could not be looked at.
    pub(crate) signatures: Option<Vec<Signature>>,
    /// Why not.
    pub(crate) unreadable: Option<String>,
}

/// A use of a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Use {
    /// A file system is mounted, by this process or another's mount namespace.
    Mounted {
        /// The block device: the namespace, a partition or what holds it.
        device: String,
        /// Where.
        at: String,
        /// The file system.
        fstype: String,
        /// A process of the mount namespace in which it is; none for that of `adit` itself.
        inside: Option<Process>,
    },
    /// The kernel swaps to it.
    Swap {
        /// The block device.
        device: String,
    },
    /// Another block device is made of it.
    Holder {
        /// The block device that is held.
        device: String,
        /// The one that holds it: `dm-0`, `md127`, `bcache0`.
        holder: String,
        /// What that is: `LVM volume vg0-data`, `MD raid1 md127`, `dm-crypt luks-…`, `multipath mpatha`, `bcache`,
        /// `loop device`, `ZFS pool`.
        what: String,
    },
    /// A process has it open.
    Open {
        /// The block device.
        device: String,
        /// Who.
        process: Process,
    },
    /// The kernel gives it to others, as a target of NVMe over fabrics or SCSI.
    Exported {
        /// The block device, or the controller.
        device: String,
        /// By which target.
        by: String,
        /// The command that ends it.
        switch: String,
    },
    /// The kernel reaches the namespace through another controller, too.
    OtherPath {
        /// The multipath device.
        device: String,
        /// The other controller, `nvme1`.
        controller: String,
    },
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// Its command's name.
    pub(crate) name: String,
}

/// A signature by which a file system, RAID, volume manager or partition table knows its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// The block device.
    pub(crate) device: String,
    /// Where, in bytes.
    pub(crate) offset: u64,
    /// `ext4`, `LVM2_member`, `linux_raid_member`, `zfs_member`, `gpt`, …
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `filesystem`, `raid`, `partition-table`, `crypto` or `other`.
    pub(crate) usage: String,
    /// Its label, if it has one.
    pub(crate) label: Option<String>,
    /// Its UUID, if it has one.
    pub(crate) uuid: Option<String>,
}

impl Function {
    /// Whether the kernel's NVMe driver is at work on it.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state.as_deref(), Some("live" | ""))
    }

    /// Whether a VFIO driver has it.
    pub(crate) fn is_bound(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }
}

impl Inventory {
    /// Looks at everything.
    pub(crate) fn read(root: &Root) -> Inventory {
        let host = Host::read(root);
        let usage = Usage::read(root);
        let controllers = function::all(root, &host, &usage);
        let notes = notes::all(root, &controllers, &usage);
        Inventory { host, controllers, notes }
    }
}
