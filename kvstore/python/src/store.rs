//! The class `Store`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_kvstore::store::{ObjectInfo, Selection};
use adit_kvstore::{FormatStore, OpenOptions, Store as Opened, Version};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::arguments;
use crate::blocks::{BlocksWriter, Layout};
use crate::bytes;
use crate::calls::Calls;
use crate::figures;
use crate::inside::Inside;
use crate::memory::Region;
use crate::numbers;
use crate::options;
use crate::scope;
use crate::source::{PutArguments, Source};
use crate::view::View;
use crate::waiting::{self, wait};

/// A store of objects on one or more devices.
///
/// Parameters
/// ----------
/// target : str, os.PathLike or list of them
///     The devices in the order in which they were formatted, such as ``"uring:kv.img"`` for a file or a block device
///     or ``"vfio:0000:01:00.0"`` for a controller. A path, such as a ``pathlib.Path``, names a file or a block device
///     and means ``uring:``; text is always a whole target.
/// durability : {"restart", "volatile", "durable"}
///     What an acknowledged put promises after a crash.
/// policy : {"auto", "lru", "s3fifo"}
///     The order of eviction when the store is full.
/// threads : int, optional; cores : list of int, optional
///     Number of threads, at most one per shard; or instead, the cores to pin threads to.
/// pool_bytes : int
///     Memory for data outside registered memory. It also bounds the length of such an object moved in one piece; see
///     ``reader`` and ``put_from`` for longer ones.
/// tier_bytes : int
///     Maximum memory for hot objects, which are then read without a device; 0 for none. Less while memory is short.
/// timeout : float
///     Seconds within which a request must begin.
/// command_timeout : float
///     Seconds after which a device's command is aborted.
/// capacity_bytes, capacity_objects : int, optional
///     Limits below the store's capacity.
/// write_bytes_per_day : int, optional
///     Budget of bytes written by objects per day.
/// keep_outdated : bool
/// Whether to keep objects that damage to the journal may have made outdated. By default they become misses forever.
///
/// Raises
/// ------
/// InvalidError
///     If a target or an option is invalid; the text states a number's range.
/// RefusedError
///     If the system refuses: rights are missing, or another process has the store.
/// MediaError
///     If the devices hold no store.
///
/// Notes
/// -----
/// Close a store before the process ends, as the ``with`` statement does: otherwise it ends as in a crash. Calls from
/// other threads proceed while one waits. After a fork only the parent can use the store.
///
/// Signals are handled while a call waits, so that Ctrl-C ends it by ``KeyboardInterrupt``. The request may still be
/// carried out: an object may be stored, and a device may read or write the call's buffers, which are kept alive. Do
/// not use them before ``commit`` or ``close`` has returned.
#[pyclass(frozen, module = "adit", extends = Calls)]
pub(crate) struct Store {
    inside: Arc<Inside>,
    /// The targets as text.
    name: String,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (
        target, *, durability="restart", policy="auto", threads=None, cores=None, pool_bytes=67_108_864, tier_bytes=0,
        timeout=30.0, command_timeout=10.0, capacity_bytes=None, capacity_objects=None,
        write_bytes_per_day=None, keep_outdated=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn new(
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        durability: &str,
        policy: &str,
        #[pyo3(from_py_with = numbers::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = numbers::cores)] cores: Option<Vec<usize>>,
        #[pyo3(from_py_with = numbers::pool_bytes)] pool_bytes: usize,
        #[pyo3(from_py_with = numbers::tier_bytes)] tier_bytes: u64,
        timeout: f64,
        command_timeout: f64,
        #[pyo3(from_py_with = numbers::capacity_bytes)] capacity_bytes: Option<u64>,
        #[pyo3(from_py_with = numbers::capacity_objects)] capacity_objects: Option<u64>,
        #[pyo3(from_py_with = numbers::write_bytes_per_day)] write_bytes_per_day: Option<u64>,
        keep_outdated: bool,
    ) -> PyResult<PyClassInitializer<Store>> {
        let targets = options::targets(target)?;
        let name = targets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let options = OpenOptions {
            durability: options::named(py, durability)?,
            policy: options::named(py, policy)?,
            cores: options::cores(py, cores, threads)?,
            pool_bytes,
            tier_bytes,
            timeout: options::seconds(py, "timeout", timeout)?,
            command_timeout: options::seconds(py, "command_timeout", command_timeout)?,
            capacity_bytes,
            capacity_objects,
            write_bytes_per_day,
            keep_outdated,
            ..OpenOptions::new(targets)
        };
        let opened = waiting::tried(py, move || Opened::open(&options))?;
        let inside = Inside::new(opened);
        let calls = Calls::of(Source::Store(Arc::clone(&inside)));
        Ok(calls.add_subclass(Store { inside, name }))
    }

    /// Format devices as a store. Their contents are lost.
    ///
    /// Parameters
    /// ----------
    /// target : str, os.PathLike or list of them
    ///     The devices, in the order in which they will be opened; see ``Store``.
    /// size : int, optional
    ///     Bytes of a regular file, which is created or extended, and allocated. A refused format leaves no new file,
    ///     and no longer one.
    /// shards : int
    ///     Maximum number of threads that the store can use.
    /// objects_max : int, optional
    ///     Maximum number of objects. By default one per 64 KiB.
    /// key_bytes : int
    ///     Length of the longest keys with which the store holds ``objects_max`` objects.
    /// label : str
    ///     A name of at most 32 bytes.
    /// force : bool
    ///     Whether to overwrite contents, including a store.
    ///
    /// Returns
    /// -------
    /// dict
    ///     ``objects_max`` and ``key_bytes`` of the store.
    ///
    /// Raises
    /// ------
    /// MediaError
    ///     If a device has contents, or is too small.
    #[staticmethod]
    #[pyo3(signature = (
        target, *, size=None, shards=1, objects_max=None, key_bytes=64, label="", force=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn format<'py>(
        py: Python<'py>,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::size)] size: Option<u64>,
        #[pyo3(from_py_with = numbers::shards)] shards: u16,
        #[pyo3(from_py_with = numbers::objects_max)] objects_max: Option<u64>,
        #[pyo3(from_py_with = numbers::key_bytes)] key_bytes: u16,
        label: &str,
        force: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = FormatStore {
            shards,
            objects_max,
            key_bytes,
            label: label.to_owned(),
            overwrite: force,
            file_bytes: size,
            ..FormatStore::new(options::targets(target)?)
        };
        let formatted = waiting::tried(py, move || Opened::format(&options))?;
        let room = PyDict::new(py);
        room.set_item("objects_max", formatted.objects_max)?;
        room.set_item("key_bytes", formatted.key_bytes)?;
        Ok(room)
    }

    /// Store an object, replacing one with the same key.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    ///     1 to 512 bytes.
    /// value : buffer
    ///     Any object with contiguous bytes: a buffer, such as ``bytes``, ``memoryview`` or a NumPy array; a torch
    ///     tensor on the CPU; or another array with DLPack on the CPU. Objects and pointers are refused, because
    ///     addresses mean nothing outside the process. Values in registered memory are not copied.
    /// ttl : float, optional
    ///     Seconds until the object expires.
    /// tenant : str, optional
    ///     The object's owner.
    /// after : bytes or str, optional
    ///     The key of the object to place this one behind.
    /// layout : Layout, optional
    ///     The shape, if the object is a KV block.
    /// if_absent : bool
    ///     Whether to store only if the key has no object.
    /// if_version : int, optional
    ///     The version that the replaced object must have; see ``get_versioned``.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if admission or the write budget declined the object.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If the value's bytes cannot be used: they are not contiguous, on another device, or addresses.
    /// ConflictError
    ///     If the object exists, or has another version, which the attribute ``version`` holds. Nothing was changed.
    ///
    /// Notes
    /// -----
    /// A tensor's bytes are its values as they lie in memory, of any type, such as bfloat16 and float8; the type and
    /// shape are not stored. Do not resize a tensor's storage while a call, a job or a ``Region`` has it: the tensor is
    /// kept alive, but its memory cannot be held in place like a buffer's.
    #[pyo3(signature = (
        key, value, *, ttl=None, tenant=None, after=None, layout=None, if_absent=false, if_version=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn put<'py>(
        slf: &Bound<'py, Store>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        tenant: Option<&str>,
        after: Option<&Bound<'_, PyAny>>,
        layout: Option<&Layout>,
        if_absent: bool,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let with = PutArguments { ttl, tenant, after, layout, if_absent, if_version };
        Calls::put(slf.as_super(), key, value, with)
    }

    /// Store several objects, planned together.
    ///
    /// Parameters
    /// ----------
    /// keys : iterable of bytes or str
    /// values : iterable of buffers
    ///     One per key, such as the rows of a NumPy array or a tensor; see ``put``.
    /// ttl, tenant, after : optional
    ///     As for ``put``, for each object.
    /// layout : Layout, optional
    ///     The shape, if the objects are KV blocks of one sequence; they are then placed one behind the other.
    ///
    /// Returns
    /// -------
    /// list of bool
    ///     For each object whether it was stored.
    ///
    /// Raises
    /// ------
    /// Error
    ///     The first failure; its attribute ``index`` is the position. Others may have been stored.
    #[pyo3(signature = (keys, values, *, ttl=None, tenant=None, after=None, layout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn put_many<'py>(
        slf: &Bound<'py, Store>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        tenant: Option<&str>,
        after: Option<&Bound<'_, PyAny>>,
        layout: Option<&Layout>,
    ) -> PyResult<Bound<'py, PyList>> {
        let with = PutArguments { ttl, tenant, after, layout, ..PutArguments::default() };
        Calls::put_many(slf.as_super(), keys, values, with)
    }

    /// Store the bytes of a file or an iterable as an object of any length, with some MiB of memory.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    /// source : file or iterable of buffers
    ///     A binary file with ``read``, from its position on, or buffers and tensors to concatenate. It is read on the
    ///     calling thread.
    /// nbytes : int, optional
    /// Number of bytes to store. By default all; if the source cannot seek, more than 8 MiB are then first kept in a
    ///     temporary file, because the store needs to know the length.
    /// ttl, tenant, after, layout, if_absent, if_version : optional
    ///     As for ``put``.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if admission or the write budget declined it.
    ///
    /// Raises
    /// ------
    /// InvalidError
    ///     If the source has fewer bytes. Nothing is stored then, nor if the source raises.
    #[pyo3(signature = (
        key, source, nbytes=None, *, ttl=None, tenant=None, after=None, layout=None, if_absent=false, if_version=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn put_from(
        slf: &Bound<'_, Store>,
        key: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::stream_nbytes)] nbytes: Option<u64>,
        ttl: Option<f64>,
        tenant: Option<&str>,
        after: Option<&Bound<'_, PyAny>>,
        layout: Option<&Layout>,
        if_absent: bool,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<bool> {
        let with = PutArguments { ttl, tenant, after, layout, if_absent, if_version };
        Calls::put_from(slf.as_super(), key, source, nbytes, with)
    }

    /// Read an object, or a range of its bytes.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    /// start, stop : int, optional
    ///     The range, cut off at the object's end.
    /// if_version : int, optional
    ///     The version that the object must have, so that successive ranges are of one object.
    ///
    /// Returns
    /// -------
    /// bytes or None
    ///     ``None`` if there is no such object.
    ///
    /// Raises
    /// ------
    /// ConflictError
    ///     If the object has another version.
    #[pyo3(signature = (key, start=0, stop=None, *, if_version=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::start)] start: u64,
        #[pyo3(from_py_with = numbers::stop)] stop: Option<u64>,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (key, session) = (arguments::key(key)?, self.inside.session(py)?);
        let range = start..stop.unwrap_or(u64::MAX);
        let value = wait(py, || match (start, stop, if_version) {
            (0, None, None) => session.store.get(key),
            (_, _, None) => session.store.get_range(key, range),
            (_, _, Some(version)) => session.store.get_range_if(key, range, Version(version)),
        })?;
        value.map(|value| bytes::of(py, (&value[..]).into())).transpose()
    }

    /// Remove all objects with a prefix, or of a tenant.
    ///
    /// Parameters
    /// ----------
    /// prefix : bytes or str, optional
    ///     The prefix; empty for all objects.
    /// tenant : str, optional
    ///     The tenant; empty for the default one.
    ///
    /// Returns
    /// -------
    /// int
    ///     Number of objects.
    #[pyo3(signature = (*, prefix=None, tenant=None))]
    fn delete_where(
        &self,
        py: Python<'_>,
        prefix: Option<&Bound<'_, PyAny>>,
        tenant: Option<&str>,
    ) -> PyResult<u64> {
        let selection = match (prefix, tenant) {
            (Some(prefix), None) => Selection::Prefix(arguments::prefix(prefix)?.into()),
            (None, Some(tenant)) => Selection::Tenant(tenant.into()),
            (prefix, _) => {
                let given = if prefix.is_some() { "both" } else { "neither" };
                let fix = "give either a prefix or a tenant";
                return Err(options::invalid(py, "what to delete", given, fix));
            }
        };
        let session = self.inside.session(py)?;
        wait(py, || session.store.delete_where(&selection))
    }

    /// Reserve room for the KV blocks of one sequence, to be written layer by layer.
    ///
    /// Parameters
    /// ----------
    /// layout : Layout
    /// keys : iterable of bytes or str
    /// ttl, tenant, after : optional
    ///     As for ``put``.
    ///
    /// Returns
    /// -------
    /// BlocksWriter
    #[pyo3(signature = (layout, keys, *, ttl=None, tenant=None, after=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn reserve_blocks(
        &self,
        py: Python<'_>,
        layout: &Layout,
        keys: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        tenant: Option<&str>,
        after: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<BlocksWriter>> {
        let with = PutArguments { ttl, tenant, after, ..PutArguments::default() };
        let with = Source::Store(Arc::clone(&self.inside)).put_with(py, with)?;
        let (keys, session) = (arguments::keys(keys)?, self.inside.session(py)?);
        let defined = layout.for_store(py)?;
        let store = session.store.clone();
        let reserve = move || store.reserve_blocks(&defined, keys, &with).wait();
        let writer = waiting::tried(py, reserve)?;
        BlocksWriter::new(py, writer, session)
    }

    /// Register memory with the devices, so that buffers in it are read and written in place.
    ///
    /// Parameters
    /// ----------
    /// buffer : buffer
    ///     A contiguous and writable buffer or tensor, such as an engine's whole pool of KV blocks. Its address and
    ///     length must be multiples of 4096, like those of an ``mmap.mmap``.
    ///
    /// Returns
    /// -------
    /// Region
    ///     Keeps the memory registered until the region or the store is closed.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If some of the memory is already registered.
    ///
    /// Notes ----- A buffer whose address and length are multiples of 4096 is used in place, unless a copy costs less.
    /// Other buffers are copied partly or entirely. ``stats()["in_place_bytes"]`` and ``["copied_bytes"]`` count both.
    /// Requests wait while memory is registered.
    ///
    /// First, the kernel gathers the memory in pages of 2 MiB, because each page of 4 KiB would be a segment of a
    /// request to a disk. This allocates all of the memory and moves used pages once, at some GB/s. Pinned memory, for
    /// example by a GPU's driver, stays in its pages.
    fn register(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Py<Region>> {
        Region::new(py, self.inside.register(py, View::writable(buffer)?)?)
    }

    /// Return some of the objects, and the next cursor.
    ///
    /// Parameters
    /// ----------
    /// cursor : int
    ///     0, or the cursor that the last call returned.
    /// limit : int
    ///     Maximum number of objects to return.
    /// prefix : bytes or str, optional
    ///     The prefix of the keys. The store has no order of keys: it examines all objects, some in each call.
    ///
    /// Returns
    /// -------
    /// list of tuple
    ///     The key, length in bytes and tenant of each object. The list may be empty although more objects follow.
    /// int or None
    ///     The next cursor; ``None`` after the last objects.
    #[pyo3(signature = (cursor=0, limit=1000, *, prefix=None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::cursor)] cursor: u64,
        #[pyo3(from_py_with = numbers::limit)] limit: usize,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyList>, Option<u64>)> {
        let prefix = prefix.map(arguments::prefix).transpose()?.unwrap_or_default();
        let session = self.inside.session(py)?;
        let (found, next) = wait(py, || session.store.scan_prefix(&prefix, cursor, limit))?;
        let key = |it: &ObjectInfo| PyBytes::new(py, it.key.as_bytes());
        let objects = found.iter().map(|it| (key(it), it.bytes, &*it.tenant));
        Ok((PyList::new(py, objects)?, next))
    }

    /// Limit the bytes of a tenant's objects, or lift the limit.
    ///
    /// Parameters
    /// ----------
    /// tenant : str
    /// quota : int or None
    ///     Maximum bytes, with padding; ``None`` for no limit.
    /// when_reached : {"refuse", "evict-own"}
    ///     Whether a put beyond the quota fails, or evicts the tenant's least recently used objects.
    #[pyo3(signature = (tenant, quota, when_reached="refuse"))]
    fn set_quota(
        &self,
        py: Python<'_>,
        tenant: &str,
        #[pyo3(from_py_with = numbers::quota)] quota: Option<u64>,
        when_reached: &str,
    ) -> PyResult<()> {
        let quota = options::quota(py, quota, when_reached)?;
        let (tenant, session) = (self.inside.tenant(py, tenant)?, self.inside.session(py)?);
        wait(py, || session.store.set_quota(&tenant, quota))
    }

    /// Return each tenant's figures, by name.
    fn tenants<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.inside.session(py)?;
        let tenants = PyDict::new(py);
        for tenant in wait(py, || session.store.tenants())? {
            tenants.set_item(&*tenant.name, figures::of_tenant(py, &tenant)?)?;
        }
        Ok(tenants)
    }

    /// Return the store's counters by name; ``docs/operate/kv.md`` explains them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.inside.session(py)?;
        let mut stats = wait(py, || session.store.stats())?;
        stats.copied_bytes += session.copied.load(Ordering::Relaxed);
        let found = figures::of_store(py, &stats)?;
        found.set_item("in_place_bytes", session.store.in_place_bytes())?;
        Ok(found)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Store({}, {})", self.name, scope::state(self.inside.session(py).is_ok()))
    }

    /// Return counters, latencies and occupancy in the text format of Prometheus.
    fn prometheus(&self, py: Python<'_>) -> PyResult<String> {
        let session = self.inside.session(py)?;
        wait(py, || session.store.prometheus())
    }
}
