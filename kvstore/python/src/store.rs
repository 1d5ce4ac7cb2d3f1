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
///     Its devices in the order in which they were formatted, such as ``"uring:kv.img"`` for a file or a block device
///     or ``"vfio:0000:01:00.0"`` for a controller. A path, such as a ``pathlib.Path``, is that of a file or a block
///     device, and means ``uring:``; text is always a whole target.
/// durability : {"restart", "volatile", "durable"}
///     What an acknowledged put promises after a crash.
/// policy : {"auto", "lru", "s3fifo"}
///     Which objects go first when the store is full.
/// threads : int, optional; cores : list of int, optional
///     Number of threads, at most one for each shard; in its place, the cores to pin threads to.
/// pool_bytes : int
///     Memory for data that is not in registered memory. Also the longest such object that goes in one piece; see
///     ``reader`` and ``put_from`` for longer ones.
/// tier_bytes : int
///     The most memory for hot objects, which then come without a device; 0 for none. Less while memory is short.
/// timeout : float
///     Seconds within which a request has to begin.
/// command_timeout : float
///     Seconds that a device may take for a command, after which it is aborted.
/// capacity_bytes, capacity_objects : int, optional
///     Fewer than there is room for.
/// write_bytes_per_day : int, optional
///     How much objects may write.
/// keep_outdated : bool
///     Whether objects stay that damage to the journal may have made outdated. By default they are misses, for ever.
///
/// Raises
/// ------
/// InvalidError
///     If a target or an option is invalid; numbers are named with their range.
/// RefusedError
///     If the system refuses: missing rights, or another process has the store.
/// MediaError
///     If the devices hold no store.
///
/// Notes
/// -----
/// Close a store before the process ends, as the ``with`` statement does: otherwise its end is that of a crash. Calls
/// from other threads go on while one waits. After a fork only the parent can use it.
///
/// Signals are handled while a call waits, so that Ctrl-C ends it by ``KeyboardInterrupt``. What it asked for may be
/// done still: an object may be stored, and a device may read or write its buffers. They are kept until that has ended,
/// and are not to be used before: ``commit`` or ``close`` waits for it.
#[pyclass(frozen, module = "adit", extends = Calls)]
pub(crate) struct Store {
    inside: Arc<Inside>,
    /// Its targets.
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

    /// Format devices as a store. What they held is lost.
    ///
    /// Parameters
    /// ----------
    /// target : str, os.PathLike or list of them
    ///     The devices, in the order in which they will be opened; see ``Store``.
    /// size : int, optional
    ///     Bytes of a regular file, which is made or extended and allocated. A format that is refused leaves no file,
    ///     and none longer than it was.
    /// shards : int
    ///     The most threads that the store can use.
    /// objects_max : int, optional
    ///     Number of objects to have room for. One for each 64 KiB by default.
    /// key_bytes : int
    ///     Length of the longest keys of so many objects.
    /// label : str
    ///     A name of at most 32 bytes.
    /// force : bool
    ///     Whether to overwrite contents, a store among them.
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

    /// Store an object, in the place of one with the same key.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    ///     1 to 512 bytes.
    /// value : buffer
    ///     Any object with contiguous bytes: a buffer, such as ``bytes``, ``memoryview`` or a NumPy array; a torch
    ///     tensor on the CPU; or another array that has DLPack, of the CPU's. Objects and pointers are refused, as
    ///     addresses mean nothing outside the process. In registered memory it is not copied.
    /// ttl : float, optional
    ///     Seconds until it expires.
    /// tenant : str, optional
    ///     Its owner.
    /// after : bytes or str, optional
    ///     The key of an object to place it behind.
    /// layout : Layout, optional
    ///     Its shape, if it is a KV block.
    /// if_absent : bool
    ///     Whether to store it only if there is no such object.
    /// if_version : int, optional
    ///     The version that the object must have which it replaces; see ``get_versioned``.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if admission or the write budget declined it.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If the value's bytes cannot be used: they are not contiguous, on another device, or addresses.
    /// ConflictError
    ///     If the object is there, or has another version, which the attribute ``version`` names. Nothing was changed.
    ///
    /// Notes
    /// -----
    /// A tensor's bytes are its values as they lie in memory, of any type, such as bfloat16 and float8; the type and
    /// shape are not stored. Do not resize a tensor's storage while a call, a job or a ``Region`` has it: the tensor is
    /// kept alive, and its memory cannot be held in place as that of a buffer is.
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
    ///     As many; see ``put``. The rows of a NumPy array and of a tensor are such.
    /// ttl, tenant, after : optional
    ///     As for ``put``, for each of them.
    /// layout : Layout, optional
    ///     Their shape, if they are the KV blocks of one sequence, which are then placed one behind the other.
    ///
    /// Returns
    /// -------
    /// list of bool
    ///     For each whether it was stored.
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

    /// Store what can be read as an object, of any length, with some MiB of memory.
    ///
    /// Parameters
    /// ----------
    /// key : bytes or str
    /// source : file or iterable of buffers
    ///     A binary file with ``read``, from where it is, or buffers and tensors one behind the other. It is read on
    ///     the thread that calls.
    /// nbytes : int, optional
    ///     How many bytes to store. By default all; of a source that cannot seek, more than 8 MiB are then kept in a
    ///     temporary file first, because the store needs to know the length.
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
    ///     If the source has fewer bytes. Nothing is stored then, nor if it raises.
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
    ///     The version that the object must have, so that ranges that are read one after another are of one object.
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
    ///     Empty for all objects.
    /// tenant : str, optional
    ///     Empty for the default tenant.
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
    ///     Contiguous and writable, a tensor too; its address and length are multiples of 4096, as those of an
    ///     ``mmap.mmap`` are. An engine's whole pool of KV blocks is one.
    ///
    /// Returns
    /// -------
    /// Region
    ///     Keeps the memory registered until it or the store is closed.
    ///
    /// Raises
    /// ------
    /// BadBufferError
    ///     If some of it is registered already.
    ///
    /// Notes
    /// -----
    /// A buffer that begins at a multiple of 4096 and is whole multiples of 4096 long goes in place, unless a copy
    /// costs less. Of others, the end or all of it is copied. ``stats()["in_place_bytes"]`` and ``["copied_bytes"]``
    /// count both. Requests wait while memory is registered.
    ///
    /// The kernel is asked to gather the memory in pages of 2 MiB before: of pages of 4 KiB, each is a segment of a
    /// request to a disk. All of it is allocated then, and what was used is moved once, at some GB/s. Memory that is
    /// pinned, as by a GPU's driver, stays in its pages.
    fn register(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Py<Region>> {
        Region::new(py, self.inside.register(py, View::writable(buffer)?)?)
    }

    /// Return some of the objects, and where to go on.
    ///
    /// Parameters
    /// ----------
    /// cursor : int
    ///     0, or what the last call returned.
    /// limit : int
    ///     The most objects to return.
    /// prefix : bytes or str, optional
    ///     What their keys begin with. The store has no order of keys: it looks at all objects, some in each call.
    ///
    /// Returns
    /// -------
    /// list of tuple
    ///     Of each object its key, its bytes and its tenant; there may be none though there are more.
    /// int or None
    ///     The next cursor, unless these were the last.
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
    ///     Bytes, with padding.
    /// when_reached : {"refuse", "evict-own"}
    ///     Whether a put beyond it fails, or takes the place of the tenant's least recently used objects.
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

    /// Return what each tenant has, by its name.
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
