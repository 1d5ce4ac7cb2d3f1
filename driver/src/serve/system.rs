//! What the server asks of the system that the standard library has no call for.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Files that one message may bring (`max_msg_fds`).
pub(super) const FILES_MAX: usize = 64;

/// Where memory files live: `memfd_create` and `/dev/shm`, or huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Waits until a descriptor can be read, or written where its flag says so, but not longer than
/// `at_most`; false where the time passed. A signal ends it early.
pub(super) fn wait(on: &[(BorrowedFd<'_>, bool)], at_most: Duration) -> bool {
    let events = |for_writing| if for_writing { PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut polls: Vec<PollFd<'_>> =
        on.iter().map(|(fd, for_writing)| PollFd::new(*fd, events(*for_writing))).collect();
    // What became ready, or why the call failed, is found out by whoever reads next.
    ppoll(&mut polls, Some(TimeSpec::from_duration(at_most)), None) != Ok(0)
}

/// Receives at most `into.len()` bytes and the files that come with them.
pub(super) fn receive(
    stream: &UnixStream,
    into: &mut [u8],
    files: &mut Vec<File>,
) -> io::Result<usize> {
    let mut fds = [0; FILES_MAX];
    let mut parts = [libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() }];
    // SAFETY: the one part is the caller's slice, which any bytes may be written to.
    let received = unsafe { stream.recv_with_fds(&mut parts, &mut fds) };
    let (byte_count, file_count) = received.map_err(io::Error::from)?;
    for fd in &fds[..file_count] {
        // SAFETY: the kernel just made it for us; nobody else knows it.
        files.push(unsafe { File::from_raw_fd(*fd) });
    }
    Ok(byte_count)
}

/// Whether `file` is memory: no other process's file system can fail or stall an access to it.
pub(super) fn is_memory(file: &File) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the structure is ours and as large as the call expects.
    if unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: all-zero is a valid value, and the call has filled it in.
    let kind = unsafe { about.assume_init() }.f_type as u64;
    matches!(kind & 0xffff_ffff, TMPFS_MAGIC | HUGETLBFS_MAGIC)
}

/// Seals `file` against being made shorter, which would turn our next access into SIGBUS; false
/// where it is not sealed and may not be.
pub(super) fn seal_length(file: &File) -> bool {
    // SAFETY: integer operations on an open descriptor.
    unsafe {
        let seals = libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS);
        seals >= 0
            && (seals & libc::F_SEAL_SHRINK != 0
                || libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0)
    }
}

/// Makes writes to `file` fail where they would wait.
pub(super) fn set_nonblocking(file: &File) -> io::Result<()> {
    // SAFETY: integer operations on an open descriptor; the results are checked.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        flags >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A memory file that nobody has sealed, or that nobody may seal.
#[cfg(test)]
pub(super) fn unsealed(len: u64, may_be_sealed: bool) -> File {
    let flags = if may_be_sealed { libc::MFD_ALLOW_SEALING } else { 0 };
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: a fresh descriptor that nobody else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len).expect("room");
    file
}

/// An eventfd that waits when it is full, and a second descriptor of it.
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

    #[test]
    fn memory_files_are_told_from_others() {
        let memory = unsealed(4096, true);
        assert!(is_memory(&memory) && seal_length(&memory));
        assert!(memory.set_len(0).is_err(), "sealed");
        let stubborn = unsealed(4096, false);
        assert!(is_memory(&stubborn) && !seal_length(&stubborn));
        let other = File::open("/proc/self/status").expect("a file");
        assert!(!is_memory(&other) && !seal_length(&other));
        set_nonblocking(&other).expect("any descriptor");
    }
}
