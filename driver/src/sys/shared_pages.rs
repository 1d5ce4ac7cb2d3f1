//! Memory that two parties share as device memory: a software controller's doorbell page and its controller memory
//! buffer.
//!
//! Backed by an unlinked memory file, so that a server can hand it to another process, which cannot shorten it. One
//! side maps it as registers ([`Window`]), the other polls it as [`Atomics`].
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

use super::{Atomics, Window};
use crate::error::{Error, Result};

/// Zeroed shared memory, a multiple of 4 KiB long.
#[derive(Debug)]
pub struct SharedPages {
    file: File,
    window: Window,
    atomics: Atomics,
}

impl SharedPages {
    /// Allocates at least `len` bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] when the system has no memory.
    pub fn allocate(len: usize) -> Result<SharedPages> {
        let len = len.max(1).next_multiple_of(4096);
        let mapped =
            memory_file(len).and_then(|file| Ok((Window::map(file.as_fd(), 0, len)?, file)));
        let (window, file) = mapped.map_err(|why| {
            let what = format!("allocate {len} bytes");
            Error::refused("shared memory", what, why, "free memory or ask for less")
        })?;
        Ok(SharedPages { file, atomics: window.atomics(), window })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Always false: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory as device registers.
    pub fn window(&self) -> &Window {
        &self.window
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

fn memory_file(len: usize) -> std::io::Result<File> {
    // SAFETY: the name is a NUL-terminated literal; the result is checked.
    let fd = unsafe { libc::memfd_create(c"adit-device".as_ptr(), FLAGS) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    // SAFETY: an integer operation on a descriptor we own; the result is checked.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_views_see_one_memory() {
        let pages = SharedPages::allocate(1).expect("memory");
        assert_eq!((pages.len(), pages.is_empty()), (4096, false));
        pages.window().write32(8, 7);
        assert_eq!(pages.atomics().dwords()[2].load(Ordering::Acquire), 7);
    }

    #[test]
    fn whoever_is_handed_the_file_cannot_cut_it() {
        let pages = SharedPages::allocate(8192).expect("memory");
        let file = File::from(pages.file().try_clone_to_owned().expect("a second descriptor"));
        assert!(file.set_len(4096).is_err() && file.set_len(1 << 20).is_err());
    }
}
