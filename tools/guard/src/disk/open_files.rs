//! Files in `/dev` that processes have open.
//!
//! A process in a container may use any name for the file, so on this machine only the device number counts.
//! Inspecting a file on a network or user-space file system could block on a dead server, so those are skipped;
//! device files hardly ever work there. Other open files are neither kept nor recorded. A process that ends
//! meanwhile has nothing open. Files that are mapped but closed are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::process::{Process, process, processes};
use crate::root::Root;

/// Prefixes of the names of relevant device files in `/dev`.
const INTERESTING: [&str; 7] = ["nvme", "ng", "vfio/", "dm-", "md", "bcache", "loop"];

/// The processes that have each file open.
pub(super) struct OpenFiles {
    files: BTreeMap<String, Vec<Process>>,
    /// Number of processes whose files are not visible.
    pub(super) unseen: usize,
}

impl OpenFiles {
    /// Inspects all processes except this one.
    pub(super) fn read(root: &Root) -> OpenFiles {
        let mut files: BTreeMap<String, Vec<Process>> = BTreeMap::new();
        let mut names = Names::default();
        let mut unseen = 0;
        let own = root.is_live().then(std::process::id);
        for pid in processes(root).into_iter().filter(|pid| Some(*pid) != own) {
            let Ok(open) = open_by(root, pid, &mut names) else {
                unseen += 1;
                continue;
            };
            for file in open {
                files.entry(file).or_default().push(process(root, pid));
            }
        }
        // A recording has no hidden files, only their number.
        let unseen = root.observed("processes-unseen", || unseen.to_string());
        OpenFiles { files, unseen: unseen.and_then(|text| text.parse().ok()).unwrap_or(0) }
    }

    /// Returns the processes that have `file` open.
    pub(super) fn of(&self, file: &str) -> &[Process] {
        self.files.get(file).map_or(&[], Vec::as_slice)
    }
}

/// Returns the relevant files a process has open, each once.
///
/// # Errors
/// When they are not visible.
fn open_by(root: &Root, pid: u32, names: &mut Names) -> Result<Vec<String>, ()> {
    let directory = Path::new("/proc").join(pid.to_string()).join("fd");
    let entries = match fs::read_dir(root.path(&directory)) {
        Err(why) if why.kind() == ErrorKind::PermissionDenied => return Err(()),
        Err(_) => return Ok(Vec::new()),
        Ok(entries) => entries,
    };
    // Sorted, so that recordings are reproducible.
    let mut links: Vec<_> =
        entries.flatten().map(|entry| directory.join(entry.file_name())).collect();
    links.sort();
    let mut files = Vec::new();
    for link in links {
        let file = names.of(root, pid, &link);
        let Some(file) = file.filter(|file| !files.contains(file)) else {
            continue;
        };
        root.note_link(link, &file);
        files.push(file);
    }
    files.sort();
    Ok(files)
}

/// File systems on which inspecting a file may block on a server.
const ELSEWHERE: [&str; 10] =
    ["nfs", "cifs", "smb", "fuse", "ceph", "9p", "afs", "lustre", "gpfs", "autofs"];

/// Caches the kernel's names of device files, by kind and number.
#[derive(Default)]
struct Names {
    known: BTreeMap<(bool, u64), Option<String>>,
    /// The last process inspected, and the numbers of its mounts that can be inspected safely.
    near: Option<(u32, BTreeSet<String>)>,
}

impl Names {
    /// Returns the kernel's name of the device file a descriptor refers to; `None` if it is not relevant.
    fn of(&mut self, root: &Root, pid: u32, link: &Path) -> Option<String> {
        let target = root.link_quietly(link)?;
        let shown = target.strip_prefix("/dev").ok().and_then(|name| name.to_str());
        let may_ask = shown.is_some() || (target.is_absolute() && self.is_near(root, pid, link));
        let proper = if root.is_live() && may_ask { self.by_number(root, link) } else { None };
        let name = proper.or_else(|| shown.map(str::to_owned))?;
        let wanted = INTERESTING.iter().any(|prefix| name.starts_with(prefix));
        wanted.then(|| format!("/dev/{name}"))
    }

    /// Returns whether the file is on a local file system, which never blocks. Sockets and pipes are not.
    fn is_near(&mut self, root: &Root, pid: u32, link: &Path) -> bool {
        if !root.is_live() {
            return false;
        }
        if self.near.as_ref().is_none_or(|(of, _)| *of != pid) {
            self.near = Some((pid, near_mounts(pid)));
        }
        let mount = link.file_name().and_then(|descriptor| {
            let info = format!("/proc/{pid}/fdinfo/{}", descriptor.to_str()?);
            mount_of(&fs::read_to_string(info).ok()?)
        });
        let (_, near) = self.near.as_ref().expect("just set");
        mount.is_some_and(|mount| near.contains(&mount))
    }

    fn by_number(&mut self, root: &Root, link: &Path) -> Option<String> {
        let metadata = fs::metadata(root.path(link)).ok()?;
        let (kind, number) = (metadata.file_type(), metadata.rdev());
        if !kind.is_block_device() && !kind.is_char_device() {
            return None;
        }
        let block = kind.is_block_device();
        let name = self.known.entry((block, number));
        name.or_insert_with(|| {
            let class = if block { "block" } else { "char" };
            let file = format!("/sys/dev/{class}/{}:{}/uevent", major(number), minor(number));
            let text = fs::read_to_string(root.path(file)).ok()?;
            let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
            Some(name.to_owned())
        })
        .clone()
    }
}

/// Returns the numbers of a process's mounts that never block.
fn near_mounts(pid: u32) -> BTreeSet<String> {
    let text = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(near_mount).map(str::to_owned).collect()
}

/// Returns the number of a local mount in a line of mountinfo (proc_pid_mountinfo(5)).
fn near_mount(line: &str) -> Option<&str> {
    let (place, kind) = line.split_once(" - ")?;
    let is_far = ELSEWHERE.iter().any(|far| kind.starts_with(far));
    place.split(' ').next().filter(|_| !is_far)
}

/// Returns the number of the mount in a descriptor's fdinfo (proc_pid_fdinfo(5)).
fn mount_of(info: &str) -> Option<String> {
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_device_open_is_named_once_and_nothing_else_is_recorded() {
        let root = Root::recorded(
            "/proc/77/fd/3 -> /dev/nvme0n1\n/proc/77/fd/4 -> /dev/nvme0n1\n/proc/77/fd/5 -> /home/x\n\
             /proc/77/comm = fio\n/proc/8/fd/12 -> /dev/vfio/7\n/proc/8/comm = qemu\n\
             /proc/9/fd/0 -> pipe:[4]\n/proc/9/comm = cat\n/recorded/processes-unseen = 2\n",
        ).expect("a recording");
        let open = OpenFiles::read(&root);
        let fio = Process { pid: 77, name: "fio".to_owned() };
        assert_eq!(open.of("/dev/nvme0n1"), [fio]);
        assert_eq!(open.of("/dev/vfio/7")[0].pid, 8);
        assert_eq!(open.of("/dev/nvme1n1"), []);
        assert_eq!(open.unseen, 2);
        let recording = root.recording();
        assert!(recording.contains("/proc/77/fd/3 -> /dev/nvme0n1\n"), "{recording}");
        assert!(!recording.contains("/home") && !recording.contains("/proc/9"), "{recording}");
    }

    #[test]
    fn files_of_servers_are_not_looked_at() {
        assert_eq!(
            near_mount("36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/sda1 rw"),
            Some("36")
        );
        for far in ["nfs4", "fuse.sshfs", "fuseblk", "cifs", "9p"] {
            assert_eq!(
                near_mount(&format!("36 35 0:98 / /mnt rw - {far} server rw")),
                None,
                "{far}"
            );
        }
        assert_eq!(near_mount("36 35 98:0 / /mnt"), None);
        assert_eq!(mount_of("pos:\t0\nflags:\t02\nmnt_id:\t29\nino:\t5\n").as_deref(), Some("29"));
        assert_eq!(mount_of("pos:\t0\n"), None);
    }

    #[test]
    fn this_machine_names_devices_by_their_number() {
        let root = Root::open(None).expect("this machine");
        let zero = fs::File::open("/dev/zero").expect("a device that is always there");
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&zero));
        let name = Names::default().by_number(&root, Path::new(&link));
        // A container may lack /sys.
        assert!(name.is_none_or(|name| name == "zero"));
    }
}
