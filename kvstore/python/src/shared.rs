//! Memory that a client shares with its server, and which runs of it requests have.
//!
//! A request gets a run for itself alone, as with `memory`. Python's objects refer to the memory by its address and keep
//! a [`Memory`], so the mapping stays in place until the last of them is gone, also when the server is lost.

use std::sync::{Arc, Mutex, PoisonError};

use adit_kvshare::{Pieces, Span};
use pyo3::prelude::*;

use crate::forked::Ours;

/// A piece of shared memory, and its runs that no request has.
pub(crate) struct Held {
    start: usize,
    len: usize,
    idle: Mutex<Pieces<Span>>,
    /// No bytes of it. It keeps the mapping when a lost server does not give the runs back.
    _anchor: Span,
}

/// A run's place, to which it returns.
pub(crate) struct Loan {
    of: Arc<Held>,
    offset: usize,
}

impl Held {
    /// Wraps all of a piece of memory.
    pub(crate) fn new(mut all: Span) -> Arc<Held> {
        let (start, len) = (all.as_ptr().addr(), all.len());
        assert!(len > 0 && all.offset() == 0, "it is a whole region");
        let anchor = all.split_off(len);
        let idle = Mutex::new(Pieces::new(all));
        Arc::new(Held { start, len, idle, _anchor: anchor })
    }

    /// Returns its address.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Takes the `len` bytes at an address, unless they lie elsewhere or a request has some of them.
    pub(crate) fn take(self: &Arc<Held>, address: usize, len: usize) -> Option<(Span, Loan)> {
        let offset = address.checked_sub(self.start).filter(|offset| *offset < self.len)?;
        let run = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take(offset, len)?;
        Some((run, Loan { of: Arc::clone(self), offset }))
    }
}

impl Loan {
    /// Takes back what a request returned. Nothing comes back while a device may still write the run, which is not lent
    /// again then.
    pub(crate) fn give(self, run: Option<Span>) {
        let Some(run) = run else { return };
        self.of.idle.lock().unwrap_or_else(PoisonError::into_inner).give(self.offset, run);
    }
}

/// Keeps shared memory for the Python objects that refer to it.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Memory {
    held: Ours<Mutex<Option<Arc<Held>>>>,
}

impl Memory {
    pub(crate) fn new(held: Arc<Held>) -> Memory {
        Memory { held: Ours::new(Mutex::new(Some(held))) }
    }
}

impl Drop for Memory {
    /// Asks the server to let go of the memory, which other threads need not wait for.
    fn drop(&mut self) {
        let Some(held) = self.held.get() else { return };
        let held = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = Python::try_attach(|py| py.detach(|| drop(held)));
    }
}
