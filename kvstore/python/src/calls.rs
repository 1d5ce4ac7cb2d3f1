//! The class `Calls`: the common calls of `Store` and `Client`.

use std::time::UNIX_EPOCH;

use adit_kvshare::{KvStore, StoredBytes};
use adit_kvstore::layout::BlockShape;
use adit_kvstore::{Key, Version};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::blocks::{Layout, Lease};
use crate::bytes;
use crate::errors;
use crate::job::Job;
use crate::numbers;
use crate::options;
use crate::queue::Queue;
use crate::scope::Scope;
use crate::session::Call;
use crate::source::{PutArguments, Source, with_session};
use crate::streams::{self, Pieces};
use crate::view::View;
use crate::waiting::{self, begun, wait};

/// The common calls of ``Store`` and ``Client``.
#[pyclass(frozen, subclass, module = "adit._adit", extends = Scope)]
pub(crate) struct Calls {
    source: Source,
}

impl Calls {
    /// Creates the base of an object whose calls go to `source`.
    pub(crate) fn of(source: Source) -> PyClassInitializer<Calls> {
        (Calls { source }, Scope::until("close")).into()
    }

    /// Stores an object; see `Store.put`.
    ///
    /// # Errors
    /// As [`Source::put_with`], [`arguments::key`] and [`View::readable`]; the request's.
    pub(crate) fn put<'py>(
        slf: &Bound<'py, Calls>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        with: PutArguments<'_, '_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let item = (arguments::key(key)?, View::readable(value)?);
        let (py, calls) = (slf.py(), slf.get());
        calls.run(py, Call::Put(vec![item], calls.source.put_with(py, with)?))?.one(py)
    }

    /// Stores several objects; see `Store.put_many`.
    ///
    /// # Errors
    /// As [`Source::put_with`] and [`arguments::pairs`]; the first of the requests'.
    pub(crate) fn put_many<'py>(
        slf: &Bound<'py, Calls>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        with: PutArguments<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = arguments::pairs(keys, values, View::readable)?;
        let (py, calls) = (slf.py(), slf.get());
        calls.run(py, Call::Put(items, calls.source.put_with(py, with)?))?.all(py)
    }

    /// Stores the bytes of a file or an iterable; see `Store.put_from`.
    ///
    /// # Errors
    /// As [`streams::put_from`] and [`arguments::key`].
    pub(crate) fn put_from(
        slf: &Bound<'_, Calls>,
        key: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        nbytes: Option<u64>,
        with: PutArguments<'_, '_>,
    ) -> PyResult<bool> {
        let (py, key) = (slf.py(), arguments::key(key)?);
        let measure = py.import("adit._streams")?.getattr("measured")?;
        let nbytes = nbytes
            .map_or_else(|| measure.call1((source,))?.extract(), |nbytes| Ok(Some(nbytes)))?;
        streams::put_from(py, &slf.get().source, (key, nbytes), source, with)
    }

    /// Makes requests, waits for their answers detached, and returns the job.
    fn run(&self, py: Python<'_>, call: Call) -> PyResult<Job> {
        waiting::ended(py, self.source.begin(py, call, |_, job| begun(job))?)
    }

    /// Makes a call with one key.
    fn one<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        call: fn(Vec<Key>) -> Call,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, key) = (key.py(), arguments::key(key)?);
        self.run(py, call(vec![key]))?.one(py)
    }

    /// Makes a call with several keys, with an answer for each.
    fn many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        call: fn(Vec<Key>) -> Call,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, keys) = (keys.py(), arguments::keys(keys)?);
        self.run(py, call(keys))?.all(py)
    }

    /// Returns futures of a class of `adit._futures`.
    fn futures_of<'py>(slf: &Bound<'py, Calls>, class: &str) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("adit._futures")?.getattr(class)?.call1((slf,))
    }
}

#[pymethods]
impl Calls {
    /// Open an object of any length for reading in pieces.
    ///
    /// Returns
    /// -------
    /// Reader or None
    ///     A file, for the ``with`` statement; ``None`` if there is no such object.
    fn reader<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, key) = (key.py(), arguments::key(key)?);
        let Some(pieces) = Pieces::of(py, &self.source, key)? else { return Ok(None) };
        py.import("adit._streams")?.getattr("Reader")?.call1((pieces,)).map(Some)
    }

    /// Read several objects, planned together.
    ///
    /// Returns
    /// -------
    /// list of bytes or None
    ///     ``None`` for each missing object.
    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        self.many(keys, Call::Get)
    }

    /// Read an object into a buffer.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    /// buffer : buffer
    ///     A contiguous and writable buffer, torch tensor on the CPU, or other array with writable DLPack. torch's
    /// autograd does not notice the write. In registered memory or memory of ``Client.allocate`` the device writes to
    ///     the buffer directly; up to 4095 bytes behind the object, within the buffer, may then be zeroed.
    ///
    /// Returns
    /// -------
    /// int or None
    ///     Bytes of the object; ``None`` if there is no such object.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If the buffer is shorter than the object, read-only, not contiguous, on another device, or holds objects.
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let item = (arguments::key(key)?, View::writable(buffer)?);
        self.run(py, Call::GetInto(vec![item]))?.one(py)
    }

    /// Read several objects into buffers, planned together.
    ///
    /// Parameters
    /// ----------
    /// keys : iterable of bytes or str
    /// buffers : iterable of buffers
    ///     One per key; see ``get_into``.
    ///
    /// Returns
    /// -------
    /// list of int or None
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        self.run(py, Call::GetInto(items))?.all(py)
    }

    /// Read one layer of several KV blocks into registered memory, or for a client, into memory of ``Client.allocate``.
    ///
    /// Parameters
    /// ----------
    /// layer : int
    /// keys : iterable of bytes or str
    /// buffers : iterable of buffers
    ///     One per key, each ``Layout.layer_bytes`` long and in such memory.
    ///
    /// Returns
    /// -------
    /// list of int or None
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If a buffer is not in such memory, or another request uses some of it.
    fn get_layer<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::layer)] layer: u32,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        let job = with_session!(&self.source, py, |session| {
            py.detach(|| session.get_layer(layer, items).map(begun))
        });
        let (position, _views) = match job {
            Ok(job) => return waiting::ended(py, job)?.all(py),
            Err(refused) => refused,
        };
        let (missed, given) = match &self.source {
            Source::Store(_) => ("registered memory", "given to Store.register"),
            Source::Client(_) => ("the client's memory", "of Client.allocate"),
        };
        let text = format!(
            "buffer {position} is not in {missed}, or another request has it: layers are read into memory {given}"
        );
        Err(errors::named(py, "BadBufferError", &text))
    }

    /// Return whether an object exists.
    fn exists<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.one(key, Call::Exists)
    }

    /// Return for each key whether its object exists.
    fn exists_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        self.many(keys, Call::Exists)
    }

    /// Return for each key whether its object exists, and count a use of it, so that others are evicted first. Does no
    /// I/O and changes no expiry.
    fn refresh_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        self.many(keys, Call::Refresh)
    }

    /// Return the number of keys with objects before the first without.
    fn lookup_prefix<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.many(keys, Call::LookupPrefix)?.get_item(0)
    }

    /// Read an object, with its version.
    ///
    /// Returns
    /// -------
    /// (bytes, int) or None
    ///     The bytes, and the version for ``if_version`` of ``put``, ``get`` and ``delete``.
    fn get_versioned<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let key = arguments::key(key)?;
        with_session!(&self.source, py, |session| {
            let Some(value) = wait(py, || session.store.get(key))? else { return Ok(None) };
            let version = StoredBytes::version(&value).0;
            Ok(Some((bytes::of(py, value.bytes())?, version)))
        })
    }

    /// Return an object's metadata.
    ///
    /// Returns
    /// -------
    /// dict or None
    ///     ``bytes``; ``version``; ``stored``, the Unix time of the put in seconds, or ``None`` for objects without a
    /// version; ``ttl``, the seconds until it expires, or ``None``; ``tenant``. ``None`` if there is no such object.
    fn info<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let key = arguments::key(key)?;
        let known = with_session!(&self.source, py, |session| wait(py, || session.store.info(key)));
        let Some(known) = known? else { return Ok(None) };
        let info = PyDict::new(py);
        let stored = known.version.time().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        info.set_item("bytes", known.bytes)?;
        info.set_item("version", known.version.0)?;
        info.set_item("stored", stored.map(|stored| stored.as_secs_f64()))?;
        info.set_item("ttl", known.ttl_s)?;
        info.set_item("tenant", &*known.tenant)?;
        Ok(Some(info))
    }

    /// Remove an object; return whether there was one.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    /// if_version : int, optional
    ///     The version that the object must have.
    ///
    /// Raises
    /// ------
    /// ConflictError
    ///     If there is no object of that version. Nothing was removed.
    #[pyo3(signature = (key, *, if_version=None))]
    fn delete<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(version) = if_version else { return self.one(key, Call::Delete) };
        let (py, name) = (key.py(), arguments::key(key)?);
        let is_gone = with_session!(&self.source, py, |session| {
            wait(py, || session.store.delete_if(name, Version(version)))
        });
        Ok(is_gone?.into_pyobject(py)?.to_owned().into_any())
    }

    /// Let an object expire ``ttl`` seconds from now; return whether it exists. Writes no data.
    fn touch<'py>(&self, key: &Bound<'py, PyAny>, ttl: f64) -> PyResult<Bound<'py, PyAny>> {
        let (py, key) = (key.py(), arguments::key(key)?);
        let ttl = options::seconds(py, "ttl", ttl)?;
        self.run(py, Call::Touch(vec![key], ttl))?.one(py)
    }

    /// Let several objects expire ``ttl`` seconds from now; return for each whether it exists.
    fn touch_many<'py>(&self, keys: &Bound<'py, PyAny>, ttl: f64) -> PyResult<Bound<'py, PyList>> {
        let (py, keys) = (keys.py(), arguments::keys(keys)?);
        let ttl = options::seconds(py, "ttl", ttl)?;
        self.run(py, Call::Touch(keys, ttl))?.all(py)
    }

    /// Let an object never expire; return whether it exists.
    fn persist(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (py, key) = (key.py(), arguments::key(key)?);
        with_session!(&self.source, py, |session| wait(py, || session.store.persist(key)))
    }

    /// Remove several objects; return for each whether there was one.
    fn delete_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        self.many(keys, Call::Delete)
    }

    /// Return removed objects: evicted, expired, deleted or lost to damage, but not replaced.
    ///
    /// Parameters
    /// ----------
    /// cursor : int, optional
    ///     The cursor of the last call. The first call has none and returns no keys.
    /// prefix : bytes or str, optional
    ///     The prefix of the keys.
    ///
    /// Returns
    /// -------
    /// list of bytes
    ///     Keys of removed objects. They may have objects again.
    /// int
    ///     The next cursor. Unless it equals ``cursor``, more may follow, even if there are no keys.
    /// bool
    /// Whether earlier removals were dropped: check the objects that you know with ``exists_many``. This happens to a
    ///     reader that is some 4 MiB of keys behind or whose cursor is from before the store was opened, and after a
    ///     device failed.
    #[pyo3(signature = (cursor=None, *, prefix=None))]
    fn removals<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::last_cursor)] cursor: Option<u64>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prefix = prefix.map(arguments::prefix).transpose()?.unwrap_or_default();
        self.run(py, Call::Removals(prefix, cursor))?.one(py)
    }

    /// Keep the objects of the keys before the first miss readable.
    ///
    /// Parameters
    /// ----------
    /// keys : iterable of bytes or str
    /// seconds : float
    ///     Duration of the lease, unless it is released earlier. A client's lease also ends with its process.
    ///
    /// Returns
    /// -------
    /// Lease
    ///     For the ``with`` statement.
    #[pyo3(signature = (keys, seconds=60.0))]
    fn lease(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, seconds: f64) -> PyResult<Py<Lease>> {
        let keys = arguments::keys(keys)?;
        let time = options::seconds(py, "seconds", seconds)?;
        with_session!(&self.source, py, |session| {
            Lease::new(py, wait(py, || session.store.lease(&keys, time))?)
        })
    }

    /// Define the layout of a model's KV blocks, or return it if it is already defined.
    ///
    /// Parameters
    /// ----------
    /// layers, kv_heads, head_dim : int
    ///     The model's dimensions.
    /// tokens : int
    ///     Tokens per block.
    /// dtype : {"f32", "f16", "bf16", "fp8", "int8"}
    /// tensors_per_layer : int
    ///     2 for keys and values, 1 for the latent of MLA.
    /// slots : int, optional
    ///     Number of blocks that share a slab, in which the same layer of neighbours is contiguous: for blocks that are
    ///     read layer by layer. Without it a block is one extent.
    ///
    /// Returns
    /// -------
    /// Layout
    ///     The layout for puts of this store, or of this client.
    #[pyo3(signature = (*, layers, kv_heads, head_dim, tokens, dtype, tensors_per_layer=2, slots=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn layout(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::layers)] layers: u32,
        #[pyo3(from_py_with = numbers::kv_heads)] kv_heads: u32,
        #[pyo3(from_py_with = numbers::head_dim)] head_dim: u32,
        #[pyo3(from_py_with = numbers::tokens)] tokens: u32,
        dtype: &str,
        #[pyo3(from_py_with = numbers::tensors_per_layer)] tensors_per_layer: u8,
        #[pyo3(from_py_with = numbers::slots)] slots: Option<u32>,
    ) -> PyResult<Layout> {
        let dtype = options::dtype(py, dtype)?;
        let block = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
        self.source.layout(py, options::layout(py, block, slots)?)
    }

    /// Return a queue for requests whose answers are collected later. For a client, a thread of the connection receives
    /// the answers.
    fn queue(&self, py: Python<'_>) -> PyResult<Py<Queue>> {
        Queue::new(py, self.source.clone())
    }

    /// Return the same calls with futures of ``concurrent.futures``.
    fn futures<'py>(slf: &Bound<'py, Calls>) -> PyResult<Bound<'py, PyAny>> {
        Calls::futures_of(slf, "Futures")
    }

    /// Return the same calls with futures of the running event loop, to be awaited.
    fn aio<'py>(slf: &Bound<'py, Calls>) -> PyResult<Bound<'py, PyAny>> {
        Calls::futures_of(slf, "Aio")
    }

    /// Wait until everything acknowledged survives a power cut.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, Call::Commit)?.all(py).map(drop)
    }

    /// Finish the requests in progress, make them durable and close the store; or close the connection. Closing twice
    /// does nothing.
    ///
    /// Jobs of a connection's queues continue. The server keeps the client's place until they, its memory and its
    /// leases are gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.source.close(py)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.exists(key)?.extract()
    }
}
