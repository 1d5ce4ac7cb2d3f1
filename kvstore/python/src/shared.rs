//! Memory that a client shares with its server, as Python's objects have it.
//!
//! They refer to the memory by its address and keep a [`Memory`], so the mapping stays in place until the last of them
//! is gone, also when the server is lost.

use std::sync::Arc;

use adit_kvshare::Span;
use pyo3::prelude::*;

use crate::forked::Ours;
use crate::lending::Lending;

/// A piece of shared memory, and none of its bytes: an anchor that keeps the mapping when a lost server does not give
/// its runs back.
pub(crate) type Anchored = (Arc<Lending<Span>>, Span);

/// Wraps all of a piece of memory.
pub(crate) fn anchored(mut all: Span) -> Anchored {
    let (start, len) = (all.as_ptr().addr(), all.len());
    assert!(len > 0 && all.offset() == 0, "it is a whole region");
    let anchor = all.split_off(len);
    (Lending::new(start, all), anchor)
}

/// Keeps shared memory for the Python objects that refer to it.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Memory {
    _held: Ours<Anchored>,
}

impl Memory {
    pub(crate) fn new(held: Anchored) -> Memory {
        Memory { _held: Ours::new(held) }
    }
}
