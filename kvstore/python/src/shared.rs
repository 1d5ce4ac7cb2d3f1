//! Memory that a client shares with its server, as Python objects refer to it.
//!
//! They refer to it by address and keep a [`Memory`], so the mapping stays until the last of them is gone, even if the
//! server is lost. No other server can map it, so it is then ordinary memory.

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
