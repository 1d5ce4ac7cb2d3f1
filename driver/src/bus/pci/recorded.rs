//! A sysfs tree of a machine with an NVMe controller in group 7, and a network card next to a bridge in
//! group 8.

use super::*;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory shaped like `/sys`, removed when dropped.
pub(crate) struct Tree(pub(crate) PathBuf);

impl Tree {
    pub(crate) fn new() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique =
            format!("adit-sysfs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(unique);
        fs::create_dir_all(root.join("bus/pci/devices")).expect("temporary directory");
        Tree(root)
    }

    pub(crate) fn function(&self, name: &str, class: &str) -> PathBuf {
        let directory = self.0.join("devices/pci0000:00").join(name);
        fs::create_dir_all(&directory).expect("device directory");
        symlink(&directory, self.0.join("bus/pci/devices").join(name)).expect("bus link");
        self.set(name, "class", class);
        self.set(name, "numa_node", "-1\n");
        let mut resource =
            String::from("0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n");
        resource.push_str(&"0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(5));
        self.set(name, "resource", &resource);
        directory
    }

    pub(crate) fn set(&self, name: &str, attribute: &str, text: &str) {
        let directory = self.0.join("devices/pci0000:00").join(name);
        fs::write(directory.join(attribute), text).expect("attribute");
    }

    pub(crate) fn bind(&self, name: &str, driver: &str) {
        let target = self.0.join("bus/pci/drivers").join(driver);
        fs::create_dir_all(&target).expect("driver directory");
        let link = self.0.join("devices/pci0000:00").join(name).join("driver");
        let _ = fs::remove_file(&link);
        symlink(target, link).expect("driver link");
    }

    pub(crate) fn group(&self, name: &str, group: u32) {
        let directory = self.0.join("devices/pci0000:00").join(name);
        let target = self.0.join(format!("kernel/iommu_groups/{group}"));
        fs::create_dir_all(target.join("devices")).expect("group directory");
        symlink(&directory, target.join("devices").join(name)).expect("member link");
        symlink(&target, directory.join("iommu_group")).expect("group link");
    }

    pub(crate) fn virtual_function(&self, physical: &str, index: u32, name: &str) {
        let devices = self.0.join("devices/pci0000:00");
        let (physical, own) = (devices.join(physical), devices.join(name));
        symlink(&own, physical.join(format!("virtfn{index}"))).expect("virtfn link");
        symlink(&physical, own.join("physfn")).expect("physfn link");
    }

    pub(crate) fn find(&self, name: &str) -> PciFunction {
        PciFunction::find(&self.0, name.parse().expect("address")).expect("function")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
