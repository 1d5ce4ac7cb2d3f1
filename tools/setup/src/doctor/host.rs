//! The links common to all devices: from the firmware to hugepages.
//!
//! The first three tell where a missing IOMMU is lost: the firmware or hypervisor does not offer it, the kernel
//! was told not to use it, or the kernel was not told to use it.

use super::link::{Link, LinkState, Remedy};
use super::patient::Scene;
use crate::human;
use crate::inventory::{Hugepages, ModuleState};
use adit_guard::root::Root;

/// Returns the chain in order of dependency.
pub(super) fn links<'a>() -> [Link<Scene<'a>>; 6] {
    [
        Link { name: "sysfs", check: sysfs },
        Link { name: "firmware", check: firmware },
        Link { name: "IOMMU", check: iommu },
        Link { name: "modules", check: modules },
        Link { name: "memory", check: memory },
        Link { name: "hugepages", check: hugepages },
    ]
}

/// QEMU's options for an IOMMU.
const QEMU_IOMMU: &str =
    "-machine q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on";

/// Most kernels need this option for Intel's VT-d; those with `CONFIG_INTEL_IOMMU_DEFAULT_ON` do not.
const INTEL_ON: &str = "intel_iommu=on";

fn sysfs(scene: &Scene) -> LinkState {
    if scene.root.exists("/sys/bus/pci/devices") {
        return LinkState::holds("mounted, with a PCI bus");
    }
    LinkState::broken(
        "there is no /sys/bus/pci/devices: sysfs is not mounted, or this machine has no PCI bus",
        Remedy::new("mount it; in a container, pass /sys in", ["sudo mount -t sysfs sysfs /sys"]),
    )
}

fn firmware(scene: &Scene) -> LinkState {
    let iommu = &scene.inventory.host.iommu;
    if let Some(table) = &iommu.firmware_table {
        return LinkState::Holds(format!("it reports an IOMMU (table {table})"));
    }
    if iommu.on {
        return LinkState::holds("an IOMMU is in use");
    }
    if !scene.inventory.host.machine.acpi {
        let why = "its tables are not visible from here (a container, or no ACPI)";
        return LinkState::NotChecked(why.to_owned());
    }
    if scene.inventory.host.machine.is_virtual {
        return without_iommu(
            scene,
            "this is a virtual machine, and its hypervisor offers it no IOMMU",
            Remedy::new(
                "have the hypervisor offer one (at a cloud provider: an instance on bare metal); QEMU's options are",
                [QEMU_IOMMU],
            ),
        );
    }
    without_iommu(
        scene,
        "it reports no IOMMU (no DMAR or IVRS table): it is switched off there, or this machine has none",
        Remedy::new(
            "switch on VT-d (Intel) or AMD-Vi, also called IOMMU (AMD), in the firmware's set-up",
            ["sudo systemctl reboot --firmware-setup"],
        ),
    )
}

/// Returns a broken link for a missing IOMMU. If VFIO's no-IOMMU mode is enabled, says that Adit does not
/// support it.
fn without_iommu(scene: &Scene, why: impl std::fmt::Display, remedy: Remedy) -> LinkState {
    if !scene.inventory.host.iommu.no_iommu_mode {
        return LinkState::broken(why, remedy);
    }
    let mode = "no-IOMMU mode (enable_unsafe_noiommu_mode) is on, which Adit does not support";
    LinkState::broken(format!("{why}; {mode}"), remedy)
}

fn iommu(scene: &Scene) -> LinkState {
    let host = &scene.inventory.host;
    if host.iommu.on {
        let (units, groups) = (host.iommu.units.len(), count(host.iommu.groups, "group"));
        return LinkState::Holds(match units {
            0 => format!("on, {groups}"),
            _ => format!("on, {}, {groups}", count(units, "unit")),
        });
    }
    let root = scene.root;
    if let Some(option) = options_against(&host.command_line).first() {
        let commands = without_option(root, option);
        let remedy =
            Remedy::new("take that option off the kernel's command line, and reboot", commands);
        let why = format!("it is off: the kernel was booted with '{option}'");
        return without_iommu(scene, why, remedy);
    }
    let intel = match host.iommu.firmware_table.as_deref() {
        Some(table) => table == "DMAR",
        None => host.machine.processor.as_deref() == Some("GenuineIntel"),
    };
    if intel && !host.command_line.split_whitespace().any(|word| word == INTEL_ON) {
        let commands = with_option(root, INTEL_ON);
        let remedy =
            Remedy::new("add that option to the kernel's command line, and reboot", commands);
        let why = format!(
            "the kernel does not use it: there is no IOMMU group, and '{INTEL_ON}' is not on its command line"
        );
        return without_iommu(scene, why, remedy);
    }
    without_iommu(
        scene,
        "the kernel does not use it: there is no IOMMU group, though no option is against it",
        Remedy::new(
            "see why in the kernel's log; a kernel that was built without its driver has to be replaced",
            ["sudo dmesg | grep -i -e DMAR -e AMD-Vi -e IOMMU"],
        ),
    )
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", human::plural(number as u64))
}

/// Returns the words of a kernel command line that turn an IOMMU off: `iommu=off`, `intel_iommu=off`,
/// `amd_iommu=off`.
fn options_against(command_line: &str) -> Vec<&str> {
    let turns_off = |word: &&str| {
        let Some((name, values)) = word.split_once('=') else { return false };
        ["iommu", "intel_iommu", "amd_iommu"].contains(&name)
            && values.split(',').any(|value| value == "off")
    };
    command_line.split_whitespace().filter(turns_off).collect()
}

fn with_option(root: &Root, option: &str) -> Vec<String> {
    let edit = format!(
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{option} /' /etc/default/grub && sudo update-grub"
    );
    let grubby = format!("sudo grubby --update-kernel=ALL --args={option}");
    rebooted(if has_grubby(root) { grubby } else { edit })
}

fn without_option(root: &Root, option: &str) -> Vec<String> {
    let edit = format!("sudo sed -i 's/{option}//' /etc/default/grub && sudo update-grub");
    let grubby = format!("sudo grubby --update-kernel=ALL --remove-args={option}");
    rebooted(if has_grubby(root) { grubby } else { edit })
}

/// Returns whether the system has grubby, which Fedora, RHEL and relatives use instead of `update-grub`.
fn has_grubby(root: &Root) -> bool {
    root.present("/usr/sbin/grubby")
}

fn rebooted(command: String) -> Vec<String> {
    vec![command, "sudo reboot".to_owned()]
}

fn modules(scene: &Scene) -> LinkState {
    let host = &scene.inventory.host;
    let state = |name: &str| {
        let found = host.modules.iter().find(|module| module.name == name);
        found.map_or(ModuleState::Unknown, |module| module.state)
    };
    // A kernel without VFIO's own container may have iommufd instead.
    let container = match state("vfio_iommu_type1") {
        ModuleState::Missing if scene.root.exists("/sys/module/iommufd") => ModuleState::Loaded,
        other => other,
    };
    let (needed, worst) = match (state("vfio_pci"), container) {
        (ModuleState::Loaded, ModuleState::Loaded) => {
            return LinkState::holds("vfio-pci and what it needs are loaded");
        }
        (ModuleState::Loaded, other) => ("vfio_iommu_type1", other),
        (other, _) => ("vfio-pci", other),
    };
    module_broken(scene, needed, worst)
}

fn module_broken(scene: &Scene, needed: &str, state: ModuleState) -> LinkState {
    let load = format!("sudo modprobe {needed}");
    match state {
        ModuleState::Loaded | ModuleState::Available => {
            LinkState::broken(format!("{needed} is not loaded"), Remedy::new("load it", [load]))
        }
        ModuleState::Missing => {
            let kernel = scene.inventory.host.kernel.as_deref().unwrap_or("$(uname -r)");
            LinkState::broken(
                format!("{needed} is not among this kernel's modules"),
                missing(kernel),
            )
        }
        ModuleState::Unknown => LinkState::broken(
            format!("{needed} is not loaded, and this kernel's modules are not visible from here"),
            Remedy::new("load it on the host (a container cannot)", [load]),
        ),
    }
}

fn missing(kernel: &str) -> Remedy {
    // Debian's cloud kernels lack drivers that the ordinary kernel has.
    if kernel.contains("-cloud-") {
        let commands = ["sudo apt install linux-image-amd64", "sudo reboot"];
        return Remedy::new("boot a kernel that has it (CONFIG_VFIO_PCI)", commands);
    }
    Remedy::new(
        "install it (Ubuntu's package is below), or a kernel that has it (CONFIG_VFIO_PCI)",
        [format!("sudo apt install linux-modules-extra-{kernel}")],
    )
}

fn memory(scene: &Scene) -> LinkState {
    match scene.inventory.host.cgroup_memory_bytes {
        None => LinkState::holds("no limit by a control group"),
        Some(bytes) => {
            LinkState::Holds(format!("the control group may use {}", human::bytes(bytes as f64)))
        }
    }
}

fn hugepages(scene: &Scene) -> LinkState {
    let some: Vec<String> =
        scene.inventory.host.hugepages.iter().filter(|pages| pages.total > 0).map(pages).collect();
    if some.is_empty() {
        return LinkState::holds("none; not required");
    }
    LinkState::Holds(some.join("; "))
}

fn pages(pages: &Hugepages) -> String {
    let Hugepages { node, page_bytes, total, free } = pages;
    let size = match page_bytes >> 20 {
        mebibytes if mebibytes >= 1024 => format!("{} GiB", mebibytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    };
    format!("node {node}: {total} of {size}, {free} free")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_that_turn_an_iommu_off_are_told_from_others() {
        let line = "root=/dev/sda1 iommu=pt intel_iommu=on,sm_off amd_iommu=off iommu=soft,off offiommu=off iommu";
        assert_eq!(options_against(line), ["amd_iommu=off", "iommu=soft,off"]);
    }

    proptest! {
        #[test]
        fn any_command_line_can_be_read(line in "\\PC*") {
            prop_assert!(options_against(&line).iter().all(|word| word.contains("off")));
        }
    }
}
