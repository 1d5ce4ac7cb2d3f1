//! KV blocks of a model, written layer by layer, and leases.

use std::sync::{Mutex, PoisonError};

use adit_kvstore::UNIT_BYTES;
use adit_kvstore::shard::Failure;
use adit_kvstore::store::{self, DefinedLayout};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments;
use crate::errors;
use crate::forked::Ours;
use crate::jobs::Session;
use crate::view::View;

/// The shape of a model's KV blocks in a store, returned by ``Store.layout``.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Layout {
    pub(crate) defined: DefinedLayout,
}

#[pymethods]
impl Layout {
    /// Number of layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.defined.layout().block().layers
    }

    /// Bytes of a block as it is put and read: its tensors one after another, each padded to 4096.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.defined.layout().block_units() * UNIT_BYTES
    }

    /// Bytes of one layer of a block: its tensors, each padded to 4096.
    #[getter]
    fn layer_bytes(&self) -> u64 {
        self.defined.layout().run_units() * UNIT_BYTES
    }

    fn __repr__(&self) -> String {
        format!("Layout({} layers of {} bytes)", self.layers(), self.layer_bytes())
    }
}

/// Keeps objects readable until it is released or expires, returned by ``Store.lease``.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Lease {
    lease: Ours<Mutex<Option<store::Lease>>>,
    count: usize,
}

impl Lease {
    pub(crate) fn new(lease: store::Lease) -> Lease {
        let count = lease.count();
        Lease { lease: Ours::new(Mutex::new(Some(lease))), count }
    }
}

#[pymethods]
impl Lease {
    /// Number of leased objects: the keys before the first miss.
    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// End the lease. Ending it twice does nothing.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let lease = self.lease.get().ok_or_else(|| errors::forked(py))?;
        py.detach(|| drop(lease.lock().unwrap_or_else(PoisonError::into_inner).take()));
        Ok(())
    }

    fn __enter__(slf: Py<Lease>) -> Py<Lease> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}

/// Room for KV blocks that are written layer by layer, returned by ``Store.reserve_blocks``.
///
/// A block is invisible until it is committed. Leaving a ``with`` statement before that gives the room back.
#[pyclass(frozen, module = "adit")]
pub(crate) struct BlocksWriter {
    writer: Ours<Mutex<Option<store::BlocksWriter>>>,
    session: Ours<Session>,
}

impl BlocksWriter {
    pub(crate) fn new(writer: store::BlocksWriter, session: Session) -> BlocksWriter {
        BlocksWriter { writer: Ours::new(Mutex::new(Some(writer))), session: Ours::new(session) }
    }

    fn parts(&self, py: Python<'_>) -> PyResult<(&Mutex<Option<store::BlocksWriter>>, &Session)> {
        self.writer.get().zip(self.session.get()).ok_or_else(|| errors::forked(py))
    }
}

#[pymethods]
impl BlocksWriter {
    /// Write one layer of all blocks.
    ///
    /// Parameters
    /// ----------
    /// layer : int
    ///     Each layer is written once, in any order.
    /// buffers : iterable of buffers
    ///     One for each block, in the order of the keys, each ``Layout.layer_bytes`` long.
    ///
    /// Raises
    /// ------
    /// InvalidError
    ///     If a length or their number is wrong, or the blocks are committed already.
    fn put_layer(&self, py: Python<'_>, layer: u32, buffers: &Bound<'_, PyAny>) -> PyResult<()> {
        let (writer, session) = self.parts(py)?;
        let views = arguments::views(buffers, View::readable)?;
        let job = py.detach(|| {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let mut job = writer.as_ref().map(|writer| session.fill(writer, layer, views));
            job.iter_mut().for_each(|job| job.wait());
            job
        });
        job.ok_or_else(|| over(py))?.all(py).map(drop)
    }

    /// Turn the blocks into objects, each as a whole.
    ///
    /// Returns
    /// -------
    /// list of bool
    ///     Whether each block was stored.
    ///
    /// Raises
    /// ------
    /// InvalidError
    ///     If a block lacks a layer.
    fn commit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (writer, session) = self.parts(py)?;
        let job = py.detach(|| {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            let mut job = session.seal(writer);
            job.wait();
            Some(job)
        });
        job.ok_or_else(|| over(py))?.all(py)
    }

    /// Give the room of blocks that are not committed back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (writer, _) = self.parts(py)?;
        py.detach(|| drop(writer.lock().unwrap_or_else(PoisonError::into_inner).take()));
        Ok(())
    }

    fn __enter__(slf: Py<BlocksWriter>) -> Py<BlocksWriter> {
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
}

fn over(py: Python<'_>) -> PyErr {
    errors::of(py, &Failure::Writer.into())
}
