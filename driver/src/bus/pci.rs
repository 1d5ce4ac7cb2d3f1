//! PCI functions as the kernel describes them in sysfs.
//!
//! Only reads, and only below the given root (`/sys`, or a recorded tree in a test). An attribute that cannot
//! be read is `None`, not an error: callers decide what that means.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::Error;

/// The class code of a PCI function that speaks NVMe (I/O controller):
/// base class 01h, subclass 08h, programming interface 02h.
pub const CLASS_NVME: u32 = 0x01_08_02;

/// The command register of a function's configuration space (PCI Local Bus 3.0 section 6.2.2).
pub(super) mod command {
    /// Its offset.
    pub(in super::super) const OFFSET: u64 = 0x04;
    /// The function answers memory accesses.
    pub(in super::super) const MEMORY: u16 = 1 << 1;
    /// The function may start DMA.
    pub(in super::super) const BUS_MASTER: u16 = 1 << 2;
    /// The function keeps off the INTx line.
    pub(in super::super) const INTX_DISABLE: u16 = 1 << 10;
}

/// Domain, bus, device and function: `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// The PCI domain, also called segment.
    pub domain: u32,
    /// The bus in it.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// Parses `0000:01:00.0`, or `01:00.0` for domain 0.
    fn from_str(text: &str) -> Result<PciAddress, Error> {
        parse(text).ok_or_else(|| {
            Error::target(
                text,
                "a PCI address reads domain:bus:device.function in hexadecimal, such as 0000:01:00.0 ('adit setup status' lists them)",
            )
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (place, function) = text.split_once('.')?;
    let (rest, device) = place.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
    let domain_digits = 4..=8;
    let address = PciAddress {
        domain: hex(domain, domain_digits)?,
        bus: hex(bus, 2..=2)?.try_into().ok()?,
        device: hex(device, 2..=2)?.try_into().ok()?,
        function: hex(function, 1..=1)?.try_into().ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    // `from_str_radix` alone would accept a sign.
    let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (plain && digits.contains(&text.len())).then(|| u32::from_str_radix(text, 16).ok())?
}

/// One function of the machine.
#[derive(Clone, Debug)]
pub struct PciFunction {
    address: PciAddress,
    root: PathBuf,
    directory: PathBuf,
}

/// A device in an IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its sysfs name; a PCI address for PCI devices.
    pub name: String,
    /// The driver bound to it, if any.
    pub driver: Option<String>,
}

impl GroupMember {
    /// Returns whether user space can have the group while this member keeps its driver. The kernel's rule:
    /// no driver, a VFIO driver, or one that does no DMA for the kernel.
    pub fn is_viable(&self) -> bool {
        match self.driver.as_deref() {
            None | Some("pcieport" | "pci-stub") => true,
            Some(driver) => is_vfio(driver),
        }
    }
}

/// Returns whether `driver` gives devices to user space through VFIO. Vendors' variants of vfio-pci have
/// names like mlx5_vfio_pci.
pub fn is_vfio(driver: &str) -> bool {
    driver.contains("vfio")
}

/// A virtual function's place on its physical function (PCIe SR-IOV), where it is put online and taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    /// The physical function.
    pub physical: PciAddress,
    /// The physical function's controller (`nvme0`), while the kernel's NVMe driver has it.
    pub controller: Option<String>,
    /// Its number from 1: VFN of its Secondary Controller Entry (NVMe Base 2.1, Identify with CNS 15h).
    pub number: u32,
}

impl VirtualFunction {
    /// Says where [`VirtualFunction::commands`] put it online, and what their `C` stands for.
    pub fn advice(&self) -> String {
        let VirtualFunction { physical, number, .. } = self;
        let first = match self.controller {
            Some(_) => "",
            None => ", once the kernel's NVMe driver has that as /dev/nvmeN",
        };
        format!(
            "put it online on its physical function {physical}{first} (nvme-cli; C is the SCID that list-secondary shows at VFN {number:#06x})"
        )
    }

    /// Returns nvme-cli's commands that put it online with the fewest resources: an admin and an I/O queue
    /// pair, and an interrupt vector (NVMe Base 2.1, Virtualization Management command).
    pub fn commands(&self) -> [String; 4] {
        let device = format!("/dev/{}", self.controller.as_deref().unwrap_or("nvmeN"));
        let manage = |what: &str| format!("sudo nvme virt-mgmt {device} --cntlid=C {what}");
        [
            format!("sudo nvme list-secondary {device}"),
            manage("--rt=0 --nr=2 --act=8"),
            manage("--rt=1 --nr=1 --act=8"),
            manage("--act=9"),
        ]
    }

    /// Returns how to put it online, in one sentence.
    pub fn remedy(&self) -> String {
        format!("{}: '{}'", self.advice(), self.commands().join("', '"))
    }
}

impl PciFunction {
    /// Returns the function at `address` in the sysfs mounted at `root`, if it exists.
    pub fn find(root: &Path, address: PciAddress) -> Option<PciFunction> {
        let directory = root.join("bus/pci/devices").join(address.to_string());
        directory.is_dir().then(|| PciFunction { address, root: root.to_path_buf(), directory })
    }

    /// Returns its address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Returns its directory in sysfs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the 24-bit class code; see [`CLASS_NVME`].
    pub fn class(&self) -> Option<u32> {
        let text = self.attribute("class")?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }

    /// Returns the name of its driver, if bound.
    pub fn driver(&self) -> Option<String> {
        link_name(&self.directory.join("driver"))
    }

    /// Returns the number of its IOMMU group; `None` while no IOMMU is in use.
    pub fn iommu_group(&self) -> Option<u32> {
        link_name(&self.directory.join("iommu_group"))?.parse().ok()
    }

    /// Returns all devices of its IOMMU group, itself included, by name.
    pub fn group_members(&self) -> Vec<GroupMember> {
        let Some(group) = self.iommu_group() else { return Vec::new() };
        let devices = self.root.join(format!("kernel/iommu_groups/{group}/devices"));
        let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
        let mut members: Vec<GroupMember> = entries
            .flatten()
            .map(|entry| GroupMember {
                name: entry.file_name().to_string_lossy().into_owned(),
                driver: link_name(&entry.path().join("driver")),
            })
            .collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }

    /// Returns its place on its physical function; `None` if it is no virtual function.
    pub fn virtual_function(&self) -> Option<VirtualFunction> {
        let physical: PciAddress = link_name(&self.directory.join("physfn"))?.parse().ok()?;
        let directory = self.root.join("bus/pci/devices").join(physical.to_string());
        let name = self.address.to_string();
        let index = names(&directory).into_iter().find_map(|link| {
            let index: u32 = link.strip_prefix("virtfn")?.parse().ok()?;
            (link_name(&directory.join(&link))? == name).then_some(index)
        })?;
        let controller = names(&directory.join("nvme")).into_iter().next();
        Some(VirtualFunction { physical, controller, number: index + 1 })
    }

    /// Returns its NUMA node, if the firmware reports one (the kernel prints -1 if not).
    pub fn numa_node(&self) -> Option<u32> {
        self.attribute("numa_node")?.parse().ok()
    }

    /// Returns the length of a base address register in bytes; 0 if not implemented.
    pub fn bar_len(&self, bar: u8) -> u64 {
        let resources = self.attribute("resource").unwrap_or_default();
        resources.lines().nth(bar.into()).and_then(resource_len).unwrap_or(0)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.directory.join(name)).ok()?;
        Some(text.trim().to_owned())
    }
}

/// Parses the length from a line `0x00000000fe000000 0x00000000fe003fff 0x0000000000140204`.
fn resource_len(line: &str) -> Option<u64> {
    let mut fields = line
        .split_whitespace()
        .map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16));
    let (start, end) = (fields.next()?.ok()?, fields.next()?.ok()?);
    (end > start).then(|| end - start + 1)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn link_name(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(crate) mod recorded;

#[cfg(test)]
mod tests {
    use super::recorded::Tree;
    use super::*;

    #[test]
    fn addresses_read_with_and_without_a_domain() {
        let address = PciAddress { domain: 0, bus: 1, device: 0x1f, function: 7 };
        assert_eq!("0000:01:1f.7".parse::<PciAddress>().expect("full"), address);
        assert_eq!("01:1f.7".parse::<PciAddress>().expect("short"), address);
        assert_eq!(address.to_string(), "0000:01:1f.7");
        let vmd: PciAddress = "10000:E1:00.0".parse().expect("a VMD domain");
        assert_eq!(vmd.to_string(), "10000:e1:00.0");
    }

    #[test]
    fn malformed_addresses_are_the_callers_typo() {
        for text in [
            "",
            "0",
            "01:00",
            "1:00.0",
            "0000:01:20.0",
            "0000:01:00.8",
            "0000:01:00.0 ",
            "+0:00.0",
            "0000:0000:01:00.0",
            "000:01:00.0",
            "0000:01:+1.0",
            "01:00.00",
            "nvme0",
        ] {
            let error = text.parse::<PciAddress>().expect_err(text);
            assert!(error.is_usage(), "{error}");
        }
    }

    #[test]
    fn attributes_read_as_the_kernel_prints_them() {
        let tree = Tree::new();
        tree.function("0000:01:00.0", "0x010802\n");
        tree.set("0000:01:00.0", "numa_node", "1\n");
        tree.bind("0000:01:00.0", "vfio-pci");
        tree.group("0000:01:00.0", 7);
        let function = tree.find("0000:01:00.0");
        assert_eq!(function.class(), Some(CLASS_NVME));
        assert_eq!(function.driver().as_deref(), Some("vfio-pci"));
        assert_eq!(function.iommu_group(), Some(7));
        assert_eq!(function.numa_node(), Some(1));
        assert_eq!(function.bar_len(0), 0x4000);
        assert_eq!(function.bar_len(2), 0);
        assert_eq!(function.bar_len(200), 0);
    }

    #[test]
    fn what_is_absent_is_none() {
        let tree = Tree::new();
        tree.function("0000:01:00.0", "nonsense");
        let function = tree.find("0000:01:00.0");
        assert_eq!(function.class(), None);
        assert_eq!(function.driver(), None);
        assert_eq!(function.iommu_group(), None);
        assert_eq!(function.numa_node(), None);
        assert!(function.group_members().is_empty());
        assert!(PciFunction::find(&tree.0, "0000:02:00.0".parse().expect("address")).is_none());
    }

    #[test]
    fn a_virtual_function_knows_its_physical_function_and_its_number() {
        let tree = Tree::new();
        for name in ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2"] {
            tree.function(name, "0x010802");
        }
        tree.virtual_function("0000:01:00.0", 0, "0000:01:00.1");
        tree.virtual_function("0000:01:00.0", 1, "0000:01:00.2");
        assert_eq!(tree.find("0000:01:00.0").virtual_function(), None);
        let of = |name: &str| tree.find(name).virtual_function().expect("a virtual function");
        let (first, second) = (of("0000:01:00.1"), of("0000:01:00.2"));
        assert_eq!((first.number, second.number), (1, 2));
        assert_eq!(first.physical.to_string(), "0000:01:00.0");
        let remedy = first.remedy();
        assert!(remedy.contains("as /dev/nvmeN") && remedy.contains("virt-mgmt /dev/nvmeN "));
        fs::create_dir_all(tree.find("0000:01:00.0").directory().join("nvme/nvme3"))
            .expect("nvme3");
        let remedy = of("0000:01:00.2").remedy();
        for part in [
            "its physical function 0000:01:00.0 (",
            "VFN 0x0002",
            "'sudo nvme list-secondary /dev/nvme3'",
            "'sudo nvme virt-mgmt /dev/nvme3 --cntlid=C --act=9'",
        ] {
            assert!(remedy.contains(part), "{remedy}");
        }
    }

    #[test]
    fn group_members_come_with_their_drivers() {
        let tree = Tree::new();
        for name in ["0000:02:00.0", "0000:02:00.1"] {
            tree.function(name, "0x020000");
            tree.group(name, 8);
        }
        tree.bind("0000:02:00.1", "igb");
        let members = tree.find("0000:02:00.0").group_members();
        let expected = [("0000:02:00.0", None), ("0000:02:00.1", Some("igb".to_owned()))]
            .map(|(name, driver)| GroupMember { name: name.to_owned(), driver });
        assert_eq!(members, expected);
    }
}
