//! The class `Client`: a store that another process serves.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_kvshare::{ClientOptions, Error, KvStore, StoredBytes};
use adit_kvstore::store::ObjectInfo;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::blocks::Layout;
use crate::bytes;
use crate::calls::Calls;
use crate::connection::Connection;
use crate::errors;
use crate::figures;
use crate::numbers;
use crate::options;
use crate::scope;
use crate::shared::Memory;
use crate::source::{PutArguments, Source};
use crate::waiting::{self, wait};

/// Connect to a store that another process on this machine serves.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The socket of ``adit kv serve``.
/// tenant : str, optional
///     The owner of the objects that this client puts.
/// pool_bytes : int
///     Memory for data outside memory of ``allocate``. It also bounds the length of such an object moved in one piece;
///     see ``reader`` and ``put_from`` for longer ones.
/// depth : int
///     Maximum requests at the server: a power of two from 2 to 4096. Others are queued.
/// timeout : float
///     Seconds within which requests are answered. Memory, layouts and counters may take the server 60 seconds.
///
/// Returns
/// -------
/// Client
///
/// Raises
/// ------
/// RefusedError
///     If no server listens at the socket, or it accepts no more clients.
///
/// Notes
/// -----
/// When the server ends or is killed, calls fail at once with ``LostError``, including those in flight. A thread
/// reconnects at once, and then every 0.1 to 2 seconds, until it succeeds or the connection is closed. From then on
/// calls work again, also those of older queues, futures and readers. The logger ``adit`` has a line when the server is
/// lost and one when it is back.
#[pyfunction]
#[pyo3(signature = (path, *, tenant=None, pool_bytes=67_108_864, depth=256, timeout=60.0))]
pub(crate) fn connect(
    py: Python<'_>,
    path: PathBuf,
    tenant: Option<String>,
    #[pyo3(from_py_with = numbers::pool_bytes)] pool_bytes: usize,
    #[pyo3(from_py_with = numbers::depth)] depth: u64,
    timeout: f64,
) -> PyResult<Py<Client>> {
    let timeout = options::seconds(py, "timeout", timeout)?;
    let options = ClientOptions { tenant, depth, pool_bytes, timeout };
    let to = path.clone();
    let connected = waiting::apart(py, move || Connection::open(to, options))?;
    let connection = connected.map_err(|why| unreachable(py, &why, &path))?;
    let calls = Calls::of(Source::Client(Arc::clone(&connection)));
    Py::new(py, calls.add_subclass(Client { connection, path }))
}

/// Creates the exception for a failed connection, with the reason and the remedy.
fn unreachable(py: Python<'_>, error: &Error, path: &Path) -> PyErr {
    let why = match error {
        Error::System { why, .. } => why,
        Error::Lost { .. } => return errors::named(py, "LostError", &error.to_string()),
        _ => return errors::of(py, error),
    };
    let path = path.display();
    let fix = if why.kind() == ErrorKind::PermissionDenied {
        "run as the user that 'adit kv serve' runs as, whose the socket is".to_owned()
    } else {
        format!("start 'adit kv serve --store TARGET --socket {path}', or correct the path")
    };
    errors::named(py, "RefusedError", &format!("{error}: {fix}"))
}

/// A store that another process serves, returned by ``connect``.
///
/// Its calls are those of ``Store`` with the same names. Buffers in memory of ``allocate`` move to and from the drive
/// without a copy; others are copied once. ``get`` has no ranges; ``reader`` has. Only the process that has the store
/// can set quotas and write blocks layer by layer.
///
/// Notes
/// -----
/// Clients trust each other with objects: any client may replace or delete any object. Calls from other threads proceed
/// while one waits. After a fork only the parent can use the client.
///
/// A connection that returns after the loss of its server (see ``connect``) keeps its layouts. Memory of ``allocate``
/// keeps its bytes and is copied from then on, which is logged: allocate again when ``times_connected`` has changed.
/// Leases are gone; a reader continues if its object has the same version, and otherwise raises ``ConflictError``. A
/// ``put_from`` in progress stores nothing.
#[pyclass(frozen, module = "adit", extends = Calls)]
pub(crate) struct Client {
    connection: Arc<Connection>,
    /// The server's socket.
    path: PathBuf,
}

#[pymethods]
impl Client {
    /// Number of connections so far: 1 at first, and one more after each loss of the server.
    #[getter]
    fn times_connected(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.connection.link(py)?.era + 1)
    }

    /// Allocate memory that is shared with the server, which registers it with the store.
    ///
    /// Parameters
    /// ----------
    /// nbytes : int
    ///     Length in bytes. Allocate an engine's whole pool at once, and use parts of it.
    ///
    /// Returns
    /// -------
    /// memoryview
    ///     Writable bytes; ``numpy.frombuffer`` makes an array of them. They are shared until the last object that
    ///     refers to them is gone.
    ///
    /// Raises
    /// ------
    /// RefusedError
    ///     If that exceeds the memory that the server lets a client share.
    ///
    /// Notes
    /// -----
    /// A buffer in this memory whose address and length are multiples of 4096 is not copied. After a ``DeadlineError``
    /// or a ``LostError`` the drive may still write the buffers of that call: do not use them again.
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::nbytes)] nbytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        if nbytes == 0 {
            return Err(options::invalid(py, "nbytes", nbytes, "give 1 or more"));
        }
        let link = self.connection.link(py)?;
        let held = waiting::tried(py, move || link.allocate(nbytes))?;
        let address = held.start();
        let memory = Bound::new(py, Memory::new(held))?;
        py.import("adit._shared")?.getattr("view")?.call1((memory, address, nbytes))
    }

    fn __repr__(&self) -> String {
        let state = scope::state(self.connection.current().is_some());
        format!("Client({}, {state})", self.path.display())
    }

    /// Store an object, replacing one with the same key; see ``Store.put``.
    #[pyo3(signature = (key, value, *, ttl=None, layout=None, if_absent=false, if_version=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn put<'py>(
        slf: &Bound<'py, Client>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
        if_absent: bool,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let with = PutArguments { ttl, layout, if_absent, if_version, ..PutArguments::default() };
        Calls::put(slf.as_super(), key, value, with)
    }

    /// Store several objects, sent to the server together; see ``Store.put_many``.
    #[pyo3(signature = (keys, values, *, ttl=None, layout=None))]
    fn put_many<'py>(
        slf: &Bound<'py, Client>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
    ) -> PyResult<Bound<'py, PyList>> {
        let with = PutArguments { ttl, layout, ..PutArguments::default() };
        Calls::put_many(slf.as_super(), keys, values, with)
    }

    /// Store the bytes of a file or an iterable as an object of any length; see ``Store.put_from``.
    #[pyo3(signature = (key, source, nbytes=None, *, ttl=None, layout=None, if_absent=false, if_version=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn put_from(
        slf: &Bound<'_, Client>,
        key: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::stream_nbytes)] nbytes: Option<u64>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
        if_absent: bool,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<bool> {
        let with = PutArguments { ttl, layout, if_absent, if_version, ..PutArguments::default() };
        Calls::put_from(slf.as_super(), key, source, nbytes, with)
    }

    /// Return an object's bytes, or ``None`` if there is no such object.
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = arguments::key(key)?;
        let session = self.connection.link(py)?.session;
        let value = wait(py, || session.store.get(key))?;
        value.map(|value| bytes::of(py, value.bytes())).transpose()
    }

    /// Return some of the objects whose keys begin with a prefix, and the next cursor; see ``Store.scan``.
    ///
    /// Returns
    /// -------
    /// list of tuple
    ///     The key, length in bytes and version of each object. The list may be empty although more objects follow.
    /// int or None
    ///     The next cursor; ``None`` after the last objects.
    #[pyo3(signature = (cursor=0, *, prefix=None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::cursor)] cursor: u64,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyList>, Option<u64>)> {
        let prefix = prefix.map(arguments::prefix).transpose()?.unwrap_or_default();
        let session = self.connection.link(py)?.session;
        let (found, next) = wait(py, || session.store.scan_prefix(&prefix, cursor, usize::MAX))?;
        let key = |it: &ObjectInfo| PyBytes::new(py, it.key.as_bytes());
        let objects = found.iter().map(|it| (key(it), it.bytes, it.version.0));
        Ok((PyList::new(py, objects)?, next))
    }

    /// Remove all objects whose keys begin with a prefix, which must not be empty; see ``Store.delete_where``.
    #[pyo3(signature = (*, prefix))]
    fn delete_where(&self, py: Python<'_>, prefix: &Bound<'_, PyAny>) -> PyResult<u64> {
        let prefix = arguments::key(prefix)?;
        let session = self.connection.link(py)?.session;
        wait(py, || session.store.delete_prefix(prefix))
    }

    /// Return the store's counters by name, and those of its server.
    ///
    /// ``copied_bytes`` adds this client's copies to the store's; ``clients_now``, ``clients_expelled``,
    /// ``clients_turned_away``, ``mapped_bytes_now`` and ``leases_now`` are the server's.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let link = self.connection.link(py)?;
        let client = link.session.store.clone();
        let (mut stats, serving) = waiting::tried(py, move || client.stats())?;
        stats.copied_bytes += link.session.copied.load(Ordering::Relaxed);
        figures::of_server(py, &stats, &serving)
    }
}
