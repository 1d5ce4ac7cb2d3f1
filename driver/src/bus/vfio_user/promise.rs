//! The promise without which no vfio-user server is connected to.
//!
//! There is no IOMMU between a server and the memory that it is handed: it maps the files and may write any byte at any
//! time, also while Rust code has a reference to it, as a [`Buffer`](crate::Buffer) lends. No check here can see that, so
//! a program promises it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

static IS_PROMISED: AtomicBool = AtomicBool::new(false);

/// Lets this process connect to vfio-user servers, whose memory accesses the caller vouches for. It holds for all that are
/// opened from now on, by targets or by [`VfioUser`](super::VfioUser).
///
/// Without the promise, opening is refused:
///
/// ```
/// use adit_driver::{Controller, ControllerOptions};
///
/// let target = "vfio-user:/run/x/cntrl".parse()?;
/// let refused = Controller::open(&target, &ControllerOptions::default()).expect_err("no promise");
/// assert!(refused.to_string().contains("adit_driver::bus::vfio_user::trust_servers"));
/// # Ok::<(), adit_driver::Error>(())
/// ```
///
/// # Safety
/// Each server that this process connects to reads and writes the memory that it is handed only as NVMe lets a controller:
/// a command's data from its doorbell on until its completion, and the queues and lists. An idle buffer's bytes stay as
/// they are. What a server says in messages and completions is not relied on.
pub unsafe fn trust_servers() {
    IS_PROMISED.store(true, Ordering::Release);
}

/// Checks that the promise was given.
///
/// # Errors
/// [`Error::Refused`] if it was not.
pub(super) fn check(name: &str) -> Result<()> {
    if IS_PROMISED.load(Ordering::Acquire) {
        return Ok(());
    }
    let why = "its server could write this program's buffers while Rust refers to their bytes, and the program has not \
               promised that it does not";
    let fix = "call `unsafe { adit_driver::bus::vfio_user::trust_servers() }` before, for servers that access memory only \
               as commands in progress let them";
    Err(Error::refused(name, "connect to it", why, fix))
}
