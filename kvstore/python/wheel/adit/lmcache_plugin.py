"""LMCache in the engine's process: a store as a storage plug-in of the cache engine in each worker.

``storage_plugins: [adit]`` and, in ``extra_config``, ``storage_plugin.adit.module_path: adit.lmcache_plugin``,
``storage_plugin.adit.class_name: AditBackend``, ``adit: {target: "uring:/data/kv-{rank}.img", size_gb: 100}``
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from typing import TYPE_CHECKING, Any

from . import _engine, _weights
from ._errors import Error
from ._pins import Pins

# Checks LMCache's version.
from .lmcache import _KEY_BYTES

from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from ._adit import Region

# Maximum bytes of an LMCache key that is kept as text, behind the key space.
_TEXT_BYTES = _KEY_BYTES - 16


class AditBackend(StoragePluginInterface):
    """The storage backend: LMCache's chunks as objects, read into memory of its CPU backend.

    Parameters
    ----------
    config, metadata, local_cpu_backend, loop, dst_device
        LMCache's arguments. ``config.extra_config["adit"]`` has ``target``, and may have ``size_gb``, ``objects_max``,
        ``namespace``, ``weights`` (the place of the model's weights, as for ``Connector``), ``register_l1`` and the
        options of ``adit.Store``. ``{rank}`` in the target stands for the worker's number.

    Raises
    ------
    ValueError
        If the configuration cannot work; the text names the remedy.
    """

    def __init__(
        self,
        config: Any = None,
        metadata: Any = None,
        local_cpu_backend: Any = None,
        loop: Any = None,
        dst_device: str = "cpu",
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        options = dict((config.extra_config or {}).get("adit") or {})
        if "target" not in options:
            raise ValueError(
                "extra_config has no 'adit' with a 'target', such as uring:/data/kv-{rank}.img"
            )
        if local_cpu_backend is None:
            raise ValueError(
                "LMCache has no CPU memory here: set max_local_cpu_size, and leave enable_scheduler_bypass_lookup off"
            )
        if config.use_layerwise:
            raise ValueError("chunks in layers are not supported: set use_layerwise to false")
        self._namespace = str(options.pop("namespace", ""))
        self._register_l1 = bool(options.pop("register_l1", False))
        self._format = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
        self._spaces: dict[str, bytes] = {}
        name = "adit.lmcache_plugin"
        self._trouble = _engine.Trouble(name)
        found = _weights.of_engine(name, metadata.model_name, options.pop("weights", None))
        self._weights = {} if found is None else {"weights": found.identity}
        self._lock = threading.Lock()
        self._storing: set[Any] = set()
        self._regions: list[Region] = []
        self.store = _engine.open_store(
            rank=metadata.worker_id, block_nbytes=_chunk_nbytes(metadata), **options
        )
        self._futures = self.store.futures()
        self._pins = Pins(self.store, self._trouble)

    def __str__(self) -> str:
        return "AditBackend"

    def contains(self, key: Any, pin: bool = False) -> bool:
        """Return whether a chunk exists, and pin it if requested."""
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Sequence[Any], pin: bool = False) -> int:
        """Return how many chunks there are before the first that is not."""
        names = self._names(keys)
        if not names:
            return 0
        try:
            return self._pins.take(names) if pin else self.store.lookup_prefix(names)
        except Error as why:
            self._trouble.log("a lookup", why)
            return 0

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """Return how many chunks there are before the first that is not."""
        return await asyncio.to_thread(self.batched_contains, keys, pin)

    def exists_in_put_tasks(self, key: Any) -> bool:
        """Return whether a chunk is being stored."""
        with self._lock:
            return key in self._storing

    def batched_submit_put_task(
        self,
        keys: Sequence[Any],
        objs: Sequence[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> list[Future[Any]] | None:
        """Store chunks, except those that exist or are being stored."""
        chunks: dict[Any, Any] = {}
        try:
            self._hold_new(keys, objs, chunks)
            if not chunks:
                return None
            buffers = [chunk.byte_array for chunk in chunks.values()]
            self._see(buffers[0])
            future = self._futures.put_many(self._names(chunks), buffers)
        except Exception as why:
            # LMCache's own, too: its engine goes on without these chunks.
            self._trouble.log("storing chunks", why)
            self._forget(chunks)
            return None
        future.add_done_callback(lambda done: self._end_put(done, chunks, on_complete_callback))
        return [future]

    def get_blocking(self, key: Any) -> Any:
        """Read a chunk into memory of the CPU backend; return it, or ``None``."""
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Sequence[Any]) -> list[Any]:
        """Read chunks up to the first missing one; return ``None`` for it and all after it."""
        loaded = self._load(keys)
        return loaded + [None] * (len(keys) - len(loaded))

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: Sequence[Any], transfer_spec: Any = None
    ) -> list[Any]:
        """Read chunks up to the first missing one."""
        return await asyncio.to_thread(self._load, keys)

    def pin(self, key: Any) -> bool:
        """Keep a chunk from eviction until it is unpinned as often as it was pinned, for at most 5 minutes."""
        try:
            return self._pins.keep(self._names([key])) == 1
        except Error as why:
            self._trouble.log("pinning a chunk", why)
            return False

    def unpin(self, key: Any) -> bool:
        """Remove one pin; return whether there was one. A chunk without pins may be evicted."""
        return self._pins.give_back(*self._names([key]))

    def remove(self, key: Any, force: bool = True) -> bool:
        """Remove a chunk; return whether it existed."""
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys: Sequence[Any], force: bool = True) -> int:
        """Remove chunks; return how many existed."""
        names = self._names(keys)
        for name in names:
            while self._pins.give_back(name):
                pass
        try:
            return sum(self.store.delete_many(names))
        except Error as why:
            self._trouble.log("removing chunks", why)
            return 0

    def get_allocator_backend(self) -> Any:
        """Return LMCache's CPU backend, which provides the memory for reads."""
        return self.local_cpu_backend

    def close(self) -> None:
        """Wait for puts in progress, and close the store."""
        try:
            self._futures.close()
            self._pins.close()
            _engine.close_regions(self._regions, self._trouble)
        finally:
            self.store.close()

    def _names(self, keys: Iterable[Any]) -> list[bytes]:
        """Return the store's keys of chunks."""
        space = self._space()
        return [space + _text(key) for key in keys]

    def _space(self) -> bytes:
        """Return the key space of the chunks' layout, which LMCache knows only after the engine's first step."""
        layout = f"{self.metadata.get_shapes()} {self.metadata.get_dtypes()} {self._format}"
        if layout not in self._spaces:
            self._spaces[layout] = _engine.space(
                "lmcache-plugin", namespace=self._namespace, layout=layout, **self._weights
            )
        return self._spaces[layout]

    def _hold_new(
        self, keys: Sequence[Any], objs: Sequence[Any], chunks: dict[Any, Any]
    ) -> None:
        """Add chunks to store to ``chunks``; LMCache keeps them in memory until ``_forget``."""
        are_there = self.store.exists_many(self._names(keys))
        with self._lock:
            for key, chunk, is_there in zip(keys, objs, are_there):
                if not (is_there or key in self._storing or self._is_other(chunk)):
                    chunk.ref_count_up()
                    self._storing.add(key)
                    chunks[key] = chunk

    def _is_other(self, chunk: Any) -> bool:
        """Return whether a chunk's layout differs from the one for reads."""
        if chunk.get_memory_format() == self._format:
            return False
        self._trouble.log("storing a chunk", ValueError(f"its layout is not {self._format}"))
        return True

    def _forget(self, chunks: dict[Any, Any]) -> None:
        with self._lock:
            self._storing.difference_update(chunks)
        for chunk in chunks.values():
            chunk.ref_count_down()

    def _end_put(
        self, done: Future[Any], chunks: dict[Any, Any], tell: Callable[[Any], None] | None
    ) -> None:
        self._forget(chunks)
        why = done.exception()
        if isinstance(why, Exception):
            self._trouble.log("storing chunks", why)
        elif tell is not None:
            for key, is_stored in zip(chunks, done.result()):
                if is_stored:
                    self._tell(tell, key)

    def _tell(self, tell: Callable[[Any], None], key: Any) -> None:
        try:
            tell(key)
        except Exception as why:
            # A callback of LMCache failed; the others must still be called.
            self._trouble.log("LMCache's callback", why)

    def _load(self, keys: Sequence[Any]) -> list[Any]:
        chunks: list[Any] = []
        lengths: list[int | None] = []
        names = self._names(keys)
        try:
            for _ in range(self.batched_contains(keys)):
                chunk = self._allocate(self.metadata.chunk_size)
                if chunk is None:
                    break
                chunks.append(chunk)
            buffers = [chunk.byte_array for chunk in chunks]
            if buffers:
                self._see(buffers[0])
                lengths = self.store.get_many_into(names[: len(chunks)], buffers)
        except Exception as why:
            # LMCache's own, too: what was not read is computed.
            self._trouble.log("reading chunks", why)
        lengths += [None] * (len(chunks) - len(lengths))
        fitting = [self._fit(chunk, length) for chunk, length in zip(chunks, lengths)]
        count = _leading([chunk is not None for chunk in fitting])
        for chunk in fitting[count:]:
            if chunk is not None:
                chunk.ref_count_down()
        return fitting[:count]

    def _allocate(self, tokens: int) -> Any:
        """Return memory for a chunk, or ``None``: waiting for other requests' memory might never end."""
        shapes, dtypes = self.metadata.get_shapes(tokens), self.metadata.get_dtypes()
        return self.local_cpu_backend.allocate(shapes, dtypes, self._format, busy_loop=False)

    def _fit(self, chunk: Any, length: int | None) -> Any:
        """Return the bytes read as a chunk of as many tokens, or ``None``. A prompt's last chunk is shorter."""
        size = chunk.get_size()
        if length == size:
            return chunk
        fitting = None
        try:
            tokens, rest = divmod((length or 0) * self.metadata.chunk_size, size)
            if length and not rest:
                fitting = self._allocate(tokens)
            if fitting is not None:
                self._copy(chunk, fitting, length)
        except Exception as why:
            self._trouble.log("reading a chunk with fewer tokens", why)
            if fitting is not None:
                fitting.ref_count_down()
            fitting = None
        finally:
            chunk.ref_count_down()
        return fitting

    @staticmethod
    def _copy(chunk: Any, fitting: Any, length: int | None) -> None:
        if fitting.get_size() != length:
            raise ValueError(f"its chunk has {fitting.get_size()} bytes, and {length} were stored")
        fitting.byte_array.cast("B")[:] = chunk.byte_array[:length].cast("B")

    def _see(self, buffer: memoryview) -> None:
        """Register the memory around a chunk, once."""
        if self._register_l1:
            self._register_l1 = False
            region = _engine.register_around(self.store, buffer, self._trouble)
            self._regions += [] if region is None else [region]


def _chunk_nbytes(metadata: Any) -> int:
    """Return the length of a whole chunk. The last chunk of a prompt is shorter."""
    groups = zip(metadata.get_shapes(), metadata.get_dtypes())
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in groups)


def _text(key: Any) -> bytes:
    text: bytes = key.to_string().encode()
    if len(text) <= _TEXT_BYTES:
        return text
    return b"#" + hashlib.sha256(text).hexdigest().encode()


def _leading(each: list[bool]) -> int:
    return each.index(False) if False in each else len(each)
