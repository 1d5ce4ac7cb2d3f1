//! The class `Client`: a store that another process has.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_kvshare::client::Pending;
use adit_kvshare::{Client as Connected, ClientOptions, Error};
use adit_kvstore::Key;
use adit_kvstore::layout::BlockShape;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::blocks::{Layout, Lease};
use crate::connection::Connection;
use crate::errors;
use crate::figures;
use crate::inside::PutArguments;
use crate::job::{Job, Requests};
use crate::link::Link;
use crate::options;
use crate::queue::{Queue, Source};
use crate::shared::Memory;
use crate::view::View;

/// Connect to a store that another process of this machine serves.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The socket of ``adit kv serve``.
/// tenant : str, optional
///     The owner of the objects that this client puts.
/// pool_bytes : int
///     Memory for data that is not in the client's own memory. Also the longest such object.
/// depth : int
///     Requests that the server has at a time: a power of two from 2 to 4096. Others wait in line.
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
///     If no server listens there, or it takes no more clients.
#[pyfunction]
#[pyo3(signature = (path, *, tenant=None, pool_bytes=67_108_864, depth=256, timeout=60.0))]
pub(crate) fn connect(
    py: Python<'_>,
    path: PathBuf,
    tenant: Option<String>,
    pool_bytes: usize,
    depth: u64,
    timeout: f64,
) -> PyResult<Client> {
    let timeout = options::seconds(py, "timeout", timeout)?;
    let options = ClientOptions { tenant, depth, pool_bytes, timeout };
    let connected = py.detach(|| Connected::connect(&path, &options));
    let connected = connected.map_err(|why| unreachable(py, &why, &path))?;
    Ok(Client { connection: Arc::new(Connection::new(Link::new(connected, timeout))) })
}

/// Makes the exception of a connection that did not come about: its reason, and what to do.
fn unreachable(py: Python<'_>, error: &Error, path: &Path) -> PyErr {
    let Error::System { why, .. } = error else { return errors::of_shared(py, error) };
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
/// Its calls are those of ``Store`` with the same names. Buffers in memory of ``allocate`` go to the drive and back
/// without a copy; others are copied once. There are no ranges, scans, quotas or blocks written layer by layer: these are
/// for the process that has the store.
///
/// Notes
/// -----
/// Clients trust each other with objects: any may replace or delete any. Calls from other threads go on while one waits.
/// After a fork only the parent can use it.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Client {
    connection: Arc<Connection>,
}

impl Client {
    /// Makes one request and waits for it, detached.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Connected) -> Pending<T> + Send,
    ) -> PyResult<T> {
        let link = self.connection.link(py)?;
        let answer = py.detach(|| ask(&link.client).wait());
        answer.map_err(|unfinished| errors::of_shared(py, &unfinished.error))
    }

    /// Makes requests, waits for their answers detached, and returns the job.
    fn run(&self, py: Python<'_>, start: impl FnOnce(&Link) -> Job + Send) -> PyResult<Job> {
        let link = self.connection.link(py)?;
        Ok(py.detach(|| {
            let mut job = start(&link);
            job.wait();
            job
        }))
    }

    fn store(
        &self,
        py: Python<'_>,
        items: Vec<(Key, View)>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
    ) -> PyResult<Job> {
        let link = self.connection.link(py)?;
        let with = PutArguments { ttl, tenant: None, after: None, layout };
        let with = with.resolve_there(py, &link)?;
        self.run(py, |link| link.put(items, &with))
    }
}

#[pymethods]
impl Client {
    /// Make memory that is shared with the server, which registers it with the store.
    ///
    /// Parameters
    /// ----------
    /// nbytes : int
    ///     Its length. Make one piece for all of an engine's pool, and use parts of it.
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
    ///     If that is more than the server lets a client share.
    ///
    /// Notes
    /// -----
    /// A buffer in it that begins at a multiple of 4096 and is whole multiples of 4096 long is not copied. After a
    /// ``DeadlineError`` or a ``LostError`` the drive may still write the buffers of that call: do not use them again.
    fn allocate<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyAny>> {
        if nbytes == 0 {
            return Err(options::invalid(py, "nbytes", nbytes, "give 1 or more"));
        }
        let link = self.connection.link(py)?;
        let held = py.detach(|| link.allocate(nbytes));
        let held = held.map_err(|why| errors::of_shared(py, &why))?;
        let address = held.start();
        let memory = Bound::new(py, Memory::new(held))?;
        py.import("adit._shared")?.getattr("view")?.call1((memory, address, nbytes))
    }

    /// Store an object, in the place of one with the same key; see ``Store.put``.
    #[pyo3(signature = (key, value, *, ttl=None, layout=None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let item = (arguments::key(key)?, View::readable(value)?);
        self.store(py, vec![item], ttl, layout)?.one(py)
    }

    /// Store several objects, which go to the server together; see ``Store.put_many``.
    #[pyo3(signature = (keys, values, *, ttl=None, layout=None))]
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        layout: Option<&Layout>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.store(py, arguments::pairs(keys, values, View::readable)?, ttl, layout)?.all(py)
    }

    /// Return an object's bytes, or ``None`` if there is no such object.
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = arguments::key(key)?;
        let value = self.ask(py, |client| client.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// Return the bytes of several objects, or ``None`` for each that does not exist.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = arguments::keys(keys)?;
        self.run(py, |link| link.get(keys))?.all(py)
    }

    /// Read an object into a buffer; see ``Store.get_into``.
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let item = (arguments::key(key)?, View::writable(buffer)?);
        self.run(py, |link| link.get_into(vec![item]))?.one(py)
    }

    /// Read several objects into buffers; see ``Store.get_many_into``.
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        self.run(py, |link| link.get_into(items))?.all(py)
    }

    /// Read one layer of several KV blocks into memory of ``allocate``; see ``Store.get_layer``.
    fn get_layer<'py>(
        &self,
        py: Python<'py>,
        layer: u32,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        let link = self.connection.link(py)?;
        let job = py.detach(|| {
            let mut job = link.get_layer(layer, items);
            job.iter_mut().for_each(Job::wait);
            job
        });
        let (position, _views) = match job {
            Ok(job) => return job.all(py),
            Err(refused) => refused,
        };
        let text = format!(
            "buffer {position} is not in the client's memory, or another request has it: layers are read into \
             memory of Client.allocate"
        );
        Err(errors::named(py, "BadBufferError", &text))
    }

    /// Return whether an object exists.
    fn exists(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = arguments::key(key)?;
        self.ask(py, |client| client.exists(key))
    }

    /// Return for each key whether its object exists.
    fn exists_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = arguments::keys(keys)?;
        self.run(py, |link| link.exists(keys))?.all(py)
    }

    /// Return how many of the keys have objects before the first that has none.
    fn lookup_prefix(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = arguments::keys(keys)?;
        self.ask(py, |client| client.lookup_prefix(&keys))
    }

    /// Remove an object; return whether there was one.
    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = arguments::key(key)?;
        self.ask(py, |client| client.delete(key))
    }

    /// Remove several objects; return for each whether there was one.
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = arguments::keys(keys)?;
        self.run(py, |link| link.delete(keys))?.all(py)
    }

    /// Remove all objects whose keys begin with a prefix, which is not empty; see ``Store.delete_where``.
    #[pyo3(signature = (*, prefix))]
    fn delete_where<'py>(
        &self,
        py: Python<'py>,
        prefix: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prefix = arguments::key(prefix)?;
        self.run(py, |link| link.delete_prefix(prefix))?.one(py)
    }

    /// Keep objects readable, as ``Store.lease`` does. The lease also ends with this process.
    #[pyo3(signature = (keys, seconds=60.0))]
    fn lease(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, seconds: f64) -> PyResult<Lease> {
        let keys = arguments::keys(keys)?;
        let time = options::seconds(py, "seconds", seconds)?;
        let lease = self.ask(py, |client| client.lease(&keys, time))?;
        let count = lease.count();
        Ok(Lease::new(lease, count))
    }

    /// Define the layout of a model's KV blocks, for puts of this client; see ``Store.layout``.
    #[pyo3(signature = (*, layers, kv_heads, head_dim, tokens, dtype, tensors_per_layer=2, slots=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn layout(
        &self,
        py: Python<'_>,
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
        tokens: u32,
        dtype: &str,
        tensors_per_layer: u8,
        slots: Option<u32>,
    ) -> PyResult<Layout> {
        let dtype = options::dtype(py, dtype)?;
        let block = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
        let (layout, link) = (options::layout(py, block, slots)?, self.connection.link(py)?);
        let defined = py.detach(|| link.client.layout(layout));
        let defined = defined.map_err(|why| errors::of_shared(py, &why))?;
        Ok(Layout::of_client(defined, link.number))
    }

    /// Return a queue, for requests whose answers are collected later. A thread of the connection takes the answers.
    fn queue(&self, py: Python<'_>) -> PyResult<Queue> {
        Queue::new(py, Source::Client(Arc::clone(&self.connection)))
    }

    /// Return the same calls with futures of ``concurrent.futures``.
    fn futures<'py>(slf: &Bound<'py, Client>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("adit._futures")?.getattr("Futures")?.call1((slf,))
    }

    /// Return the same calls with futures of the running event loop, to be awaited.
    fn aio<'py>(slf: &Bound<'py, Client>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("adit._futures")?.getattr("Aio")?.call1((slf,))
    }

    /// Return the store's counters by name, and those of its server.
    ///
    /// ``copied_bytes`` has this client's copies with the store's; ``clients_now``, ``clients_expelled``,
    /// ``mapped_bytes_now`` and ``leases_now`` are the server's.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let link = self.connection.link(py)?;
        let stats = py.detach(|| link.client.stats());
        let (mut stats, serving) = stats.map_err(|why| errors::of_shared(py, &why))?;
        stats.copied_bytes += link.copied.load(Ordering::Relaxed);
        figures::of_server(py, &stats, &serving)
    }

    /// Wait until everything acknowledged survives a power cut.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, Connected::commit)
    }

    /// End the connection; objects stay. Closing it twice does nothing.
    ///
    /// Jobs of its queues go on. The server keeps the client's place until they, its memory and its leases are gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.connection.close(py)
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.exists(py, key)
    }

    fn __enter__(slf: Py<Client>) -> Py<Client> {
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
