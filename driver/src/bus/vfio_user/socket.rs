//! Unix socket functions missing from the standard library: connecting within a deadline, and detecting a
//! hang-up without reading.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects to the socket at `path`. Each read and write of the stream has the same deadline.
pub(crate) fn connect(path: &Path, deadline: Duration) -> io::Result<UnixStream> {
    let (address, len) = address(path)?;
    // SAFETY: takes no memory; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor without another owner.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // The write deadline also bounds a connect to a server whose backlog is full.
    stream.set_write_timeout(Some(deadline))?;
    stream.set_read_timeout(Some(deadline))?;
    // SAFETY: `address` lives here and is at least `len` bytes long.
    let result = unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(stream) }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // One byte must stay zero to end the path.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        let why = "a socket's path has at most 107 bytes and no zero byte";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Returns whether the other end is gone, without waiting or reading.
pub(crate) fn is_hung_up(stream: &UnixStream) -> bool {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one structure, alive for the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_up_is_noticed() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        assert!(!is_hung_up(&ours));
        drop(theirs);
        assert!(is_hung_up(&ours));
    }

    #[test]
    fn a_path_too_long_or_absent_is_an_error() {
        let deadline = Duration::from_secs(1);
        let long = "x".repeat(108);
        let error = connect(Path::new(&long), deadline).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = connect(Path::new("/nonexistent/socket"), deadline).expect_err("absent");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
