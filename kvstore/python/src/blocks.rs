//! Layouts and writers of KV blocks, and leases.

use std::sync::{Arc, Mutex};

use adit_kvstore::layout::Layout as Shape;
use adit_kvstore::shard::Failure;
use adit_kvstore::store::{self, DefinedLayout};
use adit_kvstore::{KvStore, Store, UNIT_BYTES};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments;
use crate::errors;
use crate::forked::Ours;
use crate::link::Link;
use crate::lock::lock;
use crate::numbers;
use crate::options;
use crate::scope::{self, Scope};
use crate::session::Session;
use crate::view::View;
use crate::waiting;

/// The shape of a model's KV blocks in a store, returned by ``Store.layout`` and ``Client.layout``.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Layout {
    /// The number of the connection that defined it, if a connection did.
    connection: Option<u64>,
    /// The era of the connection and the layout defined in it; a store has one era.
    last: Mutex<(u64, DefinedLayout)>,
}

impl Layout {
    /// Wraps the layout of a store, or of a connection.
    pub(crate) fn new(defined: DefinedLayout, link: Option<&Link>) -> Layout {
        let (connection, era) = link.map(|link| (link.number, link.era)).unzip();
        Layout { connection, last: Mutex::new((era.unwrap_or(0), defined)) }
    }

    /// Returns the layout for a store.
    ///
    /// # Errors
    /// `InvalidError` if a client defined it.
    pub(crate) fn for_store(&self, py: Python<'_>) -> PyResult<DefinedLayout> {
        if self.connection.is_some() {
            let fix = "define it with Store.layout";
            return Err(options::invalid(py, "the layout", "a client's", fix));
        }
        Ok(lock(&self.last).1.clone())
    }

    /// Returns the layout for a connection, defining it at the present server if necessary.
    ///
    /// # Errors
    /// `InvalidError` if a store or another connection defined it, because its number belongs to that connection;
    /// errors of the server.
    pub(crate) fn for_client(&self, py: Python<'_>, link: &Link) -> PyResult<DefinedLayout> {
        if self.connection != Some(link.number) {
            let value = "another connection's or a store's";
            let fix = "define it with Client.layout of this connection";
            return Err(options::invalid(py, "the layout", value, fix));
        }
        let (era, defined) = lock(&self.last).clone();
        if era == link.era {
            return Ok(defined);
        }
        let again = defined_at(py, &link.session.store, *defined.layout())?;
        *lock(&self.last) = (link.era, again.clone());
        Ok(again)
    }

    fn shape(&self) -> Shape {
        *lock(&self.last).1.layout()
    }
}

/// Defines a layout at a store, or at the server of a connection.
///
/// # Errors
/// Errors of the store; the exception of a signal handler.
pub(crate) fn defined_at(
    py: Python<'_>,
    store: &impl KvStore,
    shape: Shape,
) -> PyResult<DefinedLayout> {
    let store = store.clone();
    waiting::tried(py, move || store.define_layout(shape))
}

#[pymethods]
impl Layout {
    /// Number of layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.shape().block().layers
    }

    /// Bytes of a block as put and read: its tensors, each padded to a multiple of 4096.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.shape().block_units() * UNIT_BYTES
    }

    /// Bytes of one layer of a block: its tensors, each padded to a multiple of 4096.
    #[getter]
    fn layer_bytes(&self) -> u64 {
        self.shape().run_units() * UNIT_BYTES
    }

    fn __repr__(&self) -> String {
        format!("Layout({} layers of {} bytes)", self.layers(), self.layer_bytes())
    }
}

/// Keeps objects readable until it is released or expires, returned by ``Store.lease`` and ``Client.lease``. A client's
/// lease also ends with its server, and does not return with it.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct Lease {
    /// The lease of the store or the client, which ends when it is dropped.
    lease: Ours<Mutex<Option<store::Lease>>>,
    count: usize,
}

impl Lease {
    /// Wraps a lease.
    pub(crate) fn new(py: Python<'_>, lease: store::Lease) -> PyResult<Py<Lease>> {
        let (count, lease) = (lease.count(), Ours::new(Mutex::new(Some(lease))));
        Scope::of(py, Lease { lease, count }, "release")
    }
}

#[pymethods]
impl Lease {
    /// Number of leased objects: the keys before the first miss.
    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        let held = self.lease.get().map(lock);
        let state = if held.is_some_and(|held| held.is_some()) { "held" } else { "released" };
        format!("Lease({} objects, {state})", self.count)
    }

    /// End the lease. Ending it twice does nothing.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let lease = self.lease.here(py)?;
        py.detach(|| drop(lock(lease).take()));
        Ok(())
    }
}

/// The writer of blocks, until they are committed. A waiting call takes it.
type Writing = Arc<Mutex<Option<store::BlocksWriter>>>;

/// A writer of KV blocks, layer by layer, returned by ``Store.reserve_blocks``.
///
/// Blocks are invisible until they are committed. Leaving the ``with`` statement before that frees their room.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct BlocksWriter {
    writer: Ours<Writing>,
    session: Ours<Arc<Session<Store>>>,
    count: usize,
}

impl BlocksWriter {
    pub(crate) fn new(
        py: Python<'_>,
        writer: store::BlocksWriter,
        session: Arc<Session<Store>>,
    ) -> PyResult<Py<BlocksWriter>> {
        let count = writer.count();
        let (writer, session) = (Ours::new(Arc::new(Mutex::new(Some(writer)))), Ours::new(session));
        Scope::of(py, BlocksWriter { writer, session, count }, "close")
    }

    fn parts(&self, py: Python<'_>) -> PyResult<(Writing, Arc<Session<Store>>)> {
        Ok((Arc::clone(self.writer.here(py)?), Arc::clone(self.session.here(py)?)))
    }
}

#[pymethods]
impl BlocksWriter {
    fn __repr__(&self) -> String {
        // If the lock is taken, a waiting call has the writer, so it is open.
        let is_open = |writer: &Writing| writer.try_lock().map_or(true, |writer| writer.is_some());
        let state = scope::state(self.writer.get().is_some_and(is_open));
        format!("BlocksWriter({} blocks, {state})", self.count)
    }

    /// Write one layer of all blocks.
    ///
    /// Parameters
    /// ----------
    /// layer : int
    ///     The layer. Write each layer once, in any order.
    /// buffers : iterable of buffers
    ///     One per block, in the order of the keys, each ``Layout.layer_bytes`` long.
    ///
    /// Raises
    /// ------
    /// InvalidError
    ///     If the number or a length of the buffers is wrong, or the blocks are already committed.
    fn put_layer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::layer)] layer: u32,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (writer, session) = self.parts(py)?;
        let views = arguments::views(buffers, View::readable)?;
        let job = waiting::apart(py, move || {
            let writer = lock(&writer);
            writer.as_ref().map(|writer| session.fill(writer, layer, views))
        })?;
        job.ok_or_else(|| over(py))?.all(py).map(drop)
    }

    /// Turn the blocks into objects. Each appears whole.
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
        let job = waiting::apart(py, move || {
            let writer = lock(&writer).take()?;
            Some(session.seal(writer))
        })?;
        job.ok_or_else(|| over(py))?.all(py)
    }

    /// Free the room of uncommitted blocks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (writer, _) = self.parts(py)?;
        waiting::apart(py, move || drop(lock(&writer).take()))
    }
}

fn over(py: Python<'_>) -> PyErr {
    errors::of(py, &Failure::Writer.into())
}
