//! The class `Region`: the caller's memory, registered with a store's devices.

use std::sync::Arc;

use adit_driver::Buffer;
use pyo3::prelude::*;

use crate::errors;
use crate::forked::Ours;
use crate::lending::Lending;
use crate::scope::{self, Scope};

/// Registered memory, returned by ``Store.register``.
///
/// Buffers in it are read and written in place. It stays registered until it is closed.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct Region {
    memory: Ours<Arc<Lending<Buffer>>>,
    bytes: usize,
}

impl Region {
    pub(crate) fn new(py: Python<'_>, memory: Arc<Lending<Buffer>>) -> PyResult<Py<Region>> {
        let bytes = memory.len();
        Scope::of(py, Region { memory: Ours::new(memory), bytes }, "close")
    }
}

#[pymethods]
impl Region {
    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// Return the memory to its owner.
    ///
    /// Later requests in this memory are copied. Closing twice does nothing.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If a request still uses some of the memory. Nothing changes then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let memory = self.memory.here(py)?;
        let runs = memory.close().map_err(|in_use| {
            let text = format!(
                "requests use {in_use} bytes of the registered memory: wait for them, then close it"
            );
            errors::named(py, "BadBufferError", &text)
        })?;
        // Unmapping may wait for the kernel.
        py.detach(|| drop(runs));
        Ok(())
    }

    fn __repr__(&self) -> String {
        let is_open = self.memory.get().is_some_and(|memory| memory.is_open());
        format!("Region({} bytes, {})", self.bytes, scope::state(is_open))
    }
}
