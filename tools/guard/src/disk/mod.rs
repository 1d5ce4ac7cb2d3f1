//! Inspects any block device, not only a controller's namespace: its users and contents, for commands that
//! would write to it.

mod block;
mod exports;
mod mounts;
mod namespace;
mod open_files;
mod process;
mod signature;
mod usage;
mod uses;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

use block::device_at;
use namespace::behind_generic;

use crate::program;
use crate::root::Root;

pub use block::{BLOCK, block, partitions};
pub use namespace::NamespacePath;
pub use process::Process;
pub use signature::{NO_DEVICE, Signature, signatures, signatures_of_file, told_once};
pub use usage::Usage;
pub use uses::Use;

/// A block device.
#[derive(Debug)]
pub struct Disk {
    /// Its name in the kernel, such as `nvme0n1` or `dm-0`.
    pub name: String,
    /// Uses of it or its partitions.
    pub uses: Vec<Use>,
    /// Signatures on it and its partitions, or why they are unknown.
    pub signatures: Result<Vec<Signature>, String>,
    /// Whether the kernel refuses writes to it.
    pub is_read_only: bool,
    /// Whether the kernel or a process has exclusive use of it: mounted out of sight, or opened with O_EXCL.
    pub is_claimed: bool,
}

impl Disk {
    /// Inspects the block device `name` and its uses on the whole machine.
    pub fn read(root: &Root, name: &str) -> Disk {
        let partitions = partitions(root, name);
        let devices: Vec<&str> =
            std::iter::once(name).chain(partitions.iter().map(String::as_str)).collect();
        let signatures = signatures(root, &devices);
        let usage = Usage::read(root);
        let mut uses = usage.of(root, &devices);
        uses.extend(usage.of_pools(signatures.as_deref().unwrap_or_default()));
        if let Some(number) = name.strip_prefix("nvme") {
            uses.extend(usage.of_file(&format!("ng{number}")));
        }
        let is_read_only = root.text(block(name).join("ro")).as_deref() == Some("1");
        let is_claimed = is_claimed(root, name);
        Disk { name: name.to_owned(), uses, signatures, is_read_only, is_claimed }
    }
}

/// Returns the name of the block device that a file is, or that belongs to the generic NVMe device it is;
/// `None` for other files.
pub fn disk_of_file(root: &Root, file: &Path) -> Option<String> {
    let name =
        if root.is_live() { by_number(root, file) } else { device_at(root, file.to_str()?) }?;
    let name = behind_generic(&name).unwrap_or(name);
    root.exists(block(&name)).then_some(name)
}

/// Returns the kernel's name of a device file of this machine, whatever the file's own name.
fn by_number(root: &Root, file: &Path) -> Option<String> {
    let metadata = fs::metadata(file).ok()?;
    let kind = metadata.file_type();
    let class = match (kind.is_block_device(), kind.is_char_device()) {
        (true, _) => "block",
        (_, true) => "char",
        _ => return None,
    };
    let number = metadata.rdev();
    root.link_name(format!("/sys/dev/{class}/{}:{}", major(number), minor(number)))
}

/// Returns whether the device is in exclusive use; being open alone does not count.
fn is_claimed(root: &Root, name: &str) -> bool {
    let busy = |why: &std::io::Error| why.raw_os_error() == Some(Errno::EBUSY as i32);
    let look = || match program::claim(&Path::new("/dev").join(name)) {
        Err(why) if busy(&why) => "yes".to_owned(),
        _ => "no".to_owned(),
    };
    root.observed(&format!("claimed-{name}"), look).as_deref() == Some("yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "\
/sys/class/block/nvme0n1/dev = 259:0
/sys/class/block/nvme0n1/size = 2048
/sys/class/block/nvme0n1/nvme0n1p1/partition = 1
/sys/class/block/nvme0n1p1/dev = 259:1
/recorded/wipefs/nvme0n1 = {\"signatures\": [{\"offset\": \"0x200\", \"type\": \"gpt\"}]}
/recorded/wipefs/nvme0n1p1 = {\"signatures\": [{\"offset\": \"0x438\", \"type\": \"ext4\"}]}
/proc/self/mountinfo = 36 35 259:1 / /mnt rw - ext4 /dev/nvme0n1p1 rw
/dev/ng0n1 = x
/dev/disk/by-id/mine -> ../../nvme0n1
/dev/nvme0n1 = x
";

    #[test]
    fn a_disk_is_found_by_each_of_its_files() {
        let root = Root::recorded(MACHINE).expect("a recording");
        let disk = |file: &str| disk_of_file(&root, Path::new(file));
        for file in ["/dev/nvme0n1", "/dev/ng0n1", "/dev/disk/by-id/mine"] {
            assert_eq!(disk(file).as_deref(), Some("nvme0n1"), "{file}");
        }
        for file in ["/dev/nvme1n1", "/dev/ng1n1", "/home/x", "/dev/null"] {
            assert_eq!(disk(file), None, "{file}");
        }
    }

    #[test]
    fn what_is_on_a_partition_is_on_the_disk() {
        let root = Root::recorded(MACHINE).expect("a recording");
        let disk = Disk::read(&root, "nvme0n1");
        assert!(matches!(&disk.uses[..], [Use::Mounted { device, .. }] if device == "nvme0n1p1"));
        let found = disk.signatures.expect("recorded");
        let kinds: Vec<&str> = found.iter().map(|signature| signature.kind.as_str()).collect();
        assert_eq!(kinds, ["gpt", "ext4"]);
        assert!(!disk.is_read_only && !disk.is_claimed);
    }

    #[test]
    fn a_disk_that_is_read_only_or_claimed_says_so() {
        let more = "/sys/class/block/nvme0n1/ro = 1\n/recorded/claimed-nvme0n1 = yes\n";
        let root = Root::recorded(&(MACHINE.to_owned() + more)).expect("a recording");
        let disk = Disk::read(&root, "nvme0n1");
        assert!(disk.is_read_only && disk.is_claimed);
    }

    #[test]
    fn a_file_that_is_no_device_is_no_disk_on_this_machine() {
        let root = Root::open(None).expect("this machine");
        for file in ["/proc/self/exe", "/dev/null", "/no/such/file"] {
            assert_eq!(by_number(&root, Path::new(file)).filter(|name| name != "null"), None);
        }
    }
}
