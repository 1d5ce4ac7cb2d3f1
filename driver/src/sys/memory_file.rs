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

/// Seals `file` so that no page can be taken out of it: a process that has it mapped for writing keeps that, but it can be
/// neither written by `write` nor mapped for writing anew, nor can holes be punched in it. Returns false if it is not
/// and cannot be sealed so (before Linux 5.1).
#[cfg(feature = "serve")]
pub fn seal_pages(file: &File) -> bool {
    use nix::fcntl::SealFlag;
    // nix has no name for it; hole punching and MADV_REMOVE ask for it, or for F_SEAL_WRITE.
    let pages = SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE);
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    seals.is_ok_and(|seals| seals.contains(pages))
        || fcntl(file, FcntlArg::F_ADD_SEALS(pages)).is_ok()
}

/// Returns where the first page is that a memory file lacks: its length if it has all. A page that was only reserved
/// (fallocate(2)) counts as lacking until it is touched, one that was swapped out does not. The number of blocks
/// (fstat(2)) would not do: it counts pages behind the end, too.
///
/// # Errors
/// The system's error.
#[cfg(feature = "serve")]
pub fn first_hole(file: &File) -> std::io::Result<u64> {
    let at = nix::unistd::lseek(file, 0, nix::unistd::Whence::SeekHole)?;
    u64::try_from(at).map_err(std::io::Error::other)
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

    #[test]
    #[cfg(feature = "serve")]
    fn a_file_whose_pages_are_sealed_keeps_them() {
        use nix::fcntl::{FallocateFlags, fallocate};
        use std::os::unix::fs::FileExt;
        let file = memory(MFdFlags::MFD_ALLOW_SEALING);
        file.set_len(4 * 4096).expect("room");
        let punch = || {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, flags, 4096, 4096)
        };
        assert_eq!(first_hole(&file).expect("a place"), 0);
        fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 8 * 4096).expect("room");
        assert_eq!(first_hole(&file).expect("a place"), 0, "only reserved");
        file.write_all_at(&[1; 4 * 4096], 0).expect("written");
        assert_eq!(first_hole(&file).expect("a place"), 4 * 4096);
        punch().expect("a hole");
        assert_eq!(first_hole(&file).expect("a place"), 4096);
        file.write_all_at(&[1], 4096).expect("written");
        assert!(seal_pages(&file) && seal_pages(&file), "twice is fine");
        punch().expect_err("it is sealed");
        file.write_all_at(&[1], 0).expect_err("it is sealed");
        assert_eq!(first_hole(&file).expect("a place"), 4 * 4096);
        assert!(!seal_pages(&memory(MFdFlags::empty())));
    }
}
