//! The kernel's block devices: their directories in sysfs, their files in `/dev`, their partitions.

use std::path::{Path, PathBuf};

use crate::root::Root;

/// The machine's block devices.
pub const BLOCK: &str = "/sys/class/block";

/// Returns a block device's directory in sysfs.
pub fn block(device: &str) -> PathBuf {
    Path::new(BLOCK).join(device)
}

/// Returns a block device's partitions in numerical order.
pub fn partitions(root: &Root, device: &str) -> Vec<String> {
    let mut names = root.names_quietly(block(device));
    names.retain(|name| {
        name.starts_with(device) && root.exists(block(device).join(name).join("partition"))
    });
    names.sort_by_key(|name| (name.len(), name.clone()));
    names
}

/// Returns the block device a path in `/dev` refers to: `/dev/mapper/root` is `dm-0`.
pub(super) fn device_at(root: &Root, path: &str) -> Option<String> {
    let path = Path::new(path);
    let inside = path.strip_prefix("/dev").ok()?;
    let real = root.resolve(path).unwrap_or_else(|| path.to_owned());
    let name = real.file_name()?.to_string_lossy().into_owned();
    // A recorded or minimal machine may have no files in /dev.
    (root.exists(block(&name)) || inside.components().count() == 1).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_in_the_order_of_their_numbers() {
        let names = ["nvme0n1p10", "nvme0n1p2", "nvme0n1p1"];
        let lines = names.map(|name| format!("/sys/class/block/nvme0n1/{name}/partition = 1\n"));
        let root =
            Root::recorded(&(lines.concat() + "/sys/class/block/nvme0n1/queue/rotational = 0\n"))
                .expect("a recording");
        assert_eq!(partitions(&root, "nvme0n1"), ["nvme0n1p1", "nvme0n1p2", "nvme0n1p10"]);
    }
}
