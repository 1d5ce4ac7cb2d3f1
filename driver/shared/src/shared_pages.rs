//! Memory that two parties share as device memory: a software controller's doorbell page and its controller memory
//! buffer.
//!
//! Backed by an unlinked memory file, so that a server can hand it to another process, which cannot shorten it. One
//! side maps it as registers ([`Window`]), the other polls it as [`Atomics`].
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use super::Atomics;

/// Zeroed shared memory, a multiple of 4 KiB long.
#[derive(Debug)]
pub struct SharedPages {
    file: File,
    atomics: Atomics,
}

impl SharedPages {
    /// Allocates at least `len` bytes.
    ///
    /// # Errors
    /// What the system says when it has no memory.
    pub fn allocate(len: usize) -> io::Result<SharedPages> {
        let len = len.max(1).next_multiple_of(4096);
        let file = memory_file(len)?;
        let map: Arc<MmapRaw> = Arc::new(MmapOptions::new().len(len).map_raw(&file)?);
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        // SAFETY: the mapping is `len` bytes long, `map` keeps it, and no code makes references to its bytes.
        let atomics = unsafe { Atomics::new(at, len, map) };
        Ok(SharedPages { file, atomics })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.atomics.len()
    }

    /// Always false: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory as atomics.
    #[inline(always)]
    pub fn atomics(&self) -> &Atomics {
        &self.atomics
    }

    /// Returns the file behind it; their first bytes coincide.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

const FLAGS: libc::c_uint = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn memory_file(len: usize) -> io::Result<File> {
    // SAFETY: the name is a NUL-terminated literal; the result is checked.
    let fd = unsafe { libc::memfd_create(c"adit-device".as_ptr(), FLAGS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    // SAFETY: an integer operation on a descriptor we own; the result is checked.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    #[test]
    fn mappings_of_the_file_share_its_memory() {
        let pages = SharedPages::allocate(1).expect("memory");
        assert_eq!((pages.len(), pages.is_empty()), (4096, false));
        pages.atomics().dwords()[2].store(7, Ordering::Release);
        let file = File::from(pages.file().try_clone_to_owned().expect("a second descriptor"));
        let mut dword = [0; 4];
        file.read_exact_at(&mut dword, 8).expect("it is there");
        assert_eq!(u32::from_ne_bytes(dword), 7);
    }

    #[test]
    fn a_holder_of_the_file_cannot_truncate_it() {
        let pages = SharedPages::allocate(8192).expect("memory");
        let file = File::from(pages.file().try_clone_to_owned().expect("a second descriptor"));
        assert!(file.set_len(4096).is_err() && file.set_len(1 << 20).is_err());
    }
}
