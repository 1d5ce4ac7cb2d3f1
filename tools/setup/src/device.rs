//! One PCI function in sysfs: reads its attributes, and describes the writes that move it between drivers.
//!
//! The attributes are those of the kernel's `Documentation/ABI/testing/sysfs-bus-pci`. Nothing is cached: every
//! query reads the files.

use std::fmt;
use std::path::{Path, PathBuf};

use adit_driver::bus::pci::PciAddress;

use crate::change::Change;
use adit_guard::disk::NamespacePath;
use adit_guard::root::Root;

/// The driver that gives user space access to a function.
pub(crate) const VFIO_PCI: &str = "vfio-pci";

/// The kernel's NVMe driver.
pub(crate) const NVME: &str = "nvme";

/// The machine's PCI functions.
pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

/// A PCI function, which may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(PciAddress);

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Device {
    /// Returns the function at `address`.
    pub(crate) fn at(address: PciAddress) -> Device {
        Device(address)
    }

    fn attribute(self, name: &str) -> PathBuf {
        Path::new(DEVICES).join(self.0.to_string()).join(name)
    }

    /// Returns whether any PCI function is visible. Some containers show none, so a missing device may still
    /// exist.
    pub(crate) fn any(root: &Root) -> bool {
        !root.names(DEVICES).is_empty()
    }

    /// Returns whether it exists.
    pub(crate) fn is_there(self, root: &Root) -> bool {
        root.exists(self.attribute(""))
    }

    /// Returns its class, such as `0x010802`.
    pub(crate) fn class(self, root: &Root) -> Option<String> {
        root.text(self.attribute("class"))
    }

    /// Returns vendor and device ids, such as `8086:0a54`.
    pub(crate) fn ids(self, root: &Root) -> Option<String> {
        let id = |name| Some(root.text(self.attribute(name))?.trim_start_matches("0x").to_owned());
        Some(format!("{}:{}", id("vendor")?, id("device")?))
    }

    pub(crate) fn driver(self, root: &Root) -> Option<String> {
        root.link_name(self.attribute("driver"))
    }

    /// Returns its driver override, if set.
    pub(crate) fn driver_override(self, root: &Root) -> Option<String> {
        root.text_in_time(self.attribute("driver_override")).filter(|name| is_override(name))
    }

    /// Returns the number of its IOMMU group.
    pub(crate) fn group(self, root: &Root) -> Option<String> {
        root.link_name(self.attribute("iommu_group"))
    }

    /// Returns whether its IOMMU group's file, such as `/dev/vfio/12`, exists; user space opens the device
    /// through it.
    pub(crate) fn has_group_file(self, root: &Root) -> bool {
        let Some(group) = self.group(root) else { return false };
        ["", "noiommu-"].iter().any(|kind| root.present(format!("/dev/vfio/{kind}{group}")))
    }

    /// Returns its serial number as read by the kernel's NVMe driver.
    pub(crate) fn serial(self, root: &Root) -> Option<String> {
        let controllers = self.attribute("nvme");
        let controller = root.names(&controllers).into_iter().next()?;
        let serial = root.text(controllers.join(controller).join("serial"))?;
        Some(serial).filter(|serial| !serial.is_empty())
    }

    /// Returns the names of its namespaces that are available as block devices. With native multipathing these
    /// are the paths (`nvme0c0n1`), one per namespace.
    pub(crate) fn block_devices(self, root: &Root) -> Vec<String> {
        let controllers = self.attribute("nvme");
        let mut found = Vec::new();
        for controller in root.names(&controllers) {
            let names = root.names(controllers.join(controller)).into_iter();
            found.extend(names.filter(|name| is_up(root, name)));
        }
        found
    }

    /// Returns the names of its own files below `/dev/vfio/devices`, in kernels with iommufd.
    pub(crate) fn vfio_files(self, root: &Root) -> Vec<String> {
        root.names(self.attribute("vfio-dev"))
    }

    /// Sets or clears its driver override.
    pub(crate) fn set_override(self, driver: Option<&str>) -> Change {
        let value = driver.unwrap_or_default().to_owned();
        Change::Write { path: self.attribute("driver_override"), value }
    }

    /// Unbinds it from its driver.
    pub(crate) fn unbind(self) -> Change {
        Change::Write { path: self.attribute("driver/unbind"), value: self.0.to_string() }
    }

    /// Makes the kernel look for its driver, as after a hotplug.
    pub(crate) fn probe(self) -> Change {
        Change::Write { path: "/sys/bus/pci/drivers_probe".into(), value: self.0.to_string() }
    }

    /// Binds it to `driver`.
    pub(crate) fn bind_to(self, driver: &str) -> Change {
        Change::Write { path: driver_directory(driver).join("bind"), value: self.0.to_string() }
    }
}

/// Returns whether a driver override is set; the kernel prints `(null)` if not.
fn is_override(name: &str) -> bool {
    !name.is_empty() && name != "(null)"
}

/// Returns the directory of a loaded driver.
pub(crate) fn driver_directory(driver: &str) -> PathBuf {
    Path::new("/sys/bus/pci/drivers").join(driver)
}

/// Returns whether a namespace has a node in `/dev`. Namespaces in a format the kernel does not support have
/// none and are unusable.
pub(crate) fn has_file(root: &Root, name: &str) -> bool {
    root.exists(Path::new("/sys/class/block").join(name).join("dev"))
}

/// Returns whether `name` is a namespace (`nvme0n1`) with a node, or a path to one (`nvme0c0n1`), which never
/// has a node.
fn is_up(root: &Root, name: &str) -> bool {
    NamespacePath::parse(name)
        .is_some_and(|path| path.subsystem.is_some() || root.present(Path::new("/dev").join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_as_the_kernel_prints_them() {
        let root = Root::recorded(
            "\
/sys/bus/pci/devices/0000:01:00.0/driver -> ../../../../bus/pci/drivers/nvme
/sys/bus/pci/devices/0000:01:00.0/driver_override = (null)
/sys/bus/pci/devices/0000:01:00.0/vendor = 0x8086
/sys/bus/pci/devices/0000:01:00.0/device = 0x0a54
/sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../../../kernel/iommu_groups/12
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/nvme3n1/size = 8
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/nvme3n2/size = 8
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/nvme3c0n7/size = 8
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/serial = PHLJ1   
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/ng3n1/
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme3/nvmenvme/
/dev/nvme3n1 = x
/dev/vfio/noiommu-12 = x
",
        )
        .expect("a recording");
        let device = Device::at("0000:01:00.0".parse().expect("address"));
        assert!(device.is_there(&root) && Device::any(&root));
        assert_eq!(device.driver(&root).as_deref(), Some("nvme"));
        assert_eq!(device.driver_override(&root), None);
        assert_eq!(device.ids(&root).as_deref(), Some("8086:0a54"));
        assert!(device.has_group_file(&root));
        assert_eq!(device.block_devices(&root), ["nvme3c0n7", "nvme3n1"]);
        assert_eq!(device.serial(&root).as_deref(), Some("PHLJ1"));
        let other = Device::at("0000:02:00.0".parse().expect("address"));
        assert!(!other.is_there(&root) && !other.has_group_file(&root));
        assert!(other.block_devices(&root).is_empty() && other.serial(&root).is_none());
    }
}
