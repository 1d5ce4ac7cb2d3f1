//! Values that belong to the process that made them.
//!
//! A forked child has the parent's memory and files, but none of its threads. It must neither use a store nor drop one,
//! which would unmap memory from devices that the parent still uses.

use std::process;

use pyo3::{PyResult, Python};

use crate::errors;

/// A value that only the process that made it uses and drops. Other processes leak it.
pub(crate) struct Ours<T: Send> {
    value: Option<T>,
    process: u32,
}

impl<T: Send> Ours<T> {
    pub(crate) fn new(value: T) -> Ours<T> {
        Ours { value: Some(value), process: process::id() }
    }

    /// Returns the value in the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == process::id())
    }

    /// Returns the value.
    ///
    /// # Errors
    /// `ForkedError` in another process.
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&T> {
        self.get().ok_or_else(|| errors::forked(py))
    }
}

impl<T: Send> Drop for Ours<T> {
    /// Drops the value detached, because dropping may wait for a drive or a server.
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process != process::id() {
            std::mem::forget(value);
        } else {
            let _ = Python::try_attach(|py| py.detach(|| drop(value)));
        }
    }
}
