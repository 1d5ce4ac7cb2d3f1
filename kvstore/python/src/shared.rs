//! Memory that a client shares with its server, as Python's objects have it.
//!
//! They refer to the memory by its address and keep a [`Memory`], so the mapping stays in place until the last of them
//! is gone, also when the server is lost. No other server can map it: then it is memory like any other.

use std::sync::Arc;

use adit_kvshare::Span;
use pyo3::prelude::*;

use crate::forked::Ours;
use crate::lending::Lending;

/// Keeps shared memory for the Python objects that refer to it.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Memory {
    _held: Ours<Arc<Lending<Span>>>,
}

impl Memory {
    pub(crate) fn new(held: Arc<Lending<Span>>) -> Memory {
        Memory { _held: Ours::new(held) }
    }
}
