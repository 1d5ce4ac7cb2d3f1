//! Receives a bus's events about its device, by eventfd.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use vmm_sys_util::eventfd::EventFd;

use super::BusEvent;
use crate::error::{Error, Result};

const FLAGS: i32 = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;

/// Events of the function outside its queues.
///
/// Without a listener for removal requests, an unplug waits until the device file happens to be closed; with
/// one, it waits only for the driver to close the device.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// `None` if the device cannot report errors.
    pub(super) errors: Option<EventFd>,
    /// `None` if the device has no removal requests.
    pub(super) requests: Option<EventFd>,
}

impl Notices {
    /// Returns one event since the last call. Requests go first: they want an answer.
    pub(super) fn take(&self) -> Option<BusEvent> {
        let came = |eventfd: &Option<EventFd>| eventfd.as_ref().is_some_and(|fd| fd.read().is_ok());
        if came(&self.requests) {
            Some(BusEvent::RemovalRequested)
        } else if came(&self.errors) {
            Some(BusEvent::Error)
        } else {
            None
        }
    }
}

/// Creates an eventfd that never blocks and is not inherited.
pub(super) fn new_eventfd(device: &str) -> Result<EventFd> {
    EventFd::new(FLAGS).map_err(|why| {
        let fix = "raise the limit of open files (ulimit -n)";
        Error::refused(device, "cannot make an eventfd", why, fix)
    })
}

pub(super) fn into_owned(eventfd: EventFd) -> OwnedFd {
    // SAFETY: the descriptor was just given up by its only owner.
    unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_taken_once_each_and_requests_first() {
        let eventfd = || new_eventfd("test").expect("eventfd");
        let notices = Notices { errors: Some(eventfd()), requests: Some(eventfd()) };
        assert_eq!(notices.take(), None);
        for fd in [&notices.errors, &notices.requests] {
            fd.as_ref().expect("present").write(1).expect("write");
        }
        assert_eq!(notices.take(), Some(BusEvent::RemovalRequested));
        assert_eq!(notices.take(), Some(BusEvent::Error));
        assert_eq!(notices.take(), None);
        assert_eq!(Notices::default().take(), None);
    }
}
