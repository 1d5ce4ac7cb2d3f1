//! Block devices that the kernel exports: NVMe over fabrics (nvmet) and SCSI (LIO) targets.
//!
//! No process has them open and sysfs shows no holders; nvmet does not even open them exclusively. Only the
//! targets' configfs lists them.

use std::path::Path;

use super::block::device_at;
use crate::root::Root;

/// Subsystems of the NVMe target.
const NVMET: &str = "/sys/kernel/config/nvmet/subsystems";

/// Backstores of the SCSI target.
const LIO: &str = "/sys/kernel/config/target/core";

/// An exported device.
pub(super) struct Export {
    /// The block device, or the NVMe controller.
    pub(super) device: String,
    /// The target.
    pub(super) by: String,
    /// The command that ends the export.
    pub(super) switch: String,
}

pub(super) fn all(root: &Root) -> Vec<Export> {
    let mut exports = Vec::new();
    for subsystem in root.names_quietly(NVMET) {
        let directory = Path::new(NVMET).join(&subsystem);
        let namespaces = root.names_quietly(directory.join("namespaces")).into_iter();
        let namespaces = namespaces.map(|number| directory.join("namespaces").join(number));
        let by = format!("the NVMe target's subsystem {subsystem}");
        let places = namespaces.chain([directory.join("passthru")]);
        exports.extend(places.filter_map(|place| nvmet(root, &place, &by)));
    }
    let adapters = root.names_quietly(LIO).into_iter().filter(|name| name.starts_with("iblock_"));
    for adapter in adapters {
        let names = root.names_quietly(Path::new(LIO).join(&adapter)).into_iter();
        exports.extend(names.filter_map(|name| lio(root, &adapter, &name)));
    }
    exports
}

fn nvmet(root: &Root, place: &Path, by: &str) -> Option<Export> {
    let device = device_at(root, &enabled(root, place, "device_path")?)?;
    let switch = format!("echo 0 > {}", place.join("enable").display());
    Some(Export { device, by: by.to_owned(), switch })
}

fn lio(root: &Root, adapter: &str, name: &str) -> Option<Export> {
    let device =
        device_at(root, &enabled(root, &Path::new(LIO).join(adapter).join(name), "udev_path")?)?;
    let by = format!("the SCSI target's backstore {name}");
    Some(Export { device, by, switch: format!("targetcli /backstores/block delete {name}") })
}

fn enabled(root: &Root, place: &Path, path: &str) -> Option<String> {
    let on = root.text(place.join("enable"))? == "1";
    on.then(|| root.text(place.join(path)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_exports_are_found_under_the_kernels_names() {
        let root = Root::recorded(
            "/sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1/enable = 1\n\
             /sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1/device_path = /dev/disk/by-id/a\n\
             /sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/2/enable = 0\n\
             /sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/2/device_path = /dev/nvme1n1\n\
             /sys/kernel/config/nvmet/subsystems/nqn.y/passthru/enable = 1\n\
             /sys/kernel/config/nvmet/subsystems/nqn.y/passthru/device_path = /dev/nvme2\n\
             /sys/kernel/config/target/core/iblock_0/disk/enable = 1\n\
             /sys/kernel/config/target/core/iblock_0/disk/udev_path = /dev/nvme3n1\n\
             /sys/kernel/config/target/core/alua/x/enable = 1\n\
             /dev/disk/by-id/a -> ../../nvme0n1p1\n/dev/nvme0n1p1 = (not recorded)\n\
             /sys/class/block/nvme0n1p1/dev = 259:1\n",
        ).expect("a recording");
        let devices: Vec<String> = all(&root).into_iter().map(|export| export.device).collect();
        assert_eq!(devices, ["nvme0n1p1", "nvme2", "nvme3n1"]);
    }
}
