"""SGLang: a store behind the hierarchical cache, as its ``dynamic`` storage backend.

``--hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "adit",
"module_path": "adit.sglang", "class_name": "AditStorage", "interface_v1": 1, "target": "uring:/data/kv-{rank}.img",
"size_gb": 100}'``
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from . import _engine, _weights
from ._errors import Error

TRIED = ("0.5.23",)
_engine.check_version("SGLang", _engine.version_of("sglang"), TRIED)

from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)
from sglang.srt.runtime_context import get_model  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._adit import Client, Region, Store

# Layouts in which a page consists of a few runs of memory and need not be gathered.
_IN_PLACE = ("page_first", "page_first_direct")


class _Pool:
    """A pool of pages in host memory, with its layout and the key space derived from it."""

    def __init__(self, pool: Any, name: str, fields: dict[str, object]) -> None:
        self.pool = pool
        self.page_tokens = getattr(pool, "page_size", 1) or 1
        self.parts, sizes = self._shape()
        self.object_nbytes = min(sizes)
        self.space = _engine.space(
            "sglang",
            pool=name,
            page_tokens=self.page_tokens,
            dtype=str(getattr(pool, "dtype", None)),
            layout=getattr(pool, "layout", None),
            layers=[getattr(pool, "start_layer", None), getattr(pool, "end_layer", None)],
            format=getattr(pool, "storage_format_tag", None),
            parts=sizes,
            **fields,
        )

    def _shape(self) -> tuple[int, list[int]]:
        """Return the number of a page's runs of memory, and their lengths; 0 if pages must be gathered."""
        if getattr(self.pool, "layout", None) not in _IN_PLACE:
            return 0, [_bytes(self.pool.get_dummy_flat_data_page())]
        try:
            addresses, sizes = self.pool.get_page_buffer_meta(_Indices(range(self.page_tokens)))
        except (AttributeError, NotImplementedError, ValueError):
            return 0, [_bytes(self.pool.get_dummy_flat_data_page())]
        return len(addresses), [int(size) for size in sizes]

    def keys(self, keys: Sequence[str]) -> list[bytes]:
        """Return the store's keys: one for each run of each page."""
        if self.parts <= 1:
            return [self.space + key.encode() for key in keys]
        parts = range(self.parts)
        return [self.space + f"{key}.{part}".encode() for key in keys for part in parts]

    def whole(self, each: list[bool]) -> list[bool]:
        """Return for each page whether all its runs succeeded."""
        parts = max(1, self.parts)
        return [all(each[start : start + parts]) for start in range(0, len(each), parts)]


class _Indices(list[int]):
    """Token indices where SGLang has a tensor."""

    def tolist(self) -> list[int]:
        return list(self)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


class AditStorage(HiCacheStorage):
    """The storage backend.

    Parameters
    ----------
    storage_config : HiCacheStorageConfig
        SGLang's configuration. Its ``extra_config`` has ``target``, and may have ``size_gb``, ``objects_max`` (maximum
        objects of a new file; by default as many as fit), ``namespace``, ``weights`` (the place of the model's weights,
        if its path or id and revision in SGLang's settings do not give it: a folder, a file, or ``id@revision`` of the
        Hub's cache; empty to put only its name in the keys) and ``store_options``, the options of ``adit.Store``.
        ``{rank}`` in the target stands for the number of the process. A target of ``serve:`` and the socket of
        ``adit kv serve`` is one store for all ranks; the options are those of ``adit.connect``.
    kwargs : dict, optional
        SGLang's further arguments.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        config = dict(storage_config.extra_config or {})
        if "target" not in config:
            raise ValueError("the extra config has no 'target', such as uring:/data/kv-{rank}.img")
        self._config = storage_config
        self._space = _space(storage_config, config)
        self._trouble = _engine.Trouble("adit.sglang")
        self._open = functools.partial(
            _engine.open_store,
            config["target"],
            config.get("size_gb", 0),
            _rank(storage_config),
            objects_max=config.get("objects_max"),
            **config.get("store_options", {}),
        )
        self._store: Store | Client | None = None
        self._pools: dict[str, _Pool] = {}
        self._regions: list[Region] = []
        self._seen: list[tuple[int, int]] = []

    @property
    def store(self) -> Store | Client:
        """The store, opened once the first pool tells the length of its pages, or on first use."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool of KV pages, and register its memory."""
        super().register_mem_pool_host(mem_pool_host)
        self._add(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take an additional pool of pages."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(str(host_pool_name), host_pool)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Return the number of pages before the first missing one."""
        pool = self._pools.get(str(PoolName.KV))
        return 0 if pool is None else self._prefix(pool, keys)

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Read pages into host memory, and return which existed."""
        return self._read(self._pools[str(PoolName.KV)], keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of host memory, and return which are stored."""
        return self._write(self._pools[str(PoolName.KV)], keys, host_indices)

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[Any] | None = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """Return the prefixes for which each pool has the pages that its policy requires."""
        pages = self.batch_exists(keys)
        hits: dict[str, int] = {PoolName.KV: pages} if pages else {}
        usable = set(range(1, pages + 1))
        for transfer in pool_transfers or []:
            pool = self._pools.get(str(transfer.name))
            found = [] if pool is None else self._present(pool, self._asked(transfer, keys, pages))
            hit, allowed = _judge(transfer, found, pages)
            if hit:
                hits[transfer.name] = hit
            if allowed is not None:
                usable &= allowed
        return PoolTransferResult(max(usable, default=0), hits, sorted(usable))

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Read pages of several pools."""
        return {transfer.name: self._move(transfer, self._read) for transfer in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Store pages of several pools."""
        return {transfer.name: self._move(transfer, self._write) for transfer in transfers}

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Read a page into a tensor; return it, or ``None``."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """Read pages into tensors; return each of them, or ``None``."""
        tensors = list(target_locations or [])
        if len(tensors) != len(keys) or any(tensor is None for tensor in tensors):
            raise ValueError("pages are read into tensors: give one for each key")
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError("the tensor has to be contiguous: give tensor.contiguous()")
        good = self._fill(self._flat(keys), tensors, [_bytes(tensor) for tensor in tensors])
        return [tensor if is_good else None for tensor, is_good in zip(tensors, good)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store a tensor as a page."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store tensors as pages; return whether all are stored."""
        tensors = [tensor.contiguous() for tensor in values]
        return all(self._save(self._flat(keys), tensors))

    def exists(self, key: str) -> bool:
        """Return whether a page exists."""
        return self.batch_exists([key]) == 1

    def clear(self) -> bool:
        """Remove the pages of this configuration; return whether all are gone."""
        try:
            for pool in self._pools.values():
                self.store.delete_where(prefix=pool.space)
        except Error as why:
            self._trouble.log("removing pages", why)
            return False
        return True

    def close(self) -> None:
        """Close the store."""
        _engine.close_regions(self._regions, self._trouble)
        if self._store is not None:
            self._store.close()

    def _add(self, name: str, pool: Any) -> None:
        config = self._config
        added = self._pools[name] = _Pool(pool, name, _fields(config, name, self._space))
        if self._store is None:
            self._store = self._open(block_nbytes=added.object_nbytes)
        for buffer in ("kv_buffer", "k_buffer", "v_buffer", "index_k_with_scale_buffer"):
            held: Any = getattr(pool, buffer, None)
            for tensor in held if isinstance(held, (list, tuple)) else [held]:
                if hasattr(tensor, "data_ptr"):
                    self._register(tensor.data_ptr(), _bytes(tensor))

    def _register(self, start: int, nbytes: int) -> None:
        """Register a tensor's memory unless it is registered: pools share tensors and have views of their parts."""
        end = start + nbytes
        if any(start < other_end and other < end for other, other_end in self._seen):
            return
        self._seen.append((start, end))
        region = _engine.register(self.store, start, nbytes)
        self._regions += [] if region is None else [region]

    def _flat(self, keys: list[str]) -> list[bytes]:
        """Return the keys of pages that SGLang gathers itself."""
        pool = self._pools.get(str(PoolName.KV))
        if pool is None:
            raise ValueError("no pool of KV pages was registered")
        if pool.parts == 0:
            return pool.keys(keys)
        return [pool.space + f"{key}.flat".encode() for key in keys]

    def _prefix(self, pool: _Pool, keys: list[str]) -> int:
        names = pool.keys(keys)
        found = _engine.each(
            self.store,
            lambda queue: queue.submit_lookup_prefix(names),
            self._trouble,
            "a lookup",
        )
        return int(found[0] or 0) // max(1, pool.parts) if found else 0

    def _present(self, pool: _Pool, keys: list[str]) -> list[bool]:
        names = pool.keys(keys)
        found = _engine.each(
            self.store, lambda queue: queue.submit_exists(names), self._trouble, "a lookup"
        )
        return pool.whole([is_there is True for is_there in found or [False] * len(names)])

    @staticmethod
    def _asked(transfer: Any, keys: list[str], pages: int) -> list[str]:
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            return list(transfer.keys or [])
        return keys[:pages]

    def _move(
        self, transfer: Any, move: Callable[[_Pool, list[str], Any], list[bool]]
    ) -> list[bool]:
        keys, pool = list(transfer.keys or []), self._pools.get(str(transfer.name))
        indices = transfer.host_indices
        if pool is None or indices is None or len(indices) != len(keys) * pool.page_tokens:
            self._trouble.log(
                f"a transfer of pool {transfer.name}",
                ValueError("it has no pool, or not one index for each token of its pages"),
            )
            return [False] * len(keys)
        return move(pool, keys, indices)

    def _read(self, pool: _Pool, keys: list[str], indices: Any) -> list[bool]:
        if not keys:
            return []
        names = pool.keys(keys)
        if pool.parts:
            runs = _runs(pool, indices)
            return pool.whole(self._fill(names, runs, [len(run) for run in runs]))
        pages = [pool.pool.get_dummy_flat_data_page() for _ in keys]
        good = self._fill(names, pages, [_bytes(page) for page in pages])
        for order, page in enumerate(pages):
            if good[order]:
                start = int(indices[order * pool.page_tokens])
                pool.pool.set_from_flat_data_page(start, page)
        return good

    def _write(self, pool: _Pool, keys: list[str], indices: Any) -> list[bool]:
        if not keys:
            return []
        names = pool.keys(keys)
        if pool.parts:
            return pool.whole(self._save(names, _runs(pool, indices)))
        starts = [int(indices[order * pool.page_tokens]) for order in range(len(keys))]
        pages = [pool.pool.get_data_page(start, flat=True).contiguous() for start in starts]
        return self._save(names, pages)

    def _fill(self, names: list[bytes], buffers: list[Any], sizes: list[int]) -> list[bool]:
        """Read objects that are as long as their buffers, which requests in progress keep."""
        lengths = _engine.each(
            self.store,
            lambda queue: queue.submit_get_into(names, buffers),
            self._trouble,
            "reading pages",
        )
        return _engine.are_all(lengths, sizes, len(names))

    def _save(self, names: list[bytes], buffers: list[Any]) -> list[bool]:
        """Store objects, except those that exist."""
        found = _engine.each(
            self.store, lambda queue: queue.submit_exists(names), self._trouble, "a lookup"
        )
        good = [is_there is True for is_there in found or [False] * len(names)]
        missing = [order for order, is_there in enumerate(good) if not is_there]
        keys, values = [names[order] for order in missing], [buffers[order] for order in missing]
        stored = _engine.each(
            self.store,
            lambda queue: queue.submit_put(keys, values),
            self._trouble,
            "storing pages",
        )
        for order, is_stored in zip(missing, stored):
            good[order] = is_stored is True
        return good


def _runs(pool: _Pool, indices: Any) -> list[Any]:
    addresses, sizes = pool.pool.get_page_buffer_meta(indices)
    return [_engine.overlay(address, int(size)) for address, size in zip(addresses, sizes)]


def _judge(
    transfer: Any, found: list[bool], pages: int
) -> tuple[int, set[int] | None]:
    """Return a pool's hits, and the lengths of prefixes that it allows; ``None`` for any."""
    if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
        size = max(1, transfer.group_pages)
        groups = [all(found[at : at + size]) for at in range(0, len(found) - size + 1, size)]
        return _leading(groups) * transfer.block_pages, None
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        window = max(1, len(transfer.keys or []))
        allowed = {
            length
            for length in range(1, pages + 1)
            if len(found) >= length and all(found[max(0, length - window) : length])
        }
        return max(allowed, default=0), allowed
    leading = _leading(found)
    return leading, set(range(1, leading + 1))


def _leading(found: list[bool]) -> int:
    return found.index(False) if False in found else len(found)


def _rank(config: Any) -> int:
    """Return the number of the process among those with a store each."""
    sizes = (config.tp_size, config.pp_size, config.attn_cp_size)
    ranks = (config.tp_rank, config.pp_rank, config.attn_cp_rank)
    number = config.dp_rank
    for size, rank in zip(sizes, ranks):
        number = number * size + rank
    return int(number)


def _space(storage_config: Any, config: dict[str, Any]) -> dict[str, object]:
    """Return the fields of the key space that identify the model and its weights."""
    name, path, revision = storage_config.model_name, storage_config.model_name, None
    with contextlib.suppress(ValueError):
        # SGLang publishes its settings in its processes. The name is that under which it serves the model.
        path, revision = get_model().model_path, get_model().revision
    space: dict[str, object] = {"namespace": str(config.get("namespace", "")), "model": name}
    found = _weights.of_engine("adit.sglang", path or "", config.get("weights"), revision or "")
    if found is not None:
        # It is served by its path if it has no other name, and may be elsewhere on another machine.
        name = found.label + name[len(path) :] if path and str(name).startswith(path) else name
        space |= {"model": name, "weights": found.identity}
    return space


def _fields(config: Any, pool: str, space: dict[str, object]) -> dict[str, object]:
    """Return all fields that change the meaning of a page's bytes, apart from the pool itself."""
    fields: dict[str, object] = {
        **space,
        "pp": [config.pp_rank, config.pp_size],
        "cp": [config.attn_cp_rank, config.attn_cp_size],
        "dcp": [config.dcp_rank, config.dcp_size, config.logical_page_size],
        "heads": [config.tp_lcm_size, config.should_split_heads],
        "tp_size": config.tp_size,
    }
    # All ranks of MLA have the same KV; additional pools may differ by rank.
    if not config.is_mla_model or pool == str(PoolName.MAMBA):
        fields["tp_rank"] = config.tp_rank
    return fields
