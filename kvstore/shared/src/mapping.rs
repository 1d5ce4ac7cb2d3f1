//! Memory files mapped on large pages.
//!
//! A memory file has pages of 4 KiB, each somewhere else, unless the system is set up otherwise. A device then gets a
//! segment for each of them, and copies and checksums miss the TLB. Pages of 2 MiB can be asked for afterwards
//! (madvise(2), `MADV_COLLAPSE`, Linux 6.1), without a right, a setting or a hugetlbfs, and can be mapped whole where
//! address and offset agree modulo 2 MiB.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Bytes of an ordinary page, of which regions are made.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a large page.
pub(crate) const LARGE: usize = 2 << 20;

/// The first bytes of a file, readable and writable, at a multiple of [`LARGE`].
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Addresses of this mapping alone, in which the file is mapped: unmapped together.
    room: MmapRaw,
    at: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of a file, whole pages.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Mapping> {
        assert!(len > 0 && len.is_multiple_of(PAGE as usize), "whole pages are mapped");
        let room = MmapOptions::new().len(len + LARGE).no_reserve_swap().map_anon()?;
        let room = MmapRaw::from(room);
        let start = room.as_mut_ptr();
        let at = start.addr().next_multiple_of(LARGE) - start.addr();
        assert!(at + len <= room.len(), "there is room for any alignment");
        let may = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let file = file.as_raw_fd();
        // SAFETY: `len` bytes from `at` on are in `room`, whose pages nothing refers to: they may be replaced.
        let mapped = unsafe { libc::mmap(start.add(at).cast(), len, may, flags, file, 0) };
        if mapped == libc::MAP_FAILED {
            let why = io::Error::last_os_error();
            // The addresses may be free already, and something else's by now.
            std::mem::forget(room);
            return Err(why);
        }
        Ok(Mapping { room, at, len })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: `at` is inside the room.
        let start = unsafe { self.room.as_mut_ptr().add(self.at) };
        NonNull::new(start).expect("a mapping is never at address zero")
    }

    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes all pages that are not there, so that a shortage shows now.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.room.advise_range(Advice::PopulateWrite, self.at, self.len)
    }

    /// Has the system use large pages for as much as it has some for. Call it before anything pins the pages.
    pub(crate) fn enlarge(&self) {
        let whole = self.len / LARGE * LARGE;
        for at in (0..whole).step_by(LARGE) {
            // A range without any page is refused.
            let first = self.room.advise_range(Advice::PopulateWrite, self.at + at, PAGE as usize);
            if first.is_err() {
                return;
            }
        }
        if whole > 0 {
            // SAFETY: the bytes are in this mapping, and the call changes none of them. Where it fails, pages stay small.
            unsafe { libc::madvise(self.start().as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn file(bytes: usize) -> File {
        let file = File::from(memfd_create(c"test", MFdFlags::empty()).expect("memfd"));
        file.set_len(bytes as u64).expect("room");
        file
    }

    /// Returns how many bytes of a mapping are on large pages, as the system says.
    fn large_bytes(mapping: &Mapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let begins = format!("{:x}-", mapping.start().as_ptr().addr());
        let lines = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let kib = lines.filter_map(|line| line.strip_prefix("ShmemPmdMapped:")).next();
        let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")).expect("a count");
        kib.parse::<usize>().expect("a number") << 10
    }

    #[test]
    fn mappings_of_one_file_share_its_bytes_and_begin_at_a_large_page() {
        let bytes = 2 * LARGE + PAGE as usize;
        let file = file(bytes);
        let [one, other] = [(); 2].map(|()| Mapping::new(&file, bytes).expect("mapped"));
        assert!([&one, &other].iter().all(|map| map.start().addr().get().is_multiple_of(LARGE)));
        let last = |map: &Mapping| map.start().as_ptr().wrapping_add(map.len() - 1);
        // SAFETY: the last byte of a mapping that is there, seen by this thread alone.
        unsafe { last(&one).write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { last(&other).read() }, 7);
    }

    #[test]
    fn enlarged_memory_keeps_its_bytes_and_is_large_for_the_other_side_too() {
        let file = file(2 * LARGE);
        let mapping = Mapping::new(&file, 2 * LARGE).expect("mapped");
        // SAFETY: the mapping's bytes, seen by this thread alone.
        unsafe { mapping.start().as_ptr().write_bytes(9, 2 * LARGE) };
        assert_eq!(large_bytes(&mapping), 0, "memory files have small pages");
        mapping.enlarge();
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.start().as_ptr(), 2 * LARGE) };
        assert!(bytes.iter().all(|byte| *byte == 9));
        // The system may lack large pages, or the kernel the call.
        if large_bytes(&mapping) == 2 * LARGE {
            let other = Mapping::new(&file, 2 * LARGE).expect("mapped");
            other.populate().expect("it is there");
            assert_eq!(large_bytes(&other), 2 * LARGE);
        }
    }

    #[test]
    fn a_mapping_of_few_pages_stays_as_it_is() {
        let file = file(PAGE as usize);
        let mapping = Mapping::new(&file, PAGE as usize).expect("mapped");
        mapping.enlarge();
        mapping.populate().expect("there is memory");
        assert_eq!((large_bytes(&mapping), mapping.len()), (0, 4096));
    }
}
