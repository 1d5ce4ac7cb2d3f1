//! The state that a client's thread and the thread that takes its requests share.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use adit_kvstore::store::DefinedLayout;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Why a session ends.
pub(super) enum End {
    /// The client left, or the server ends.
    Left(String),
    /// The client broke a rule.
    Expelled(String),
    /// There was no place for the client.
    TurnedAway,
}

/// The state of one client that both threads share.
pub(super) struct Link {
    /// The client's layouts; their numbers begin at 1.
    pub(super) layouts: Mutex<Vec<DefinedLayout>>,
    /// No more requests are taken.
    pub(super) is_over: AtomicBool,
    /// Why no more requests are taken while the client is connected.
    pub(super) fault: Mutex<Option<End>>,
    /// Rung for a fault.
    pub(super) bell: EventFd,
}

impl Link {
    /// # Errors
    /// The system's error.
    pub(super) fn new() -> io::Result<Arc<Link>> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let (layouts, is_over, fault) = Default::default();
        Ok(Arc::new(Link { layouts, is_over, fault, bell }))
    }

    /// Makes the client's thread end with `end`, unless it has a reason already.
    pub(super) fn end_with(&self, end: End) {
        self.is_over.store(true, Ordering::Release);
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        // A full counter has rung already.
        let _ = self.bell.write(1);
    }
}
