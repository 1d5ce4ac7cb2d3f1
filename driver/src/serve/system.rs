//! System calls of the server that the standard library lacks.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Files that one message may carry (`max_msg_fds`).
pub(super) const FILES_MAX: usize = 64;

/// Waits until a descriptor is readable, or writable where its flag is set, for at most `at_most`; returns false on
/// timeout. A signal ends the wait early.
pub(super) fn wait(on: &[(BorrowedFd<'_>, bool)], at_most: Duration) -> bool {
    let events = |for_writing| if for_writing { PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut polls: Vec<PollFd<'_>> =
        on.iter().map(|(fd, for_writing)| PollFd::new(*fd, events(*for_writing))).collect();
    // The next read finds out what is ready, or why the call failed.
    ppoll(&mut polls, Some(TimeSpec::from_duration(at_most)), None) != Ok(0)
}

/// Files that the kernel delivers at once (`SCM_MAX_FD`). With room for fewer it would close the rest itself, in this
/// thread.
const FILES_SENT_MAX: usize = 253;

/// Receives at most `into.len()` bytes and their attached files.
///
/// # Errors
/// The system's error.
pub fn receive(stream: &UnixStream, into: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    let mut fds = [0; FILES_SENT_MAX];
    let mut parts = [libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() }];
    // SAFETY: the one part is the caller's slice, which any bytes may be written to.
    let received = unsafe { stream.recv_with_fds(&mut parts, &mut fds) };
    let (byte_count, file_count) = received.map_err(io::Error::from)?;
    for fd in &fds[..file_count] {
        // SAFETY: the kernel just made it for us; it has no other owner.
        files.push(unsafe { File::from_raw_fd(*fd) });
    }
    Ok(byte_count)
}

/// Returns whether `file` is an eventfd. The kernel names only eventfds so; the name of a file with a path starts with
/// a slash.
pub fn is_eventfd(file: &File) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Makes a blocking eventfd and a second descriptor of it.
#[cfg(test)]
pub(super) fn eventfd() -> (vmm_sys_util::eventfd::EventFd, File) {
    use std::os::fd::IntoRawFd;
    let ours = vmm_sys_util::eventfd::EventFd::new(0).expect("eventfd");
    let theirs = ours.try_clone().expect("descriptor").into_raw_fd();
    // SAFETY: the descriptor was just given up by its only owner.
    (ours, unsafe { File::from_raw_fd(theirs) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn waiting_ends_with_news_or_in_time() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        let started = Instant::now();
        assert!(!wait(&[(ours.as_fd(), false)], Duration::from_millis(20)));
        assert!(started.elapsed() >= Duration::from_millis(20));
        theirs.write_all(b"x").expect("sent");
        assert!(wait(&[(ours.as_fd(), false)], Duration::from_secs(60)));
        assert!(wait(&[(ours.as_fd(), true)], Duration::from_secs(60)));
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
