//! Who uses a block device: file systems, swap, other block devices, processes.
//!
//! Mounts are looked for in every mount namespace: what a container has mounted is as much in use as what this process sees.
//! What is stacked on a device (`holders`) is followed to the top, and its uses are the device's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Process, Use};
use crate::setup::root::Root;

/// Where the block devices are.
const BLOCK: &str = "/sys/class/block";

/// Device files worth looking for among open files; the rest is not our business.
const INTERESTING: [&str; 7] = ["nvme", "ng", "vfio/", "dm-", "md", "bcache", "loop"];

/// A block device's directory in sysfs.
pub(super) fn block(device: &str) -> PathBuf {
    Path::new(BLOCK).join(device)
}

/// All uses of all block devices, looked up once.
pub(super) struct Usage {
    mounts: Vec<Mount>,
    swaps: BTreeSet<String>,
    open: BTreeMap<String, Vec<Process>>,
    /// Loop devices by the block device behind them.
    loops: Vec<(String, String)>,
    /// Members of mounted btrfs file systems: UUID and block device.
    btrfs: Vec<(String, String)>,
}

/// One line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// Major and minor number, `259:1`; anonymous (major 0) where the file system has several devices.
    number: String,
    at: String,
    fstype: String,
    source: String,
}

impl Usage {
    /// Looks at the whole machine.
    pub(super) fn read(root: &Root) -> Usage {
        let swaps = root.text("/proc/swaps").unwrap_or_default();
        Usage {
            mounts: mounts(root),
            swaps: swaps
                .lines()
                .skip(1)
                .filter_map(|line| name_of(root, line.split_whitespace().next()?))
                .collect(),
            open: open_files(root),
            loops: loops(root),
            btrfs: btrfs(root),
        }
    }

    /// The uses of a namespace and its partitions, `devices`, and of its generic character device.
    pub(super) fn of(&self, root: &Root, devices: &[&str], generic: &str) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<String> = devices.iter().rev().map(|&device| device.to_owned()).collect();
        while let Some(device) = open.pop() {
            if !seen.insert(device.clone()) {
                continue;
            }
            self.uses_of(root, &device, &mut uses);
            for (holder, what) in self.holders(root, &device) {
                uses.push(Use::Holder { device: device.clone(), holder: holder.clone(), what });
                open.push(holder);
            }
        }
        let generic_name = generic.trim_start_matches("/dev/").to_owned();
        uses.extend(self.opened(generic, &generic_name));
        uses
    }

    fn uses_of(&self, root: &Root, device: &str, uses: &mut Vec<Use>) {
        let number = root.text(block(device).join("dev")).unwrap_or_default();
        for mount in &self.mounts {
            if self.is_on(root, mount, device, &number) {
                uses.push(Use::Mounted {
                    device: device.to_owned(),
                    at: mount.at.clone(),
                    fstype: mount.fstype.clone(),
                });
            }
        }
        if self.swaps.contains(device) {
            uses.push(Use::Swap { device: device.to_owned() });
        }
        uses.extend(self.opened(&format!("/dev/{device}"), device));
    }

    fn is_on(&self, root: &Root, mount: &Mount, device: &str, number: &str) -> bool {
        if !mount.number.starts_with("0:") {
            return mount.number == number;
        }
        let Some(source) = name_of(root, &mount.source) else { return false };
        source == device || self.share_btrfs(&source, device)
    }

    /// Whether one mounted btrfs has both as members.
    fn share_btrfs(&self, one: &str, other: &str) -> bool {
        let members = |uuid: &str, device: &str| {
            self.btrfs.iter().any(|(of, member)| of == uuid && member == device)
        };
        self.btrfs.iter().any(|(uuid, _)| members(uuid, one) && members(uuid, other))
    }

    fn holders(&self, root: &Root, device: &str) -> Vec<(String, String)> {
        let names = root.names(block(device).join("holders")).into_iter();
        let mut holders: Vec<(String, String)> =
            names.map(|holder| (holder.clone(), what_is(root, &holder))).collect();
        let loops = self.loops.iter().filter(|(_, behind)| behind == device);
        holders.extend(loops.map(|(name, _)| (name.clone(), "loop device".to_owned())));
        holders
    }

    fn opened(&self, file: &str, device: &str) -> Vec<Use> {
        let processes = self.open.get(file).into_iter().flatten();
        processes
            .map(|process| Use::Open { device: device.to_owned(), process: process.clone() })
            .collect()
    }

    /// Processes that have any of these files open.
    pub(super) fn open_by(&self, files: &[String]) -> Vec<Process> {
        let mut processes: Vec<Process> =
            files.iter().filter_map(|file| self.open.get(file)).flatten().cloned().collect();
        processes.sort_by_key(|process| process.pid);
        processes.dedup();
        processes
    }
}

/// What a holder is, in the words of those who made it.
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

/// The block device that a path of `/dev` means: `/dev/mapper/root` is `dm-0`.
fn name_of(root: &Root, path: &str) -> Option<String> {
    let path = Path::new(path);
    let inside = path.strip_prefix("/dev").ok()?;
    let real = root.resolve(path).unwrap_or_else(|| path.to_owned());
    let name = real.file_name()?.to_string_lossy().into_owned();
    // A recorded or bare machine may have no files in /dev.
    (root.exists(block(&name)) || inside.components().count() == 1).then_some(name)
}

/// The mounts of all mount namespaces, each once.
fn mounts(root: &Root) -> Vec<Mount> {
    let own = root.link_name("/proc/self/ns/mnt");
    let mut namespaces: BTreeSet<String> = own.into_iter().collect();
    let mut mounts = parse_mounts(&root.text("/proc/self/mountinfo").unwrap_or_default());
    for pid in processes(root) {
        let link = format!("/proc/{pid}/ns/mnt");
        let Ok(namespace) = fs::read_link(root.path(&link)) else { continue };
        if !namespaces.insert(namespace.to_string_lossy().into_owned()) {
            continue;
        }
        root.note(link);
        for mount in parse_mounts(&root.text(format!("/proc/{pid}/mountinfo")).unwrap_or_default())
        {
            let known = mounts
                .iter()
                .any(|known| known.number == mount.number && known.source == mount.source);
            if !known {
                let at = format!("{} in the mount namespace of process {pid}", mount.at);
                mounts.push(Mount { at, ..mount });
            }
        }
    }
    mounts
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

/// A line of mountinfo (proc_pid_mountinfo(5)): `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let mut kind = kind.split(' ');
    Some(Mount {
        number: place.next()?.to_owned(),
        at: unescape(place.nth(1)?),
        fstype: kind.next()?.to_owned(),
        source: unescape(kind.next()?),
    })
}

/// White space and backslashes are written as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn processes(root: &Root) -> Vec<u32> {
    let mut pids: Vec<u32> =
        root.names_quietly("/proc").iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Interesting device files by the processes that have them open; as far as we may see.
fn open_files(root: &Root) -> BTreeMap<String, Vec<Process>> {
    let mut open: BTreeMap<String, Vec<Process>> = BTreeMap::new();
    let own = std::process::id();
    for pid in processes(root).into_iter().filter(|pid| !root.is_live() || *pid != own) {
        let directory = format!("/proc/{pid}/fd");
        for descriptor in root.names_quietly(&directory) {
            let link = format!("{directory}/{descriptor}");
            let Ok(target) = fs::read_link(root.path(&link)) else { continue };
            let Some(file) = interesting(root, &target) else { continue };
            root.note(&link);
            let name = root.text(format!("/proc/{pid}/comm")).unwrap_or_default();
            let users = open.entry(file).or_default();
            if users.last().is_none_or(|last| last.pid != pid) {
                users.push(Process { pid, name });
            }
        }
    }
    open
}

fn interesting(root: &Root, target: &Path) -> Option<String> {
    // In an unpacked recording an absolute link leads to the recorded machine.
    let target = target
        .strip_prefix(root.path("/"))
        .map_or_else(|_| target.to_owned(), |inside| Path::new("/").join(inside));
    let name = target.to_str()?.strip_prefix("/dev/")?;
    INTERESTING
        .iter()
        .any(|prefix| name.starts_with(prefix))
        .then(|| target.to_string_lossy().into_owned())
}

fn loops(root: &Root) -> Vec<(String, String)> {
    let names = root.names_quietly(BLOCK).into_iter().filter(|name| name.starts_with("loop"));
    names
        .filter_map(|name| {
            let file = block(&name).join("loop/backing_file");
            if !root.path(&file).exists() {
                return None;
            }
            Some((name, name_of(root, &root.text(file)?)?))
        })
        .collect()
}

fn btrfs(root: &Root) -> Vec<(String, String)> {
    let uuids = root.names("/sys/fs/btrfs").into_iter();
    uuids
        .flat_map(|uuid| {
            let members = root.names(format!("/sys/fs/btrfs/{uuid}/devices"));
            members.into_iter().map(move |member| (uuid.clone(), member))
        })
        .collect()
}
