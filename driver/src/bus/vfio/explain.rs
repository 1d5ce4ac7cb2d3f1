//! Explains VFIO's refusals and their remedies.
//!
//! The system returns an error number; people need the limit's name, its value and the command that raises
//! it.

use std::fs;
use std::io;
use std::path::Path;

use vfio_ioctls::VfioError;

use super::ioctl::memlock_limit;
use crate::error::Error;

/// The container's limit on mappings, a parameter of the kernel module.
const ENTRY_LIMIT: &str = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";

/// The VFIO container file, shared by all devices.
const CONTAINER: &str = "/dev/vfio/vfio";

pub(super) fn open_failed(device: &str, group_file: &Path, error: &VfioError) -> Error {
    let file = group_file.display();
    match error {
        VfioError::OpenContainer(why) => file_refused(device, Path::new(CONTAINER), why),
        VfioError::OpenGroup(why, _) => file_refused(device, group_file, why),
        #[cfg(feature = "iommufd")]
        VfioError::OpenDeviceCdev(why) => file_refused(device, Path::new("/dev/vfio/devices"), why),
        #[cfg(feature = "iommufd")]
        VfioError::NewVfioIommufd(iommufd_ioctls::IommufdError::OpenIommufd(why)) => {
            file_refused(device, group_file, why)
        }
        VfioError::ContainerSetIOMMU(why) if why.errno() == libc::EPERM => Error::refused(
            device,
            "cannot open",
            "the platform lacks interrupt remapping, which VFIO requires",
            "enable it in the firmware, or accept the risk: vfio_iommu_type1.allow_unsafe_interrupts=1",
        ),
        VfioError::GroupViable | VfioError::GroupSetContainer => Error::refused(
            device,
            "cannot open",
            format!("{file}: {error}"),
            format!(
                "unbind the other devices of its IOMMU group from their drivers; 'adit setup doctor {}' names them",
                bdf(device)
            ),
        ),
        _ => Error::refused(
            device,
            "cannot open",
            format!("{file}: {error}"),
            "look for vfio-pci in the kernel log (dmesg)",
        ),
    }
}

fn file_refused(device: &str, path: &Path, why: &io::Error) -> Error {
    let file = path.display();
    match why.raw_os_error() {
        Some(libc::EBUSY) => Error::refused(
            device,
            "cannot open",
            format!("{file} is in use by {}", users_in_words(path)),
            "end that program, or choose another device",
        ),
        Some(libc::EACCES | libc::EPERM) => Error::refused(
            device,
            "cannot open",
            format!("{file}: permission denied"),
            // All devices share the container file, which is normally open to every user.
            if path == Path::new(CONTAINER) {
                doctor(device)
            } else {
                format!("run 'sudo adit setup grant {} --user $USER'", bdf(device))
            },
        ),
        _ => Error::refused(device, "cannot open", format!("{file}: {why}"), doctor(device)),
    }
}

/// Returns the name that `adit setup` uses for the target `vfio:0000:01:00.0`.
fn bdf(device: &str) -> &str {
    device.strip_prefix("vfio:").unwrap_or(device)
}

/// Returns the advice to run `adit setup doctor`.
fn doctor(device: &str) -> String {
    format!("'adit setup doctor {}' finds what is wrong", bdf(device))
}

fn users_in_words(file: &Path) -> String {
    let users = users_of(Path::new("/proc"), file);
    if users.is_empty() {
        "another process (run as root to see which)".to_owned()
    } else {
        users.join(", ")
    }
}

/// Lists the visible processes that have `file` open: `name (pid 1234)`.
fn users_of(proc: &Path, file: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir(proc) else { return Vec::new() };
    processes
        .flatten()
        .filter(|process| process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter(|process| holds(&process.path().join("fd"), file))
        .map(|process| {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("{} (pid {})", name.trim(), process.file_name().to_string_lossy())
        })
        .collect()
}

fn holds(descriptors: &Path, file: &Path) -> bool {
    let Ok(entries) = fs::read_dir(descriptors) else { return false };
    entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == file))
}

/// Explains why a mapping of `len` bytes failed, with `mapped` bytes mapped already.
pub(super) fn map_failed(device: &str, len: u64, mapped: u64, error: &VfioError) -> Error {
    let what = format!("cannot map {len} bytes for DMA");
    match errno(error) {
        Some(libc::ENOSPC) => {
            let limit = fs::read_to_string(ENTRY_LIMIT).unwrap_or_else(|_| "65535".to_owned());
            Error::refused(
                device,
                what,
                format!("all {} mappings of dma_entry_limit are in use", limit.trim()),
                format!("map fewer, larger regions, or write more into {ENTRY_LIMIT}"),
            )
        }
        Some(libc::ENOMEM) => Error::refused(
            device,
            what,
            format!(
                "with {mapped} bytes mapped already, {} are needed, but RLIMIT_MEMLOCK is {}",
                mapped + len,
                memlock_limit().map_or("unlimited and memory has run out".to_owned(), |limit| {
                    format!("{limit} bytes")
                }),
            ),
            format!(
                "run 'ulimit -l unlimited' first; if that is refused, 'sudo adit setup grant {} --user $USER' and log in again",
                bdf(device)
            ),
        ),
        Some(libc::EFAULT) => Error::refused(
            device,
            what,
            "the memory cannot be pinned (EFAULT)",
            "register ordinary memory that this process may write",
        ),
        _ => Error::refused(device, what, error, "look for vfio in the kernel log (dmesg)"),
    }
}

/// Explains why `len` bytes of a file could not be mapped.
pub(super) fn map_file_failed(device: &str, len: u64, why: &io::Error) -> Error {
    let what = format!("cannot map {len} bytes of a file for DMA");
    match why.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Error::refused(
            device,
            what,
            "this kernel's iommufd takes memory files and the dma-bufs of vfio-pci itself, not another driver's (EOPNOTSUPP)",
            "reach the memory in another way until the kernel supports this",
        ),
        Some(libc::ENOTTY | libc::EINVAL) => Error::refused(
            device,
            what,
            format!("this kernel's iommufd does not map such files: {why}"),
            "memory files need Linux 6.13, dma-bufs 6.19; reach the memory in another way",
        ),
        _ => Error::refused(
            device,
            what,
            why,
            "see dmesg for iommufd, or reach the memory in another way",
        ),
    }
}

fn errno(error: &VfioError) -> Option<i32> {
    match error {
        VfioError::IommuDmaMap(why) => Some(why.errno()),
        #[cfg(feature = "iommufd")]
        VfioError::IommufdIoctlError(iommufd_ioctls::IommufdError::IommuIoasMap(why)) => {
            Some(why.errno())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_sys_util::errno::Error as Errno;

    fn map_error(errno: i32) -> String {
        map_failed("vfio:x", 4096, 8192, &VfioError::IommuDmaMap(Errno::new(errno))).to_string()
    }

    #[test]
    fn each_limit_is_called_by_its_name() {
        assert!(map_error(libc::ENOSPC).contains("dma_entry_limit"));
        let memlock = map_error(libc::ENOMEM);
        assert!(memlock.contains("RLIMIT_MEMLOCK") && memlock.contains("12288"), "{memlock}");
        assert!(memlock.contains("ulimit -l unlimited"));
        assert!(map_error(libc::EFAULT).contains("pinned"));
        assert!(map_error(libc::EINVAL).contains("dmesg"));
    }

    #[test]
    fn files_that_refuse_are_named_with_the_remedy() {
        let group = Path::new("/dev/vfio/9");
        let refused = |errno| {
            let why = io::Error::from_raw_os_error(errno);
            let error = VfioError::OpenGroup(why, "9".into());
            open_failed("vfio:0000:01:00.0", group, &error).to_string()
        };
        let denied = refused(libc::EACCES);
        assert!(denied.contains("/dev/vfio/9: permission denied"), "{denied}");
        assert!(denied.contains("'sudo adit setup grant 0000:01:00.0 --user $USER'"), "{denied}");
        assert!(refused(libc::EBUSY).contains("in use by another process"));
        let gone = refused(libc::ENODEV);
        assert!(gone.contains("/dev/vfio/9"), "{gone}");
        assert!(gone.contains("'adit setup doctor 0000:01:00.0'"), "{gone}");
        let container = VfioError::OpenContainer(io::Error::from_raw_os_error(libc::EACCES));
        let text = open_failed("vfio:0000:01:00.0", group, &container).to_string();
        assert!(text.contains("/dev/vfio/vfio: permission denied"), "{text}");
        assert!(!text.contains("grant"), "a grant is of one device: {text}");
    }

    #[test]
    fn files_that_cannot_be_mapped_say_which_kernel_could() {
        let told = |errno| {
            let why = io::Error::from_raw_os_error(errno);
            map_file_failed("vfio:test", 4096, &why).to_string()
        };
        assert!(told(libc::EOPNOTSUPP).contains("not another driver's"));
        assert!(told(libc::ENOTTY).contains("6.13"));
        assert!(told(libc::EBADF).contains("dmesg"));
    }

    #[test]
    fn the_user_of_a_file_is_found() {
        let path = std::env::temp_dir().join(format!("adit-held-{}", std::process::id()));
        let held = fs::File::create(&path).expect("file");
        let users = users_of(Path::new("/proc"), &path);
        assert!(users.iter().any(|user| user.ends_with(&format!("(pid {})", std::process::id()))));
        drop(held);
        fs::remove_file(&path).expect("remove");
    }
}
