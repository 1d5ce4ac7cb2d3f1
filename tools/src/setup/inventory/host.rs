//! What all controllers of a machine share: the IOMMU, the kernel, modules, hugepages, limits.

use serde::Serialize;

use crate::setup::root::Root;

/// The host.
#[derive(Debug, Serialize)]
pub(crate) struct Host {
    /// The kernel's release.
    pub(crate) kernel: Option<String>,
    /// What it was booted with.
    pub(crate) command_line: String,
    /// Translation of the devices' addresses.
    pub(crate) iommu: Iommu,
    /// The modules that bring VFIO.
    pub(crate) modules: Vec<Module>,
    /// Hugepages by node and size.
    pub(crate) hugepages: Vec<Hugepages>,
    /// Bytes of memory that a process of this user may lock; none for no limit.
    pub(crate) memlock: Memlock,
    /// Bytes of memory of this process's control group, the smallest on the way to the root; none for no limit.
    pub(crate) cgroup_memory_bytes: Option<u64>,
}

/// Translation of the devices' addresses.
#[derive(Debug, Serialize)]
pub(crate) struct Iommu {
    /// Whether it is in use: there are groups.
    pub(crate) on: bool,
    /// The units, `dmar0`, `ivhd0`.
    pub(crate) units: Vec<String>,
    /// How many groups there are.
    pub(crate) groups: usize,
    /// The table by which the firmware tells of it: `DMAR`, `IVRS`.
    pub(crate) firmware_table: Option<String>,
    /// Whether VFIO was told to do without.
    pub(crate) no_iommu_mode: bool,
}

/// A kernel module.
#[derive(Debug, Serialize)]
pub(crate) struct Module {
    /// `vfio`, `vfio_iommu_type1`, `vfio_pci`.
    pub(crate) name: String,
    /// What it is.
    pub(crate) state: ModuleState,
}

/// Whether a module is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModuleState {
    /// Loaded, or built in and initialized.
    Loaded,
    /// `modprobe` would find it.
    Available,
    /// Not in this kernel's modules.
    Missing,
    /// The kernel's modules cannot be looked at (a container).
    Unknown,
}

/// Hugepages of one size on one node.
#[derive(Debug, Serialize)]
pub(crate) struct Hugepages {
    /// The node.
    pub(crate) node: u32,
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// How many there are.
    pub(crate) total: u64,
    /// How many are unused.
    pub(crate) free: u64,
}

/// How much memory a process may lock, in bytes; none for no limit.
#[derive(Debug, Serialize)]
pub(crate) struct Memlock {
    /// Now.
    pub(crate) soft_bytes: Option<u64>,
    /// The most it may raise that to.
    pub(crate) hard_bytes: Option<u64>,
}

impl Host {
    /// Looks at the host.
    pub(super) fn read(root: &Root) -> Host {
        Host {
            kernel: root.text("/proc/sys/kernel/osrelease"),
            command_line: root.text("/proc/cmdline").unwrap_or_default(),
            iommu: Iommu {
                on: false,
                units: Vec::new(),
                groups: 0,
                firmware_table: None,
                no_iommu_mode: false,
            },
            modules: Vec::new(),
            hugepages: Vec::new(),
            memlock: Memlock { soft_bytes: None, hard_bytes: None },
            cgroup_memory_bytes: None,
        }
    }
}
