//! Memory files mapped on large pages.
//!
//! A memory file has scattered pages of 4 KiB unless the system is set up otherwise. A device then gets a segment for
//! each of them, and copies and checksums miss the TLB. Pages of 2 MiB can be requested afterwards (madvise(2),
//! `MADV_COLLAPSE`, Linux 6.1), without a privilege, a setting or a hugetlbfs, and can be mapped whole where address
//! and offset agree modulo 2 MiB.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

/// Bytes of an ordinary page, of which regions are made.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a large page.
pub(crate) const LARGE: usize = 2 << 20;

/// How often to look for free addresses that an allocator on another thread takes before they are used.
const TRIES: u32 = 16;

/// Held while addresses are found and mapped: without it, threads that map at the same time find the same ones.
static PLACING: Mutex<()> = Mutex::new(());

/// The first bytes of a file, readable and writable, at a multiple of [`LARGE`].
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address and a length, and unmapping works from any thread. Its bytes are reached through pointers
// only, and each place that uses one says why it may.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing of it changes while it is shared.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file, whole pages.
    ///
    /// # Errors
    /// The system's error, after which nothing stays mapped.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Mapping> {
        assert!(len > 0 && len.is_multiple_of(PAGE as usize), "whole pages are mapped");
        let may = libc::PROT_READ | libc::PROT_WRITE;
        // It replaces nothing. A call that replaced a mapping of ours and failed would leave some of it or a hole,
        // which another thread may have filled: nothing could unmap that safely.
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        let _placing = PLACING.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TRIES {
            match map(free_addresses(len)?, len, may, flags, file.as_raw_fd()) {
                Ok(start) => return Ok(Mapping { start, len }),
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
                Err(why) => return Err(why),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes all missing pages, so that a shortage shows now.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(0, self.len, libc::MADV_POPULATE_WRITE)
    }

    /// Requests large pages, as far as the system has some. Call it before the pages are pinned.
    pub(crate) fn enlarge(&self) {
        let whole = self.len / LARGE * LARGE;
        for at in (0..whole).step_by(LARGE) {
            // A range without any page is refused.
            if self.advise(at, PAGE as usize, libc::MADV_POPULATE_WRITE).is_err() {
                return;
            }
        }
        if whole > 0 {
            // Where it fails, pages stay small.
            let _ = self.advise(0, whole, libc::MADV_COLLAPSE);
        }
    }

    /// Gives the system advice that changes no byte.
    fn advise(&self, at: usize, len: usize, advice: i32) -> io::Result<()> {
        assert!(
            [libc::MADV_POPULATE_WRITE, libc::MADV_COLLAPSE].contains(&advice),
            "no byte changes"
        );
        assert!(at + len <= self.len, "the range is in the mapping");
        // SAFETY: the range is in this mapping, and this advice changes none of its bytes.
        match unsafe { libc::madvise(self.start.as_ptr().add(at).cast(), len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's alone, and it ends here.
        let status = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        assert_eq!(status, 0, "a whole mapping can be unmapped");
    }
}

/// Returns a multiple of [`LARGE`] at which `len` bytes of addresses are free, unless another thread takes them.
fn free_addresses(len: usize) -> io::Result<*mut u8> {
    let room = len.checked_add(LARGE).ok_or(io::ErrorKind::InvalidInput)?;
    // Memory that cannot be touched counts towards no limit of the system's on what it promises.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = map(ptr::null_mut(), room, libc::PROT_NONE, flags, -1)?;
    drop(Mapping { start, len: room });
    let at = start.as_ptr().addr().next_multiple_of(LARGE);
    Ok(start.as_ptr().with_addr(at))
}

/// Maps a file from its beginning, or no file for -1, without replacing another mapping.
fn map(at: *mut u8, len: usize, may: i32, flags: i32, file: RawFd) -> io::Result<NonNull<u8>> {
    assert_eq!(flags & libc::MAP_FIXED, 0, "no other mapping is replaced");
    // SAFETY: the addresses are new: without `MAP_FIXED` the system maps nothing over another mapping.
    let start = unsafe { libc::mmap(at.cast(), len, may, flags, file, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("a mapping is never at address zero"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
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

    /// Each looks for free addresses where the others do.
    #[test]
    fn threads_that_map_at_the_same_time_all_find_addresses() {
        let file = file(LARGE);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        Mapping::new(&file, LARGE).expect("mapped");
                    }
                });
            }
        });
    }

    /// Returns the bytes of addresses that this process has mapped.
    fn addresses() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = pages.split(' ').next().and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("a count") * PAGE as usize
    }

    #[test]
    fn no_addresses_stay_taken_by_a_mapping_that_fails_or_ends() {
        let bytes = 1 << 30;
        let flags = MFdFlags::MFD_ALLOW_SEALING;
        let [sealed, opened] = [(); 2].map(|()| {
            let file = File::from(memfd_create(c"test", flags).expect("memfd"));
            file.set_len(bytes as u64).expect("room");
            file
        });
        fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).expect("sealed");
        let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let read_only = File::open(path).expect("opened again");
        let before = addresses();
        for _ in 0..50 {
            for (file, code) in [(&sealed, libc::EPERM), (&read_only, libc::EACCES)] {
                let why = Mapping::new(file, bytes).expect_err("not writable");
                assert_eq!(why.raw_os_error(), Some(code));
            }
        }
        for _ in 0..50 {
            drop(Mapping::new(&opened, bytes).expect("mapped"));
        }
        // Other tests map some, too.
        assert!(addresses() < before + 25 * bytes, "addresses are given back");
    }
}
