//! Memory that a client shares with its server, as Python's objects have it.
//!
//! They refer to the memory by its address and keep a [`Memory`], so the mapping stays in place until the last of them
//! is gone, also when the server is lost. The next server is given what no request had then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_kvshare::{Client, Pieces, Result, Span};
use pyo3::prelude::*;

use crate::forked::Ours;
use crate::lending::Lending;

/// A piece of shared memory.
pub(crate) struct Held {
    start: usize,
    /// Its idle runs, and the era of the link that shares them.
    runs: Mutex<(u64, Arc<Lending<Span>>)>,
    /// None of its bytes: keeps the mapping when a lost server does not give its runs back.
    _anchor: Span,
}

impl Held {
    /// Wraps all of a piece of memory of an era's link.
    pub(crate) fn new(era: u64, mut all: Span) -> Arc<Held> {
        let (start, len) = (all.as_ptr().addr(), all.len());
        assert!(len > 0 && all.offset() == 0, "it is a whole region");
        let _anchor = all.split_off(len);
        Arc::new(Held { start, runs: Mutex::new((era, Lending::new(start, all))), _anchor })
    }

    fn runs(&self) -> MutexGuard<'_, (u64, Arc<Lending<Span>>)> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its address.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Returns what the link of an era lends, if it shares the memory.
    pub(crate) fn lending(&self, era: u64) -> Option<Arc<Lending<Span>>> {
        let runs = self.runs();
        (runs.0 == era).then(|| Arc::clone(&runs.1))
    }

    /// Shares what no request has with the server of a new era. What a request has stays out of it: a device of the lost
    /// server may still write it.
    ///
    /// # Errors
    /// As [`Client::adopt`]. It can be tried again.
    pub(crate) fn renew(&self, client: &Client, era: u64) -> Result<()> {
        let (old, lending) = self.runs().clone();
        let Some(idle) = lending.end() else { return Ok(()) };
        let bytes = idle.bytes();
        let (offsets, spans): (Vec<_>, Vec<_>) = idle.into_idle().unzip();
        let (era, spans, done) = match client.adopt(spans) {
            Ok(spans) => (era, spans, Ok(())),
            Err((why, spans)) => (old, spans, Err(*why)),
        };
        let idle = Pieces::of(bytes, offsets.into_iter().zip(spans));
        *self.runs() = (era, Lending::of(self.start, idle));
        done
    }
}

/// Keeps shared memory for the Python objects that refer to it.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Memory {
    _held: Ours<Arc<Held>>,
}

impl Memory {
    pub(crate) fn new(held: Arc<Held>) -> Memory {
        Memory { _held: Ours::new(held) }
    }
}
