//! Mounted file systems in every mount namespace, because devices mounted in containers are in use too.
//!
//! A mount is matched to a block device by device number. File systems on several devices (btrfs, bcachefs)
//! have synthetic numbers, and others keep a journal elsewhere; the mount's source and options name those
//! devices. btrfs names only one of its devices; `/sys/fs/btrfs` lists the others.

use std::collections::BTreeSet;

use super::block::device_at;
use super::process::{Process, process, processes};
use super::uses::Use;
use crate::root::Root;

/// Prefix of the device numbers of file systems that are not on a single device.
const MADE_UP: &str = "0:";

/// All mounts of block devices.
pub(super) struct Mounts {
    mounts: Vec<Mount>,
    /// Members of mounted btrfs file systems: UUID and block device.
    btrfs: Vec<(String, String)>,
}

struct Mount {
    line: MountLine,
    /// Block devices named in its source and options.
    devices: Vec<String>,
    /// A process of its mount namespace, if that is not ours.
    inside: Option<Process>,
}

/// One line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountLine {
    /// Major and minor number, such as `259:1`.
    number: String,
    at: String,
    fstype: String,
    source: String,
    options: String,
}

impl Mounts {
    /// Reads the mounts of the whole machine.
    pub(super) fn read(root: &Root) -> Mounts {
        let mut mounts = Vec::new();
        let mut known = BTreeSet::new();
        for inside in namespaces(root) {
            let pid = inside.as_ref().map_or("self".to_owned(), |process| process.pid.to_string());
            let lines = root.lines(format!("/proc/{pid}/mountinfo"), may_be_of_a_device);
            let lines: Vec<MountLine> =
                lines.iter().flatten().filter_map(|line| parse(line)).collect();
            let new = lines.iter().filter(|line| !known.contains(&line.number));
            mounts.extend(new.map(|line| Mount::new(root, line, inside.as_ref())));
            // A file system is reported for the first namespace that has it, with all its mount points there.
            known.extend(lines.iter().map(|line| line.number.clone()));
        }
        Mounts { mounts, btrfs: btrfs(root) }
    }

    /// Returns the mounts of a block device with the number `number`.
    pub(super) fn of(&self, device: &str, number: &str) -> Vec<Use> {
        let on_it = self.mounts.iter().filter(|mount| self.is_on(mount, device, number));
        let mut uses: Vec<Use> = on_it.map(|mount| mount.as_use(device)).collect();
        if uses.is_empty() && self.btrfs.iter().any(|(_, member)| member == device) {
            // The kernel lists it while it is mounted, even where we cannot see the mount.
            uses.push(Use::Mounted {
                device: device.to_owned(),
                at: "a place that cannot be seen from here".to_owned(),
                fstype: "btrfs".to_owned(),
                inside: None,
            });
        }
        uses
    }

    fn is_on(&self, mount: &Mount, device: &str, number: &str) -> bool {
        mount.line.number == number
            || mount.devices.iter().any(|named| named == device || self.share_btrfs(named, device))
    }

    /// Returns whether one mounted btrfs has both as members.
    fn share_btrfs(&self, one: &str, other: &str) -> bool {
        let has = |uuid: &str, device: &str| {
            self.btrfs.iter().any(|(of, member)| of == uuid && member == device)
        };
        self.btrfs.iter().any(|(uuid, _)| has(uuid, one) && has(uuid, other))
    }
}

impl Mount {
    fn new(root: &Root, line: &MountLine, inside: Option<&Process>) -> Mount {
        // If the number identifies the device, the source may be the name of a device that no longer exists.
        let source = Some(line.source.as_str()).filter(|_| line.number.starts_with(MADE_UP));
        let sources = source.iter().flat_map(|source| source.split(':'));
        let options = line.options.split(',').filter_map(|option| Some(option.split_once('=')?.1));
        let devices = sources.chain(options).filter_map(|path| device_at(root, path)).collect();
        Mount { line: line.clone(), devices, inside: inside.cloned() }
    }

    fn as_use(&self, device: &str) -> Use {
        Use::Mounted {
            device: device.to_owned(),
            at: self.line.at.clone(),
            fstype: self.line.fstype.clone(),
            inside: self.inside.clone(),
        }
    }
}

/// Returns a process of each visible mount namespace; `None` for our own, which comes first.
fn namespaces(root: &Root) -> Vec<Option<Process>> {
    let mut known: BTreeSet<String> = root.link_name("/proc/self/ns/mnt").into_iter().collect();
    let mut namespaces = vec![None];
    for pid in processes(root) {
        let link = format!("/proc/{pid}/ns/mnt");
        let Some(namespace) = root.link_quietly(&link) else { continue };
        if known.insert(namespace.to_string_lossy().into_owned()) {
            root.note(link);
            namespaces.push(Some(process(root, pid)));
        }
    }
    namespaces
}

/// Returns whether a line of mountinfo may be about a file system on a block device.
fn may_be_of_a_device(line: &str) -> bool {
    parse(line).is_some_and(|line| {
        let named = line.source.starts_with("/dev/") || line.options.contains("=/dev/");
        named || !line.number.starts_with(MADE_UP)
    })
}

/// Parses a line of mountinfo (proc_pid_mountinfo(5)): `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3
/// /dev/root rw`.
fn parse(line: &str) -> Option<MountLine> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let mut kind = kind.split(' ');
    Some(MountLine {
        number: place.next()?.to_owned(),
        at: unescaped(place.nth(1)?),
        fstype: kind.next()?.to_owned(),
        source: unescaped(kind.next()?),
        options: unescaped(kind.next().unwrap_or_default()),
    })
}

/// Decodes octal escapes such as `\040`, which stand for white space and backslashes.
pub(super) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(octal);
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let plain = digits.iter().all(|digit| (b'0'..=b'7').contains(digit));
    u8::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| plain)?, 8).ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_reads_as_the_manual_has_it() {
        let line = parse(
            "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
        );
        let line = line.expect("a line");
        assert_eq!((line.number.as_str(), line.at.as_str()), ("98:0", "/mnt 2"));
        assert_eq!((line.fstype.as_str(), line.source.as_str()), ("ext3", "/dev/root"));
        assert_eq!(line.options, "rw,errors=continue");
        // Without and with optional fields.
        assert_eq!(parse("1 2 8:1 / /a rw - xfs /dev/sda1 rw").expect("none").at, "/a");
        assert_eq!(parse("1 2 8:1 / /a rw x:1 y:2 - xfs /dev/sda1").expect("two").fstype, "xfs");
        assert_eq!(parse("1 2 8:1 / /a rw"), None);
    }

    #[test]
    fn escapes_are_octal_and_nothing_else_is() {
        assert_eq!(unescaped("a\\040b\\134c"), "a b\\c");
        assert_eq!(unescaped("\\303\\274"), "ü");
        for plain in ["\\", "\\04", "\\999", "\\+40", "\\x41", "a\\"] {
            assert_eq!(unescaped(plain), plain);
        }
    }

    const MACHINE: &str = "\
/sys/class/block/nvme0n1p1/dev = 259:1
/sys/class/block/nvme0n1p2/dev = 259:2
/sys/class/block/nvme1n1/dev = 259:3
/sys/class/block/nvme2n1/dev = 259:4
/sys/fs/btrfs/features/raid56 = 0
/sys/fs/btrfs/5f9c/devices/nvme1n1/size = 8
/sys/fs/btrfs/5f9c/devices/nvme2n1/size = 8
/proc/self -> 100
/proc/100/ns/mnt -> mnt:[1]
/proc/200/ns/mnt -> mnt:[1]
/proc/200/comm = sshd
/proc/300/ns/mnt -> mnt:[2]
/proc/300/comm = postgres
/proc/300/mountinfo:
    90 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw
    91 1 259:2 / /data rw - xfs /dev/nvme0n1p2 rw
/proc/100/mountinfo:
    22 1 259:1 / / rw - ext4 /dev/root rw
    23 1 0:20 / /proc rw - proc proc rw
    24 1 0:44 / /b rw - btrfs /dev/nvme1n1 rw,subvolid=5,subvol=/
    25 1 8:1 / /x rw - xfs /dev/sda1 rw,attr2,logdev=/dev/nvme0n1p2,noquota
";

    fn places(mounts: &Mounts, device: &str, number: &str) -> Vec<(String, Option<u32>)> {
        let uses = mounts.of(device, number).into_iter();
        uses.map(|used| match used {
            Use::Mounted { at, inside, .. } => (at, inside.map(|process| process.pid)),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    #[test]
    fn mounts_are_found_by_number_in_other_namespaces_and_by_name() {
        let root = Root::recorded(MACHINE).expect("a recording");
        let mounts = Mounts::read(&root);
        let here = |at: &str| (at.to_owned(), None);
        assert_eq!(places(&mounts, "nvme0n1p1", "259:1"), [here("/")], "each file system once");
        let with_log = [here("/x"), ("/data".to_owned(), Some(300))];
        assert_eq!(places(&mounts, "nvme0n1p2", "259:2"), with_log, "a log, and a container");
        for (device, number) in [("nvme1n1", "259:3"), ("nvme2n1", "259:4")] {
            assert_eq!(places(&mounts, device, number), [here("/b")], "both members");
        }
        assert_eq!(places(&mounts, "nvme3n1", "259:9"), []);
        assert!(!root.recording().contains("/proc rw"), "what is on no device is not recorded");
    }

    #[test]
    fn a_member_of_a_btrfs_that_is_mounted_out_of_sight_is_in_use() {
        let root =
            Root::recorded("/sys/fs/btrfs/5f9c/devices/nvme1n1/size = 8\n").expect("a recording");
        let found = places(&Mounts::read(&root), "nvme1n1", "259:3");
        assert_eq!(found.len(), 1);
    }

    proptest! {
        #[test]
        fn any_line_is_a_mount_or_none(line in "[ -~ü\\\\]{0,60}") {
            let _ = parse(&line);
            let _ = parse(&format!("1 2 3:4 / {line} - {line}"));
        }

        #[test]
        fn what_the_kernel_escapes_reads_back(name in "[a-z \\t\\\\ü]{0,20}") {
            let escape = |letter: char| match letter {
                ' ' | '\t' | '\\' => format!("\\{:03o}", letter as u32),
                other => other.to_string(),
            };
            prop_assert_eq!(unescaped(&name.chars().map(escape).collect::<String>()), name);
        }
    }
}
