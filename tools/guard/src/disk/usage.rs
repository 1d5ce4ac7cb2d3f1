//! Users of a block device: file systems, swap, other block devices, the kernel's exports, processes.
//!
//! Follows everything made of a device to the top: holders and their partitions, loop devices, and what is made
//! of those. Their uses count as the device's.

use std::collections::BTreeSet;
use std::path::Path;

use super::block::{BLOCK, block, device_at, partitions};
use super::exports::{self, Export};
use super::mounts::{Mounts, unescaped};
use super::open_files::OpenFiles;
use super::process::Process;
use super::signature::Signature;
use super::uses::Use;
use crate::root::Root;

/// All uses of all block devices, read once.
pub struct Usage {
    mounts: Mounts,
    swaps: BTreeSet<String>,
    open: OpenFiles,
    exports: Vec<Export>,
    /// Loop devices with their backing block devices.
    loops: Vec<(String, String)>,
    /// Imported ZFS pools, whose devices have no holders.
    pools: Vec<String>,
}

impl Usage {
    /// Reads the uses on the whole machine.
    pub fn read(root: &Root) -> Usage {
        Usage {
            mounts: Mounts::read(root),
            swaps: swaps(root),
            open: OpenFiles::read(root),
            exports: exports::all(root),
            loops: loops(root),
            pools: pools(root),
        }
    }

    /// Returns the uses of `devices`, a namespace and its partitions.
    pub fn of(&self, root: &Root, devices: &[&str]) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut seen = BTreeSet::new();
        let mut rest: Vec<String> = devices.iter().rev().map(|&device| device.to_owned()).collect();
        while let Some(device) = rest.pop() {
            if !seen.insert(device.clone()) {
                continue;
            }
            self.uses_of(root, &device, &mut uses);
            for (holder, what) in self.holders(root, &device) {
                rest.extend(partitions(root, &holder).into_iter().rev());
                rest.push(holder.clone());
                uses.push(Use::Holder { device: device.clone(), holder, what });
            }
        }
        uses
    }

    fn uses_of(&self, root: &Root, device: &str, uses: &mut Vec<Use>) {
        let number = root.text(block(device).join("dev")).unwrap_or_default();
        uses.extend(self.mounts.of(device, &number));
        if self.swaps.contains(device) {
            uses.push(Use::Swap { device: device.to_owned() });
        }
        uses.extend(self.of_file(device));
    }

    /// Returns the exports and open files of `device` in `/dev`.
    pub fn of_file(&self, device: &str) -> Vec<Use> {
        let exports = self.exports.iter().filter(|export| export.device == device);
        let exports = exports.map(|export| Use::Exported {
            device: device.to_owned(),
            by: export.by.clone(),
            switch: export.switch.clone(),
        });
        let open = self.open.of(&format!("/dev/{device}")).iter();
        let open =
            open.map(|process| Use::Open { device: device.to_owned(), process: process.clone() });
        exports.chain(open).collect()
    }

    /// Returns the uses by ZFS, which only signatures reveal; `signatures` are those of a namespace.
    pub fn of_pools(&self, signatures: &[Signature]) -> Vec<Use> {
        let mut uses: Vec<Use> = Vec::new();
        for signature in signatures.iter().filter(|signature| signature.kind == "zfs_member") {
            let pool = signature.label.as_ref().filter(|label| self.pools.contains(label));
            let held = pool.map(|pool| Use::Holder {
                device: signature.device.clone(),
                holder: pool.clone(),
                what: "ZFS pool".to_owned(),
            });
            uses.extend(held.filter(|held| !uses.contains(held)));
        }
        uses
    }

    /// Returns the processes that have any of these `/dev` files open.
    pub fn open_by(&self, files: &[String]) -> Vec<Process> {
        let mut processes: Vec<Process> =
            files.iter().flat_map(|file| self.open.of(file)).cloned().collect();
        processes.sort_by_key(|process| process.pid);
        processes.dedup();
        processes
    }

    /// Returns the number of processes whose open files and mounts are not visible.
    pub fn unseen(&self) -> usize {
        self.open.unseen
    }

    fn holders(&self, root: &Root, device: &str) -> Vec<(String, String)> {
        let names = root.names(block(device).join("holders")).into_iter();
        let mut holders: Vec<(String, String)> =
            names.map(|holder| (holder.clone(), what_is(root, &holder))).collect();
        let loops = self.loops.iter().filter(|(_, behind)| behind == device);
        holders.extend(loops.map(|(name, _)| (name.clone(), "loop device".to_owned())));
        holders
    }
}

/// Describes a holder in its subsystem's terms.
fn what_is(root: &Root, holder: &str) -> String {
    let attribute =
        |name: &str| root.text(block(holder).join(name)).filter(|text| !text.is_empty());
    if let Some(level) = attribute("md/level") {
        return format!("MD {level} {holder}");
    }
    if root.exists(block(holder).join("bcache")) {
        return "bcache".to_owned();
    }
    let Some(name) = attribute("dm/name") else { return holder.to_owned() };
    let uuid = attribute("dm/uuid").unwrap_or_default();
    let kind = match uuid.split('-').next() {
        Some("LVM") => "LVM volume",
        Some("CRYPT") => "dm-crypt",
        Some("mpath") => "multipath",
        _ => "device mapper",
    };
    format!("{kind} {name}")
}

fn swaps(root: &Root) -> BTreeSet<String> {
    let text = root.text("/proc/swaps").unwrap_or_default();
    let paths = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.filter_map(|path| device_at(root, &unescaped(path))).collect()
}

fn loops(root: &Root) -> Vec<(String, String)> {
    let names = root.names_quietly(BLOCK).into_iter().filter(|name| name.starts_with("loop"));
    names
        .filter_map(|name| {
            let file = block(&name).join("loop/backing_file");
            // Most loop devices are unused and lack this file.
            let behind = root.path(&file).exists().then(|| root.text(file))??;
            Some((name, device_at(root, &behind)?))
        })
        .collect()
}

fn pools(root: &Root) -> Vec<String> {
    let statistics = Path::new("/proc/spl/kstat/zfs");
    let names = root.names_quietly(statistics).into_iter();
    names.filter(|name| root.text(statistics.join(name).join("state")).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(machine: &str, devices: &[&str]) -> Vec<Use> {
        let root = Root::recorded(machine).expect("a recording");
        Usage::read(&root).of(&root, devices)
    }

    fn holder(device: &str, holder: &str, what: &str) -> Use {
        Use::Holder { device: device.to_owned(), holder: holder.to_owned(), what: what.to_owned() }
    }

    #[test]
    fn swap_is_found_under_any_of_its_names() {
        let machine = "\
/sys/class/block/nvme0n1p3/dev = 259:3
/sys/class/block/dm-1/dev = 253:1
/sys/class/block/nvme1n1/holders/dm-1/dev = 253:1
/sys/class/block/dm-1/dm/name = vg-swap
/sys/class/block/dm-1/dm/uuid = LVM-abc
/dev/mapper/vg-swap -> ../dm-1
/dev/dm-1 = (not recorded)
/proc/swaps:
    Filename				Type		Size		Used		Priority
    /dev/nvme0n1p3                          partition	8388604		0		-2
    /dev/mapper/vg-swap                     partition	8388604		0		-3
    /swap\\040file                           file	1	0	-4
";
        let swap = |device: &str| Use::Swap { device: device.to_owned() };
        assert_eq!(uses(machine, &["nvme0n1", "nvme0n1p3"]), [swap("nvme0n1p3")]);
        let lvm = holder("nvme1n1", "dm-1", "LVM volume vg-swap");
        assert_eq!(uses(machine, &["nvme1n1"]), [lvm, swap("dm-1")]);
    }

    #[test]
    fn holders_are_followed_to_the_top_and_through_their_partitions() {
        let machine = "\
/sys/class/block/nvme0n1/holders/md127 -> ../../md127
/sys/class/block/md127/dev = 9:127
/sys/class/block/md127/md/level = raid1
/sys/class/block/md127/holders/
/sys/class/block/md127/md127p1/partition = 1
/sys/class/block/md127p1/dev = 259:7
/sys/class/block/md127p1/holders/dm-0/dev = 253:0
/sys/class/block/dm-0/dev = 253:0
/sys/class/block/dm-0/dm/name = secret
/sys/class/block/dm-0/dm/uuid = CRYPT-LUKS2-00-secret
/sys/class/block/loop3/loop/backing_file = /dev/dm-0
/sys/class/block/loop3/dev = 7:3
/sys/class/block/bcache0/bcache -> ../x
/proc/self/mountinfo = 1 0 7:3 / /mnt rw - ext4 /dev/loop3 rw
";
        let found = uses(machine, &["nvme0n1"]);
        let mounted = Use::Mounted {
            device: "loop3".to_owned(),
            at: "/mnt".to_owned(),
            fstype: "ext4".to_owned(),
            inside: None,
        };
        let expected = [
            holder("nvme0n1", "md127", "MD raid1 md127"),
            holder("md127p1", "dm-0", "dm-crypt secret"),
            holder("dm-0", "loop3", "loop device"),
            mounted,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn holders_that_hold_each_other_end() {
        let machine = "\
/sys/class/block/dm-0/holders/dm-1/dev = 1
/sys/class/block/dm-1/holders/dm-0/dev = 1
";
        assert_eq!(uses(machine, &["dm-0"]).len(), 2);
    }

    #[test]
    fn a_pool_that_is_imported_holds_its_members() {
        let root =
            Root::recorded("/proc/spl/kstat/zfs/tank/state = ONLINE\n").expect("a recording");
        let usage = Usage::read(&root);
        let member = |label: &str| Signature {
            device: "nvme0n1p1".to_owned(),
            offset: 0x3f000,
            kind: "zfs_member".to_owned(),
            usage: "filesystem".to_owned(),
            label: Some(label.to_owned()),
            uuid: None,
        };
        // ZFS writes its label several times.
        let found = usage.of_pools(&[member("tank"), member("tank"), member("exported")]);
        assert_eq!(found, [holder("nvme0n1p1", "tank", "ZFS pool")]);
    }
}
