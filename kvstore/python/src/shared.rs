//! Memory that a client shares with its server, as Python's objects have it.
//!
//! They refer to the memory by its address and keep a [`Memory`], so the mapping stays in place until the last of them
//! is gone, also when the server is lost. No other server can map it: then it is memory like any other.

use std::sync::Arc;

use adit_kvshare::Span;
use pyo3::prelude::*;

use crate::forked::Ours;
use crate::lending::Lending;

/// A piece of shared memory.
pub(crate) struct Held {
    pub(crate) start: usize,
    /// What no request has.
    pub(crate) lending: Arc<Lending<Span>>,
    /// None of its bytes: keeps the mapping when a lost server does not give its runs back.
    _anchor: Span,
}

impl Held {
    /// Wraps all of a piece of memory.
    pub(crate) fn new(mut all: Span) -> Arc<Held> {
        let (start, len) = (all.as_ptr().addr(), all.len());
        assert!(len > 0 && all.offset() == 0, "it is a whole region");
        let _anchor = all.split_off(len);
        Arc::new(Held { start, lending: Lending::new(start, all), _anchor })
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
