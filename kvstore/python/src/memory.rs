//! Memory of the caller's that was registered with a store's devices, and which runs of it requests have.
//!
//! A request gets a run for itself alone. Memory that another request has is not lent a second time: the store copies
//! instead, so that overlapping requests are slower and never wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use pyo3::prelude::*;

use crate::errors;
use crate::forked::Ours;

/// Registered memory. Its runs that no request has, by their offsets; none once it is closed.
pub(crate) struct Shared {
    start: usize,
    len: usize,
    idle: Ours<Mutex<Option<BTreeMap<usize, Buffer>>>>,
}

/// A run's place, to which it returns.
pub(crate) struct Loan {
    of: Arc<Shared>,
    offset: usize,
}

impl Shared {
    /// Wraps all of the memory at the address `start`.
    pub(crate) fn new(start: usize, buffer: Buffer) -> Arc<Shared> {
        let len = buffer.len();
        let idle = Ours::new(Mutex::new(Some(BTreeMap::from([(0, buffer)]))));
        Arc::new(Shared { start, len, idle })
    }

    fn idle(&self) -> Option<MutexGuard<'_, Option<BTreeMap<usize, Buffer>>>> {
        Some(self.idle.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether it is still registered.
    pub(crate) fn is_open(&self) -> bool {
        self.idle().is_some_and(|idle| idle.is_some())
    }

    /// Returns whether any of the `len` bytes at an address is its.
    pub(crate) fn overlaps(&self, address: usize, len: usize) -> bool {
        address < self.start + self.len && self.start < address.saturating_add(len)
    }

    /// Takes the `len` bytes at an address, unless they lie elsewhere or a request has some of them.
    pub(crate) fn take(self: &Arc<Shared>, address: usize, len: usize) -> Option<(Buffer, Loan)> {
        let offset = address.checked_sub(self.start).filter(|offset| *offset < self.len)?;
        let mut idle = self.idle()?;
        let idle = idle.as_mut()?;
        let (&at, around) = idle.range(..=offset).next_back()?;
        if len == 0 || offset - at > around.len() || around.len() - (offset - at) < len {
            return None;
        }
        let mut before = idle.remove(&at).expect("it was found");
        let mut run = before.split_off(offset - at);
        let behind = run.split_off(len);
        for (at, rest) in [(at, before), (offset + len, behind)] {
            if !rest.is_empty() {
                idle.insert(at, rest);
            }
        }
        Some((run, Loan { of: Arc::clone(self), offset }))
    }

    fn give(&self, offset: usize, run: Buffer) {
        let Some(mut idle) = self.idle() else { return std::mem::forget(run) };
        let Some(idle) = idle.as_mut() else { return };
        let end = offset + run.len();
        let before = idle.range(..offset).next_back().map(|(at, before)| (*at, before.len()));
        let (mut at, mut joined) = (offset, run);
        if let Some((before, _)) = before.filter(|(at, len)| at + len == offset) {
            let mut head = idle.remove(&before).expect("it was found");
            head.join(joined).expect("neighbours of one region join");
            (at, joined) = (before, head);
        }
        if let Some(behind) = idle.remove(&end) {
            joined.join(behind).expect("neighbours of one region join");
        }
        let replaced = idle.insert(at, joined);
        assert!(replaced.is_none(), "no two runs begin at {at}");
    }
}

impl Loan {
    /// Takes back what a request returned: the run as it was lent, or nothing if the store has ended.
    pub(crate) fn give(self, memory: AnyBuffer) {
        match memory {
            AnyBuffer::One(run) => self.of.give(self.offset, run),
            AnyBuffer::None => {}
            AnyBuffer::Many(_) => unreachable!("one run was lent, and comes back in one piece"),
        }
    }
}

/// Memory that the store's devices know, returned by ``Store.register``.
///
/// Buffers that lie in it are read and written in place. It stays registered until it is closed.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Region {
    shared: Arc<Shared>,
}

impl Region {
    pub(crate) fn new(shared: Arc<Shared>) -> Region {
        Region { shared }
    }
}

#[pymethods]
impl Region {
    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.shared.len
    }

    /// Gives the memory back to its owner.
    ///
    /// Requests in its place are copied from then on. Closing it twice does nothing.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If a request still uses some of it. Nothing changes then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut idle = self.shared.idle().ok_or_else(|| errors::forked(py))?;
        let has: usize = idle.iter().flat_map(BTreeMap::values).map(|run| run.len()).sum();
        if idle.is_some() && has < self.shared.len {
            let in_use = self.shared.len - has;
            let text = format!(
                "requests use {in_use} bytes of the registered memory: wait for them, then close it"
            );
            return Err(errors::named(py, "BadBufferError", &text));
        }
        let runs = idle.take();
        drop(idle);
        // Unmapping waits for the kernel.
        py.detach(|| drop(runs));
        Ok(())
    }

    fn __enter__(slf: Py<Region>) -> Py<Region> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Region({} bytes)", self.shared.len)
    }
}
