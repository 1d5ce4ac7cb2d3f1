//! Event file descriptors: how an interrupt reaches a waiting thread.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// A new eventfd, non-blocking, with count zero.
///
/// # Errors
/// When the process has no descriptors left.
pub fn eventfd() -> io::Result<File> {
    // SAFETY: the call takes no pointers; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}
