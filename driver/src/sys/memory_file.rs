//! Memory files of other processes: `memfd_create`, `/dev/shm`, hugetlbfs.
//!
//! Accesses to the memory of any other file can block on the process or the server behind its file system.

use std::fs::File;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::statfs::fstatfs;

/// Returns the page size of `file`'s memory in bytes; `None` if it is not a memory file.
///
/// Queries seals first: only memory files have them, and the kernel answers by itself. Any other query goes to the file
/// system, which may be a process that does not answer (FUSE).
// Exported by `serve::parts`.
#[cfg_attr(not(feature = "serve"), allow(unreachable_pub))]
pub fn page_bytes(file: &File) -> Option<u64> {
    fcntl(file, FcntlArg::F_GET_SEALS).ok()?;
    u64::try_from(fstatfs(file).ok()?.block_size()).ok().filter(|bytes| bytes.is_power_of_two())
}

/// Seals `file` against shortening; returns false if it is unsealed and cannot be sealed.
#[cfg(feature = "serve")]
pub fn seal_length(file: &File) -> bool {
    use nix::fcntl::SealFlag;
    let shrink = SealFlag::F_SEAL_SHRINK;
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    seals.is_ok_and(|seals| seals.contains(shrink))
        || fcntl(file, FcntlArg::F_ADD_SEALS(shrink)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn memory(flags: MFdFlags) -> File {
        let file = File::from(memfd_create(c"test", flags).expect("memfd"));
        file.set_len(4096).expect("room");
        file
    }

    #[test]
    fn memory_files_are_told_from_others() {
        assert_eq!(page_bytes(&memory(MFdFlags::empty())), Some(4096));
        for other in ["/proc/self/status", "/dev/null", "/", "/dev/shm"] {
            assert_eq!(page_bytes(&File::open(other).expect("it can be opened")), None, "{other}");
        }
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert_eq!(page_bytes(&File::from(std::os::fd::OwnedFd::from(socket))), None);
    }

    #[test]
    #[cfg(feature = "serve")]
    fn a_file_is_sealed_where_its_maker_allows_it() {
        let willing = memory(MFdFlags::MFD_ALLOW_SEALING);
        assert!(seal_length(&willing) && seal_length(&willing), "twice is fine");
        assert!(willing.set_len(0).is_err());
        assert!(!seal_length(&memory(MFdFlags::empty())));
    }
}
