//! Files and block devices by raw system calls, for the kernel paths' needs beyond the standard library.
//!
//! Transfers name memory by pointer, because it is a request's buffer, of which no slice may exist while a request is
//! in flight.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use nix::fcntl::FallocateFlags;

/// `BLKGETSIZE64`: `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// `BLKDISCARD`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Maximum pieces of memory in one call (`IOV_MAX`).
pub(crate) const PIECES_MAX: usize = 1024;

/// Pieces of memory for one scattered transfer, allocated once.
pub(crate) struct Pieces(Vec<libc::iovec>);

// SAFETY: the pointers are only used through unsafe functions, whose callers say why they may.
unsafe impl Send for Pieces {}

impl Pieces {
    pub(crate) fn with_room(count: usize) -> Pieces {
        Pieces(Vec::with_capacity(count))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn push(&mut self, at: NonNull<u8>, len: u64) {
        self.0.push(libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len as usize });
    }

    /// Returns the pieces from `index` on. They do not move until the room is used up.
    pub(crate) fn from(&self, index: usize) -> &[libc::iovec] {
        &self.0[index..]
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({})", self.len())
    }
}

/// Reads from `offset` of `file` into `pieces`; returns the number of bytes read.
///
/// # Safety
/// The pieces are writable memory that has no other user during the call.
///
/// # Errors
/// The system's error.
pub(crate) unsafe fn read_at(file: &File, pieces: &Pieces, offset: u64) -> io::Result<u64> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    repeated(|| match pieces.0.as_slice() {
        // SAFETY: passed on to our caller.
        [one] => unsafe { libc::pread(fd, one.iov_base, one.iov_len, at) },
        // SAFETY: passed on to our caller; the list itself is a vector of ours.
        many => unsafe { libc::preadv(fd, many.as_ptr(), many.len() as i32, at) },
    })
}

/// Writes `pieces` at `offset` of `file`, with the flags of `pwritev2(2)`; returns the number of bytes written.
///
/// # Safety
/// The pieces are readable memory that has no other writer during the call.
///
/// # Errors
/// The system's error.
pub(crate) unsafe fn write_at(
    file: &File,
    pieces: &Pieces,
    offset: u64,
    flags: i32,
) -> io::Result<u64> {
    let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
    repeated(|| match pieces.0.as_slice() {
        // SAFETY: passed on to our caller.
        [one] if flags == 0 => unsafe { libc::pwrite(fd, one.iov_base, one.iov_len, at) },
        // SAFETY: passed on to our caller; the list itself is a vector of ours.
        many => unsafe { libc::pwritev2(fd, many.as_ptr(), many.len() as i32, at, flags) },
    })
}

/// Repeats the call while signals interrupt it.
fn repeated(mut call: impl FnMut() -> isize) -> io::Result<u64> {
    loop {
        match u64::try_from(call()) {
            Ok(moved) => return Ok(moved),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Returns the failure of a write-back of the file's pages since it was opened or last asked.
///
/// # Errors
/// That failure.
pub(crate) fn check_writeback(file: &File) -> io::Result<()> {
    // No page lies there, so that there is none to wait for: only failures are left to report (mm/filemap.c,
    // `file_check_and_advance_wb_err`).
    const BEHIND_ALL_FILES: i64 = 1 << 62;
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: the call takes numbers.
    checked(unsafe { libc::sync_file_range(file.as_raw_fd(), BEHIND_ALL_FILES, 1, wait) })
}

/// Returns the size of a block device in bytes; 0 after its removal.
///
/// # Errors
/// The system's error, for example if the file is not a block device.
pub(crate) fn block_bytes(file: &File) -> io::Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: the request writes 8 bytes to its argument, which has them.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

/// Returns the size of a block device's logical block in bytes.
///
/// # Errors
/// As [`block_bytes`].
pub(crate) fn block_lba_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an int to its argument, which is one.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) })?;
    u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Tells a block device that a range of bytes is unused.
///
/// # Errors
/// The system's error.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the request reads 16 bytes from its argument, which has them.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, &raw const range) })
}

/// Reserves space in the file system for `len` bytes from `offset` on.
///
/// # Errors
/// The system's error; not every file system supports it.
pub(crate) fn set_aside(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (offset as libc::off_t, len as libc::off_t);
    Ok(nix::fcntl::fallocate(file, FallocateFlags::empty(), offset, len)?)
}

/// Returns the offset alignment of direct transfers of `file`, if the system reports it.
pub(crate) fn direct_offset_alignment(file: &File) -> Option<u32> {
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the path is an empty literal, and `about` has room for the answer.
    let result = unsafe {
        let ask = libc::STATX_DIOALIGN;
        libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, ask, about.as_mut_ptr())
    };
    // SAFETY: all zeros are a valid value, and the call wrote valid ones.
    let about = unsafe { about.assume_init() };
    let told = result == 0 && about.stx_mask & libc::STATX_DIOALIGN != 0;
    Some(about.stx_dio_offset_align).filter(|align| told && *align > 0)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
