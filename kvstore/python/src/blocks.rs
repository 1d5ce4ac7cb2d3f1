//! KV blocks of a model, written layer by layer, and leases.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_kvshare::client::SharedLayout;
use adit_kvstore::UNIT_BYTES;
use adit_kvstore::shard::Failure;
use adit_kvstore::store::{self, DefinedLayout};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments;
use crate::errors;
use crate::forked::Ours;
use crate::link::Link;
use crate::numbers;
use crate::options;
use crate::scope::{self, Scope};
use crate::session::Session;
use crate::view::View;
use crate::waiting;

/// Where a layout is defined.
enum Defined {
    Store(DefinedLayout),
    /// By the connection of this number, in some era of it.
    Client {
        connection: u64,
        last: Mutex<(u64, SharedLayout)>,
    },
}

/// The shape of a model's KV blocks in a store, returned by ``Store.layout`` and ``Client.layout``.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Layout {
    defined: Defined,
}

impl Layout {
    pub(crate) fn of_store(defined: DefinedLayout) -> Layout {
        Layout { defined: Defined::Store(defined) }
    }

    pub(crate) fn of_client(defined: SharedLayout, link: &Link) -> Layout {
        let (connection, last) = (link.number, Mutex::new((link.era, defined)));
        Layout { defined: Defined::Client { connection, last } }
    }

    /// Returns the layout for a store.
    ///
    /// # Errors
    /// `InvalidError` if a client defined it.
    pub(crate) fn for_store(&self, py: Python<'_>) -> PyResult<&DefinedLayout> {
        match &self.defined {
            Defined::Store(defined) => Ok(defined),
            Defined::Client { .. } => {
                Err(options::invalid(py, "the layout", "a client's", "define it with Store.layout"))
            }
        }
    }

    /// Returns the layout for a connection. A server that it was not defined at is asked to do so.
    ///
    /// # Errors
    /// `InvalidError` if a store or another connection defined it: the server knows it by a number of the connection. The
    /// server's.
    pub(crate) fn for_client(&self, py: Python<'_>, link: &Link) -> PyResult<SharedLayout> {
        match &self.defined {
            Defined::Client { connection, last } if *connection == link.number => {
                let (era, defined) = *lock(last);
                if era == link.era {
                    return Ok(defined);
                }
                let (client, shape) = (link.client.clone(), *defined.layout());
                let again = waiting::apart(py, move || client.layout(shape))?;
                let again = again.map_err(|why| errors::of_shared(py, &why))?;
                *lock(last) = (link.era, again);
                Ok(again)
            }
            Defined::Client { .. } | Defined::Store(_) => {
                let fix = "define it with Client.layout of this connection";
                Err(options::invalid(py, "the layout", "another connection's or a store's", fix))
            }
        }
    }

    fn shape(&self) -> adit_kvstore::layout::Layout {
        match &self.defined {
            Defined::Store(defined) => *defined.layout(),
            Defined::Client { last, .. } => *lock(last).1.layout(),
        }
    }
}

#[pymethods]
impl Layout {
    /// Number of layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.shape().block().layers
    }

    /// Bytes of a block as it is put and read: its tensors one after another, each padded to 4096.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.shape().block_units() * UNIT_BYTES
    }

    /// Bytes of one layer of a block: its tensors, each padded to 4096.
    #[getter]
    fn layer_bytes(&self) -> u64 {
        self.shape().run_units() * UNIT_BYTES
    }

    fn __repr__(&self) -> String {
        format!("Layout({} layers of {} bytes)", self.layers(), self.layer_bytes())
    }
}

/// Keeps objects readable until it is released or expires, returned by ``Store.lease`` and ``Client.lease``. A client's also
/// ends when its server does, and does not come back with it.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct Lease {
    /// The store's or the client's, which ends when it is dropped.
    lease: Ours<Mutex<Option<Box<dyn Send>>>>,
    count: usize,
}

impl Lease {
    /// Wraps a lease of `count` objects.
    pub(crate) fn new(
        py: Python<'_>,
        lease: impl Send + 'static,
        count: usize,
    ) -> PyResult<Py<Lease>> {
        let lease = Ours::new(Mutex::new(Some(Box::new(lease) as Box<dyn Send>)));
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
        let lease = self.lease.get().ok_or_else(|| errors::forked(py))?;
        py.detach(|| drop(lock(lease).take()));
        Ok(())
    }
}

/// What writes blocks, until they are committed. A call has it while it waits.
type Writing = Arc<Mutex<Option<store::BlocksWriter>>>;

/// Room for KV blocks that are written layer by layer, returned by ``Store.reserve_blocks``.
///
/// A block is invisible until it is committed. Leaving a ``with`` statement before that gives the room back.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct BlocksWriter {
    writer: Ours<Writing>,
    session: Ours<Session>,
    count: usize,
}

impl BlocksWriter {
    pub(crate) fn new(
        py: Python<'_>,
        writer: store::BlocksWriter,
        session: Session,
    ) -> PyResult<Py<BlocksWriter>> {
        let count = writer.count();
        let (writer, session) = (Ours::new(Arc::new(Mutex::new(Some(writer)))), Ours::new(session));
        Scope::of(py, BlocksWriter { writer, session, count }, "close")
    }

    fn parts(&self, py: Python<'_>) -> PyResult<(Writing, Session)> {
        let parts = self.writer.get().cloned().zip(self.session.get().cloned());
        parts.ok_or_else(|| errors::forked(py))
    }
}

#[pymethods]
impl BlocksWriter {
    fn __repr__(&self) -> String {
        // A call that waits has it.
        let is_open = |writer: &Writing| writer.try_lock().map_or(true, |writer| writer.is_some());
        let state = scope::state(self.writer.get().is_some_and(is_open));
        format!("BlocksWriter({} blocks, {state})", self.count)
    }

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
        let job = waiting::apart(py, move || {
            let writer = lock(&writer).take()?;
            Some(session.seal(writer))
        })?;
        job.ok_or_else(|| over(py))?.all(py)
    }

    /// Give the room of blocks that are not committed back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (writer, _) = self.parts(py)?;
        waiting::apart(py, move || drop(lock(&writer).take()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn over(py: Python<'_>) -> PyErr {
    errors::of(py, &Failure::Writer.into())
}
