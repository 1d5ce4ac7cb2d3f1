//! Signals eventfds without ever waiting for a client.
//!
//! write(2) blocks on an eventfd with a full counter unless O_NONBLOCK is set, and the client shares both flag and
//! counter and can change them at any time. So nothing is written. Instead, a read of zero bytes from `/dev/null` is
//! submitted to the kernel's asynchronous I/O (io_submit(2)), with the eventfd to be signalled at completion, which is
//! immediate. The kernel itself adds to the counter, and leaves a full one full. It also refuses files that are not
//! eventfds.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};

/// Completions that may be pending; the kernel rounds up.
const ROOM: libc::c_long = 64;
/// Completions taken per call, and words in each (`struct io_event` of linux/aio_abi.h).
const TAKEN: usize = 256;
const COMPLETION_WORDS: usize = 4;
/// `IOCB_CMD_PREAD` and `IOCB_FLAG_RESFD` (linux/aio_abi.h).
const READ: u16 = 0;
const SIGNAL_EVENTFD: u32 = 1 << 0;

/// A context of the kernel's asynchronous I/O, and the file it reads.
#[derive(Debug)]
pub struct Signaller {
    context: libc::c_ulong,
    null: File,
}

impl Signaller {
    /// Creates a context.
    ///
    /// # Errors
    /// The system's error; contexts are limited (`fs.aio-max-nr`).
    pub fn new() -> io::Result<Signaller> {
        let null = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: writes the context's name, for which there is room.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, ROOM, &raw mut context) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Signaller { context, null }) }
    }

    /// Adds one to the counter of `eventfd`; a full counter stays full.
    ///
    /// # Errors
    /// The system's error, for example if the file is not an eventfd.
    pub fn signal(&self, eventfd: &File) -> io::Result<()> {
        match self.submit(eventfd.as_raw_fd()) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                self.take_completions();
                self.submit(eventfd.as_raw_fd())
            }
            outcome => outcome,
        }
    }

    fn submit(&self, eventfd: RawFd) -> io::Result<()> {
        // SAFETY: all zeros are a valid request.
        let mut request: libc::iocb = unsafe { MaybeUninit::zeroed().assume_init() };
        request.aio_lio_opcode = READ;
        request.aio_fildes = self.null.as_raw_fd() as u32;
        request.aio_flags = SIGNAL_EVENTFD;
        request.aio_resfd = eventfd as u32;
        let requests = [&raw mut request];
        // SAFETY: one request, copied by the call, that reads nothing into no memory.
        let done =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, requests.as_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes room for further completions. They carry no information, as all are alike.
    fn take_completions(&self) {
        let mut taken = [[0u64; COMPLETION_WORDS]; TAKEN];
        let (events, at_once) = (taken.as_mut_ptr(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        let (least, most) = (0, TAKEN as libc::c_long);
        // SAFETY: there is room for as many completions as are asked for.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                least,
                most,
                events,
                &raw const at_once,
            )
        };
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: the context is ours alone; nothing is in flight, since each request ended in its call.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::system::eventfd;

    #[test]
    fn every_signal_is_counted_and_a_full_counter_stays_full() {
        let signaller = Signaller::new().expect("a context");
        let (ours, theirs) = eventfd();
        // More than the context has room for.
        for _ in 0..3000 {
            signaller.signal(&theirs).expect("signalled");
        }
        assert_eq!(ours.read().expect("a counter"), 3000);
        ours.write(u64::MAX - 1).expect("full, and made to wait");
        for _ in 0..3 {
            signaller.signal(&theirs).expect("does not wait");
        }
        assert!(ours.read().expect("a counter") >= u64::MAX - 1);
    }

    #[test]
    fn other_files_are_no_eventfds() {
        let signaller = Signaller::new().expect("a context");
        let null = File::open("/dev/null").expect("a file");
        let why = signaller.signal(&null).expect_err("no eventfd");
        assert_eq!(why.raw_os_error(), Some(libc::EINVAL));
    }
}
