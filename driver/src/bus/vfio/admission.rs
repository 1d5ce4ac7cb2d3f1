//! Checks whether this process may drive a function, before anything is changed.
//!
//! Each refusal is one sentence with its remedy. Only sysfs and the presence of device files are read here,
//! so a refused device keeps its state. `explain` covers failures that only opening reveals (permissions,
//! other users).

use std::path::{Path, PathBuf};

use crate::bus::pci::{CLASS_NVME, PciAddress, PciFunction, is_vfio};
use crate::error::{Error, Result};

/// BAR0 holds the registers up to 1000h and at least the admin doorbells (NVMe PCIe Transport 1.0, 2.1.10).
const BAR0_LEN_MIN: u64 = 0x1008;

/// Locations of device descriptions and device files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'a> {
    /// `/sys`.
    pub(super) sysfs: &'a Path,
    /// `/dev/vfio`.
    pub(super) vfio: &'a Path,
}

/// A function that passed all checks.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) function: PciFunction,
    /// Its group's file, `/dev/vfio/N`.
    pub(super) group_file: PathBuf,
}

/// Checks everything about `bdf` that can be known without opening it.
pub(super) fn admit(machine: Machine<'_>, bdf: &str) -> Result<Admitted> {
    let address: PciAddress = bdf.parse()?;
    let function = PciFunction::find(machine.sysfs, address).ok_or_else(|| {
        refused(
            address,
            "this machine has no such PCI device",
            "'adit setup status' lists its NVMe controllers",
        )
    })?;
    check_kind(&function)?;
    let group = check_iommu(&function)?;
    check_driver(&function)?;
    check_neighbours(&function, group)?;
    let group_file = check_files(machine, address, group)?;
    Ok(Admitted { function, group_file })
}

fn refused(address: PciAddress, why: impl ToString, fix: impl ToString) -> Error {
    Error::refused(format!("vfio:{address}"), "cannot open", why, fix)
}

fn check_kind(function: &PciFunction) -> Result<()> {
    let address = function.address();
    let class = function.class().ok_or_else(|| {
        let why = "the kernel does not report its PCI class; the device may be going away";
        refused(address, why, "'adit setup status' lists the machine's NVMe controllers")
    })?;
    if class != CLASS_NVME {
        return Err(refused(
            address,
            format!("it is not an NVMe controller (PCI class {class:06x}, not 010802)"),
            "name one that 'adit setup status' lists",
        ));
    }
    if function.bar_len(0) < BAR0_LEN_MIN {
        return Err(refused(
            address,
            format!("its BAR0 has {} bytes, less than NVMe's registers", function.bar_len(0)),
            "look for BAR assignment failures in the kernel log (dmesg)",
        ));
    }
    Ok(())
}

fn check_iommu(function: &PciFunction) -> Result<u32> {
    function.iommu_group().ok_or_else(|| {
        refused(
            function.address(),
            "it is in no IOMMU group, so nothing would confine its DMA",
            "enable the IOMMU in the firmware and boot with intel_iommu=on (AMD: on by default); 'adit setup doctor' says which is missing",
        )
    })
}

fn check_driver(function: &PciFunction) -> Result<()> {
    let address = function.address();
    let driver = function.driver();
    if driver.as_deref().is_some_and(is_vfio) {
        return Ok(());
    }
    let why = driver.map_or("no driver is bound to it".to_owned(), |driver| {
        format!("it is bound to the driver '{driver}'")
    });
    let fix = format!(
        "run 'sudo adit setup bind {address} --user $USER', which gives it to vfio-pci if nothing uses it"
    );
    Err(refused(address, why, fix))
}

fn check_neighbours(function: &PciFunction, group: u32) -> Result<()> {
    let own = function.address().to_string();
    let strangers: Vec<String> = function
        .group_members()
        .into_iter()
        .filter(|member| member.name != own && !member.is_viable())
        .map(|member| format!("{} ({})", member.name, member.driver.unwrap_or_default()))
        .collect();
    if strangers.is_empty() {
        return Ok(());
    }
    Err(refused(
        function.address(),
        format!("it shares IOMMU group {group} with {}", strangers.join(", ")),
        "unbind those from their drivers too, or move the drive to a slot with its own group",
    ))
}

fn check_files(machine: Machine<'_>, address: PciAddress, group: u32) -> Result<PathBuf> {
    let container = machine.vfio.join("vfio");
    if !container.exists() {
        return Err(refused(
            address,
            format!("{} is missing: the kernel's VFIO is not loaded", container.display()),
            format!(
                "run 'sudo modprobe vfio-pci' (in a container: pass /dev/vfio in); 'adit setup doctor {address}' checks the rest"
            ),
        ));
    }
    let group_file = machine.vfio.join(group.to_string());
    if !group_file.exists() {
        return Err(refused(
            address,
            format!("its group's file {} is missing", group_file.display()),
            format!(
                "in a container: pass the file in; on VFIO without an IOMMU: enable the IOMMU instead; 'adit setup doctor {address}' knows which"
            ),
        ));
    }
    Ok(group_file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::pci::recorded::Tree;

    const OURS: &str = "0000:01:00.0";

    /// Returns a machine that passes all checks.
    fn good() -> Tree {
        let tree = Tree::new();
        tree.function(OURS, "0x010802");
        tree.bind(OURS, "vfio-pci");
        tree.group(OURS, 7);
        std::fs::create_dir_all(tree.0.join("vfio")).expect("directory");
        for file in ["vfio", "7"] {
            std::fs::write(tree.0.join("vfio").join(file), "").expect("file");
        }
        tree
    }

    fn admit_in(tree: &Tree, bdf: &str) -> Result<Admitted> {
        admit(Machine { sysfs: &tree.0, vfio: &tree.0.join("vfio") }, bdf)
    }

    fn refusal(tree: &Tree) -> String {
        admit_in(tree, OURS).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_function_in_order_is_admitted_under_both_spellings() {
        let tree = good();
        for bdf in [OURS, "01:00.0"] {
            let admitted = admit_in(&tree, bdf).expect("admitted");
            assert_eq!(admitted.function.address().to_string(), OURS);
            assert_eq!(admitted.group_file, tree.0.join("vfio/7"));
        }
    }

    #[test]
    fn a_typo_is_a_usage_error_and_an_absent_device_is_not() {
        let tree = good();
        assert!(admit_in(&tree, "01:00").expect_err("typo").is_usage());
        let absent = admit_in(&tree, "0000:09:00.0").expect_err("absent");
        assert!(!absent.is_usage());
        let absent = absent.to_string();
        assert!(absent.contains("no such PCI device; 'adit setup status' lists"), "{absent}");
    }

    #[test]
    fn another_class_is_named() {
        let tree = good();
        tree.set(OURS, "class", "0x020000");
        assert!(refusal(&tree).contains("PCI class 020000"));
        tree.set(OURS, "class", "");
        assert!(refusal(&tree).contains("may be going away"));
    }

    #[test]
    fn a_bar_too_short_for_registers_is_refused() {
        let tree = good();
        tree.set(OURS, "resource", "0xfe000000 0xfe000fff 0x40204\n");
        assert!(refusal(&tree).contains("BAR0 has 4096 bytes"));
    }

    #[test]
    fn without_an_iommu_the_kernel_option_is_named() {
        let tree = good();
        std::fs::remove_file(tree.find(OURS).directory().join("iommu_group")).expect("link");
        assert!(refusal(&tree).contains("intel_iommu=on"));
    }

    #[test]
    fn another_driver_is_named_with_the_command_that_binds() {
        let tree = good();
        tree.bind(OURS, "nvme");
        let text = refusal(&tree);
        assert!(text.contains("bound to the driver 'nvme'"), "{text}");
        assert!(text.contains("'sudo adit setup bind 0000:01:00.0 --user $USER'"), "{text}");
        std::fs::remove_file(tree.find(OURS).directory().join("driver")).expect("link");
        let text = refusal(&tree);
        assert!(text.contains("no driver is bound") && text.contains("adit setup bind"), "{text}");
    }

    #[test]
    fn neighbours_of_the_group_are_listed_unless_harmless() {
        let tree = good();
        for (name, driver) in
            [("0000:00:01.0", "pcieport"), ("0000:01:00.1", "vfio-pci"), ("0000:01:00.2", "igb")]
        {
            tree.function(name, "0x020000");
            tree.bind(name, driver);
            tree.group(name, 7);
        }
        let text = refusal(&tree);
        assert!(text.contains("shares IOMMU group 7 with 0000:01:00.2 (igb);"), "{text}");
        tree.bind("0000:01:00.2", "pci-stub");
        admit_in(&tree, OURS).expect("only harmless neighbours are left");
    }

    #[test]
    fn missing_device_files_are_named() {
        let tree = good();
        std::fs::remove_file(tree.0.join("vfio/7")).expect("file");
        let text = refusal(&tree);
        assert!(text.contains("vfio/7 is missing"), "{text}");
        assert!(text.contains("'adit setup doctor 0000:01:00.0'"), "{text}");
        std::fs::remove_file(tree.0.join("vfio/vfio")).expect("file");
        assert!(refusal(&tree).contains("modprobe vfio-pci"));
    }
}
