//! What all controllers of a machine share: the IOMMU, the kernel, modules, hugepages, limits.
//!
//! Everything is readable without root, and everything may be missing in a container, in a guest or with
//! another kernel. Missing values read as absent, empty or unknown. This module makes no judgements.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::pool::{self, Pages, Pool};
use adit_guard::root::Root;

/// VFIO's modules, in order of dependency.
const MODULES: [&str; 3] = ["vfio", "vfio_iommu_type1", "vfio_pci"];

/// Tables in which firmware or a hypervisor describes an IOMMU: Intel's, AMD's, virtio's.
const FIRMWARE_TABLES: [&str; 3] = ["DMAR", "IVRS", "VIOT"];

/// The firmware's tables; all users can list them, only root can read them.
const ACPI_TABLES: &str = "/sys/firmware/acpi/tables";

/// Files that identify a container.
const CONTAINER_MARKS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];

/// The name of groups that VFIO creates for devices without an IOMMU.
pub(crate) const NO_IOMMU_GROUP: &str = "vfio-noiommu";

/// `CAP_IPC_LOCK` in a capability set.
const IPC_LOCK: u64 = 1 << 14;

/// Version 1 control group limits from this size on mean no limit: the kernel prints the most pages it can
/// count.
const NO_LIMIT_BYTES: u64 = 1 << 62;

#[derive(Debug, Serialize)]
pub(crate) struct Host {
    /// The kernel's release.
    pub(crate) kernel: Option<String>,
    /// The kernel's command line.
    pub(crate) command_line: String,
    /// The kind of machine, as far as it affects remedies.
    pub(crate) machine: MachineKind,
    /// Translation of device addresses.
    pub(crate) iommu: Iommu,
    /// VFIO's modules.
    pub(crate) modules: Vec<Module>,
    /// The files in `/dev/vfio`: `vfio`, and one for each group, named by its number.
    pub(crate) vfio_files: Vec<VfioFile>,
    /// Hugepages by node and size.
    pub(crate) hugepages: Vec<Hugepages>,
    /// Bytes of memory this process may lock.
    pub(crate) memlock: Memlock,
    /// Memory limit of this process's control group in bytes, the smallest on the path to the root; `None` for
    /// no limit.
    pub(crate) cgroup_memory_bytes: Option<u64>,
}

/// The kind of machine.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MachineKind {
    /// The processor's vendor, such as `GenuineIntel`.
    pub(crate) processor: Option<String>,
    /// Whether it runs under a hypervisor.
    pub(crate) is_virtual: bool,
    /// Whether this process is in a container, which cannot load modules or create device files.
    pub(crate) container: bool,
    /// Whether the firmware's (ACPI) tables are visible.
    pub(crate) acpi: bool,
}

/// Translation of device addresses.
#[derive(Debug, Serialize)]
pub(crate) struct Iommu {
    /// Whether it is in use, that is, groups exist.
    pub(crate) on: bool,
    /// The units, such as `dmar0`, `ivhd0`.
    pub(crate) units: Vec<String>,
    pub(crate) groups: usize,
    /// The firmware table that describes it: `DMAR`, `IVRS`, `VIOT`.
    pub(crate) firmware_table: Option<String>,
    /// Whether VFIO's no-IOMMU mode is enabled.
    pub(crate) no_iommu_mode: bool,
}

/// A kernel module.
#[derive(Debug, Serialize)]
pub(crate) struct Module {
    /// `vfio`, `vfio_iommu_type1`, `vfio_pci`.
    pub(crate) name: String,
    pub(crate) state: ModuleState,
}

/// The state of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModuleState {
    /// Loaded, or built in.
    Loaded,
    /// `modprobe` can load it.
    Available,
    /// Not among this kernel's modules.
    Missing,
    /// The kernel's modules are not visible (in a container).
    Unknown,
}

/// A file in `/dev/vfio`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct VfioFile {
    /// `vfio`, `12`, `noiommu-0`.
    pub(crate) name: String,
    /// Whether this user may open it.
    pub(crate) openable: bool,
}

/// Hugepages of one size on one node.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Hugepages {
    pub(crate) node: u32,
    pub(crate) page_bytes: u64,
    /// Number of pages.
    pub(crate) total: u64,
    /// Number of unused pages.
    pub(crate) free: u64,
}

/// How much memory a process may lock, in bytes; `None` for no limit.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Memlock {
    /// The current limit.
    pub(crate) soft_bytes: Option<u64>,
    /// The highest limit it may set.
    pub(crate) hard_bytes: Option<u64>,
    /// Whether this process is exempt (`CAP_IPC_LOCK`, which root has).
    pub(crate) exempt: bool,
}

impl Host {
    /// Inspects the host.
    pub(super) fn read(root: &Root) -> Host {
        let kernel = root.text("/proc/sys/kernel/osrelease");
        Host {
            command_line: root.text("/proc/cmdline").unwrap_or_default(),
            machine: MachineKind::read(root),
            iommu: Iommu::read(root),
            modules: modules(root, kernel.as_deref()),
            vfio_files: vfio_files(root),
            hugepages: hugepages(root),
            memlock: Memlock::read(root),
            cgroup_memory_bytes: cgroup_memory(root),
            kernel,
        }
    }
}

impl MachineKind {
    fn read(root: &Root) -> MachineKind {
        let mut seen = BTreeSet::new();
        // All processors have the same values.
        let first = |line: &str| {
            let name = line.split(':').next().unwrap_or_default().trim();
            ["vendor_id", "flags"].contains(&name) && seen.insert(name.to_owned())
        };
        let lines = root.lines("/proc/cpuinfo", first).unwrap_or_default();
        let words = |name: &str| {
            let line = lines.iter().find(|line| line.starts_with(name));
            let values =
                line.and_then(|line| line.split_once(':')).map_or("", |(_, values)| values);
            values.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        MachineKind {
            processor: words("vendor_id").into_iter().next(),
            is_virtual: words("flags").iter().any(|flag| flag == "hypervisor"),
            container: CONTAINER_MARKS.iter().any(|mark| root.present(mark)),
            acpi: root.exists(ACPI_TABLES),
        }
    }
}

impl Iommu {
    fn read(root: &Root) -> Iommu {
        let groups = groups(root);
        let table =
            FIRMWARE_TABLES.iter().find(|table| root.present(Path::new(ACPI_TABLES).join(table)));
        let mode = root.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
        Iommu {
            on: groups > 0,
            units: root.names("/sys/class/iommu"),
            groups,
            firmware_table: table.map(ToString::to_string),
            no_iommu_mode: mode.is_some_and(|mode| mode == "Y" || mode == "1"),
        }
    }
}

/// Returns the number of groups an IOMMU separates.
fn groups(root: &Root) -> usize {
    let directory = Path::new("/sys/kernel/iommu_groups");
    let names = root.names(directory).into_iter();
    // Only named groups have this file.
    let name = |group: &String| root.text(directory.join(group).join("name"));
    names.filter(|group| name(group).is_none_or(|name| name != NO_IOMMU_GROUP)).count()
}

fn modules(root: &Root, kernel: Option<&str>) -> Vec<Module> {
    let installed = kernel.and_then(|kernel| Installed::read(root, kernel));
    let state = |name: &str| match &installed {
        _ if root.exists(Path::new("/sys/module").join(name)) => ModuleState::Loaded,
        Some(installed) if installed.built_in.contains(name) => ModuleState::Loaded,
        Some(installed) if installed.loadable.contains(name) => ModuleState::Available,
        Some(_) => ModuleState::Missing,
        None => ModuleState::Unknown,
    };
    MODULES.map(|name| Module { name: name.to_owned(), state: state(name) }).into()
}

/// The [`MODULES`] that the kernel includes.
struct Installed {
    built_in: BTreeSet<String>,
    loadable: BTreeSet<String>,
}

impl Installed {
    /// Reads the kernel's lists; `None` if they are not visible.
    fn read(root: &Root, kernel: &str) -> Option<Installed> {
        let directory = Path::new("/lib/modules").join(kernel);
        let listed = |file: &str| {
            let ours = |line: &str| module_of(line).is_some_and(|name| MODULES.contains(&&*name));
            let lines = root.lines(directory.join(file), ours)?;
            Some(lines.iter().filter_map(|line| module_of(line)).collect())
        };
        match (listed("modules.builtin"), listed("modules.dep")) {
            (None, None) => None,
            (built_in, loadable) => Some(Installed {
                built_in: built_in.unwrap_or_default(),
                loadable: loadable.unwrap_or_default(),
            }),
        }
    }
}

/// Returns the module a line of `modules.dep` or `modules.builtin` names, as `/sys/module` spells it:
/// `kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/…` is `vfio_pci`.
fn module_of(line: &str) -> Option<String> {
    let path = line.split(':').next()?.trim();
    let file = path.rsplit('/').next()?;
    let (name, packed) = file.split_once(".ko")?;
    let known = packed.is_empty() || packed.starts_with('.');
    (known && !name.is_empty()).then(|| name.replace('-', "_"))
}

fn vfio_files(root: &Root) -> Vec<VfioFile> {
    let directory = Path::new("/dev/vfio");
    let file =
        |name: String| Some(VfioFile { openable: root.openable(directory.join(&name))?, name });
    root.note(directory);
    root.names_quietly(directory).into_iter().filter_map(file).collect()
}

/// Returns the pools; a kernel without NUMA has them on node 0.
fn hugepages(root: &Root) -> Vec<Hugepages> {
    let counted = |pool: Pool| {
        let Pages { total, free, .. } = pool.pages(root)?;
        let node = pool.node.unwrap_or(0);
        Some(Hugepages { node, page_bytes: pool.page_bytes, total, free })
    };
    pool::all(root).into_iter().filter_map(counted).collect()
}

impl Memlock {
    /// Reads the limits; if they are unknown, nothing may be locked.
    fn read(root: &Root) -> Memlock {
        let limits = root.text("/proc/self/limits").unwrap_or_default();
        let (soft_bytes, hard_bytes) = parse_memlock(&limits).unwrap_or((Some(0), Some(0)));
        Memlock { soft_bytes, hard_bytes, exempt: is_exempt(root) }
    }
}

/// Parses the soft and the hard limit of the line `Max locked memory         8388608              unlimited
/// bytes`.
fn parse_memlock(limits: &str) -> Option<(Option<u64>, Option<u64>)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory "))?;
    let mut fields = line.split_whitespace().map(|field| match field {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    });
    Some((fields.next()??, fields.next()??))
}

/// Returns whether the process has the capability in the initial user namespace, where the kernel checks it;
/// there, all users are mapped to themselves.
fn is_exempt(root: &Root) -> bool {
    let effective = |line: &str| line.starts_with("CapEff:");
    let lines = root.lines("/proc/self/status", effective).unwrap_or_default();
    let capable = lines.iter().filter_map(|line| capabilities(line)).any(|set| set & IPC_LOCK != 0);
    let users = root.text("/proc/self/uid_map").unwrap_or_default();
    capable && users.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Parses the set in a line `CapEff:\t000001ffffffffff`.
fn capabilities(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_once(':')?.1.trim(), 16).ok()
}

/// Returns the smallest limit of this process's control groups of both versions.
fn cgroup_memory(root: &Root) -> Option<u64> {
    let text = root.text("/proc/self/cgroup")?;
    let files = cgroup_files(&text).into_iter();
    files.filter_map(|file| cgroup_limit(&root.text(file)?)).min()
}

/// Returns the files with memory limits for each group on the path to the root.
fn cgroup_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next(), fields.next(), fields.next());
        let (mount, file) = match (id, controllers) {
            (Some("0"), Some("")) => ("/sys/fs/cgroup", "memory.max"),
            (_, Some(some)) if some.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let within = within(path.unwrap_or_default());
        files.extend(within.ancestors().map(|group| Path::new(mount).join(group).join(file)));
    }
    files
}

/// Returns the path without its leading slash. A group outside of this process's cgroup namespace reads
/// `/../..`; only the part mounted here is visible.
fn within(path: &str) -> PathBuf {
    let path = Path::new(path.trim_start_matches('/'));
    let below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if below { path.to_owned() } else { PathBuf::new() }
}

/// Parses a limit; `None` for `max`, and for version 1's equivalent number.
fn cgroup_limit(text: &str) -> Option<u64> {
    text.parse().ok().filter(|bytes| *bytes < NO_LIMIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "\
/proc/sys/kernel/osrelease = 6.1.0-18-amd64
/proc/cmdline = BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on
/proc/cpuinfo:
    processor\t: 0
    vendor_id\t: AuthenticAMD
    flags\t\t: fpu vme hypervisor aes
    processor\t: 1
    vendor_id\t: AuthenticAMD
    flags\t\t: fpu vme hypervisor aes
/run/.containerenv = 
/sys/class/iommu/dmar0 -> ../../devices/virtual/iommu/dmar0
/sys/class/iommu/dmar1 -> ../../devices/virtual/iommu/dmar1
/sys/devices/virtual/iommu/dmar0/
/sys/devices/virtual/iommu/dmar1/
/sys/kernel/iommu_groups/0/
/sys/kernel/iommu_groups/12/
/sys/kernel/iommu_groups/13/name = vfio-noiommu
/sys/firmware/acpi/tables/DMAR = (not recorded)
/sys/module/vfio/parameters/enable_unsafe_noiommu_mode = N
/lib/modules/6.1.0-18-amd64/modules.builtin = kernel/drivers/vfio/vfio_iommu_type1.ko
/lib/modules/6.1.0-18-amd64/modules.dep:
    kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz
    kernel/drivers/net/ethernet/intel/igb/igb.ko: kernel/drivers/i2c/i2c-core.ko
/dev/vfio/devices/vfio0 = may be opened
/dev/vfio/vfio = may be opened
/dev/vfio/12 = permission denied
/sys/devices/system/node/online = 0-1
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages = 512
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages = 500
/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages = 2
/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages = 1
/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages = 0
/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages = 0
/proc/self/limits:
    Limit                     Soft Limit           Hard Limit           Units
    Max processes             127000               127000               processes
    Max locked memory         8388608              unlimited            bytes
/proc/self/cgroup = 0::/user.slice/user-1000.slice
/sys/fs/cgroup/user.slice/memory.max = 4294967296
/sys/fs/cgroup/user.slice/user-1000.slice/memory.max = max
";

    #[test]
    fn a_host_reads_as_the_kernel_prints_it() {
        let root = Root::recorded(HOST).expect("a recording");
        let host = Host::read(&root);
        assert_eq!(host.kernel.as_deref(), Some("6.1.0-18-amd64"));
        assert!(host.command_line.ends_with("intel_iommu=on"));
        let machine = MachineKind {
            processor: Some("AuthenticAMD".to_owned()),
            is_virtual: true,
            container: true,
            acpi: true,
        };
        assert_eq!(host.machine, machine);
        assert!(host.iommu.on && !host.iommu.no_iommu_mode);
        assert_eq!((host.iommu.units.len(), host.iommu.groups), (2, 2));
        assert_eq!(host.iommu.firmware_table.as_deref(), Some("DMAR"));
        let states: Vec<ModuleState> = host.modules.iter().map(|module| module.state).collect();
        assert_eq!(states, [ModuleState::Loaded, ModuleState::Loaded, ModuleState::Available]);
        let files = [("12", false), ("vfio", true)]
            .map(|(name, openable)| VfioFile { name: name.to_owned(), openable });
        assert_eq!(host.vfio_files, files);
        assert_eq!(
            host.hugepages,
            [
                Hugepages { node: 0, page_bytes: 2 << 20, total: 512, free: 500 },
                Hugepages { node: 0, page_bytes: 1 << 30, total: 2, free: 1 },
                Hugepages { node: 1, page_bytes: 2 << 20, total: 0, free: 0 },
            ]
        );
        let memlock = Memlock { soft_bytes: Some(8 << 20), hard_bytes: None, exempt: false };
        assert_eq!(host.memlock, memlock);
        assert_eq!(host.cgroup_memory_bytes, Some(4 << 30));
    }

    #[test]
    fn a_recording_of_a_host_reads_as_the_host() {
        let first = Root::recorded(HOST).expect("a recording");
        let host = Host::read(&first);
        let recording = first.recording();
        assert!(!recording.contains("igb"), "only what matters of the modules: {recording}");
        assert_eq!(recording.matches("AuthenticAMD").count(), 1, "once: {recording}");
        let again = Host::read(&Root::recorded(&recording).expect("a recording"));
        assert_eq!(format!("{again:?}"), format!("{host:?}"));
    }

    #[test]
    fn a_machine_that_tells_nothing_reads_as_nothing() {
        let host = Host::read(&Root::recorded("").expect("a recording"));
        assert_eq!(host.kernel, None);
        assert!(!host.iommu.on && host.iommu.firmware_table.is_none());
        assert_eq!(host.machine.processor, None);
        assert!(!host.machine.is_virtual && !host.machine.container && !host.machine.acpi);
        assert!(host.modules.iter().all(|module| module.state == ModuleState::Unknown));
        assert!(host.hugepages.is_empty() && host.vfio_files.is_empty());
        assert_eq!(host.memlock.soft_bytes, Some(0));
        assert_eq!(host.cgroup_memory_bytes, None);
    }

    #[test]
    fn a_module_that_the_kernel_was_built_without_is_missing() {
        let root = Root::recorded(
            "/proc/sys/kernel/osrelease = 6.8.0\n/lib/modules/6.8.0/modules.builtin = kernel/fs/ext4/ext4.ko\n",
        ).expect("a recording");
        let host = Host::read(&root);
        assert!(host.modules.iter().all(|module| module.state == ModuleState::Missing));
    }

    #[test]
    fn a_kernel_without_numa_has_its_hugepages_on_node_0() {
        let root = Root::recorded(
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 4\n\
             /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 4\n",
        )
        .expect("a recording");
        let expected = [Hugepages { node: 0, page_bytes: 2 << 20, total: 4, free: 4 }];
        assert_eq!(hugepages(&root), expected);
    }

    #[test]
    fn control_groups_of_version_1_have_their_own_file_and_their_own_no_limit() {
        let root = |limit: &str| {
            Root::recorded(&format!(
                "/proc/self/cgroup:\n    12:cpu,cpuacct:/a\n    9:memory:/docker/x\n    0::/\n\
                 /sys/fs/cgroup/memory/memory.limit_in_bytes = 9223372036854771712\n\
                 /sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes = {limit}\n"
            ))
            .expect("a recording")
        };
        assert_eq!(cgroup_memory(&root("1073741824")), Some(1 << 30));
        assert_eq!(cgroup_memory(&root("9223372036854771712")), None);
    }

    #[test]
    fn root_may_lock_what_it_likes_unless_it_is_root_of_a_container_only() {
        let root = |set: &str, users: &str| {
            let text =
                format!("/proc/self/status = CapEff:\t{set}\n/proc/self/uid_map = {users}\n");
            is_exempt(&Root::recorded(&text).expect("a recording"))
        };
        let all = "         0          0 4294967295";
        assert!(root("000001ffffffffff", all) && root("0000000000004000", all));
        assert!(!root("0000000000000000", all) && !root("nonsense", all));
        assert!(!root("000001ffffffffff", "         0     100000      65536"));
    }

    #[test]
    fn a_group_outside_of_the_namespace_is_not_climbed_to() {
        let expected = [Path::new("/sys/fs/cgroup").join("memory.max")];
        assert_eq!(cgroup_files("0::/../../etc"), expected);
    }

    #[test]
    fn modules_are_known_however_they_are_packed_and_spelled() {
        for line in [
            "kernel/drivers/vfio/pci/vfio-pci.ko",
            "kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/drivers/vfio/vfio.ko.zst",
            "/lib/modules/x/vfio_pci.ko.xz:",
        ] {
            assert_eq!(module_of(line).as_deref(), Some("vfio_pci"), "{line}");
        }
        for line in ["", ":", "kernel/x", ".ko", "vfio-pci.kore", "kernel/vfio-pci.ko/"] {
            assert_eq!(module_of(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_text_of_a_kernel_is_too_odd(text in "\\PC*(\n\\PC*){0,3}", more in any::<Vec<u8>>()) {
            let bytes = String::from_utf8_lossy(&more).into_owned();
            for text in [text, bytes] {
                let _ = module_of(&text);
                let _ = capabilities(&format!("CapEff:{text}"));
                let _ = parse_memlock(&format!("Max locked memory {text}"));
                let _ = cgroup_limit(&text);
                for lines in [text.clone(), format!("0::{text}"), format!("1:memory:{text}")] {
                    for file in cgroup_files(&lines) {
                        let climbs = |part| matches!(part, Component::ParentDir);
                        prop_assert!(file.starts_with("/sys/fs/cgroup"));
                        prop_assert!(!file.components().any(climbs));
                    }
                }
            }
        }

        #[test]
        fn limits_read_back(soft in proptest::option::of(0..u64::MAX), hard in proptest::option::of(0..u64::MAX)) {
            let word = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
            let text = format!("Max locked memory         {:<20} {:<20} bytes", word(soft), word(hard));
            prop_assert_eq!(parse_memlock(&text), Some((soft, hard)));
        }
    }
}
