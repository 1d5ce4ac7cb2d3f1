"""LMCache: a store as an L2 adapter of the multi-process server, with memory tags and leases for lookups.

``{"type": "plugin", "module_path": "adit.lmcache_l2", "class_name": "AditAdapter",
"adapter_params": {"target": "uring:/data/kv.img", "size_gb": 100}}``

Its keys are those of ``adit.lmcache.Connector``: each finds the other's blocks. From 0.5.7 on, LMCache considers a
store behind ``native_plugin`` remote; this one is local, unless the adapter's configuration has ``"shared": true``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import select
import threading
from typing import TYPE_CHECKING, Any

from . import _engine
from ._errors import ClosedError, Error
from ._pins import Pins

# Checks LMCache's version.
from .lmcache import Connector

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Takes the result of a connector's batch: whether all of it succeeded, and the result for each key.
    _End = Callable[[bool, list[bool]], None]


# Number of known blocks checked for each stored one.
CHECKED = 2


class _Done:
    """Ended tasks of one kind, and the eventfd that signals them."""

    def __init__(self) -> None:
        self.event = _eventfd()
        self._results: dict[int, Any] = {}
        self._lock = threading.Lock()

    def add(self, number: int, result: Any) -> None:
        with self._lock:
            self._results[number] = result
            # Once the eventfd is closed, its number may belong to another file.
            if self.event >= 0:
                os.eventfd_write(self.event, 1)

    def take(self, number: int) -> Any:
        with self._lock:
            return self._results.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            results, self._results = self._results, {}
        return results

    def close(self) -> None:
        with self._lock:
            event, self.event = self.event, -1
        os.close(event)


class AditAdapter(L2AdapterInterface):
    """The L2 adapter.

    A separate thread ends tasks: it fills in their results, calls LMCache's listeners, and signals the eventfd.

    Parameters
    ----------
    params : dict
        Those of ``Connector``, and ``max_capacity_gb``: GiB above which LMCache's own eviction removes blocks, if
        ``eviction`` is configured. The store evicts by itself when it is full.
    l1_memory_desc : L1MemoryDesc, optional
        LMCache's memory, which ``register_l1`` registers.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        params = dict(params)
        super().__init__(int(params.pop("max_capacity_gb", 0) * (1 << 30)))
        memory = l1_memory_desc if params.get("register_l1") else None
        self._connector = Connector(**params | ({} if memory is None else {"register_l1": False}))
        self.store = self._connector.store
        self._trouble = _engine.Trouble("adit.lmcache_l2")
        self._pins = Pins(self.store, self._trouble)
        if memory is not None:
            self._connector.register(memory.ptr, memory.size)
        self._stored, self._found, self._loaded = _Done(), _Done(), _Done()
        # By the number of the connector's batch; the lock is held while a batch gets its number.
        self._ends: dict[int, _End] = {}
        self._lock = threading.Lock()
        self._number = 0
        # For each block that LMCache knows as stored, the bytes that it counts and the last task that stored it, until
        # the block's removal is reported. Blocks not checked recently come first.
        self._known: dict[Any, tuple[int, int]] = {}
        self._is_closed = False
        self._closing = _eventfd()
        self._thread = threading.Thread(target=self._run, name="adit-lmcache", daemon=True)
        self._thread.start()

    def get_store_event_fd(self) -> int:
        """Return the eventfd of stores."""
        return self._stored.event

    def get_lookup_and_lock_event_fd(self) -> int:
        """Return the eventfd of lookups."""
        return self._found.event

    def get_load_event_fd(self) -> int:
        """Return the eventfd of loads."""
        return self._loaded.event

    def get_memory_tags(self) -> Any:
        """Return the tags of the blocks' medium: storage, local unless the configuration says that it is shared."""
        # The module exists from LMCache 0.5.7 on, which alone calls this.
        from lmcache.v1.distributed.api import MemoryResidency, MemorySegment, MemoryTags

        residency = MemoryResidency.REMOTE if self._shared else MemoryResidency.LOCAL
        return MemoryTags(MemorySegment.STORAGE, residency)

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Store blocks."""
        number, views = self._next(), [held.byte_array for held in objects]

        def put(_: bool, are_there: list[bool]) -> None:
            def end(is_good: bool, _: list[bool]) -> None:
                new = [0 if is_there else view.nbytes for is_there, view in zip(are_there, views)]
                try:
                    if is_good:
                        self._notify_keys_stored(keys, self._counted(keys, new, number))
                        self._ask_for_oldest(CHECKED * len(keys))
                finally:
                    self._stored.add(number, L2StoreResult(is_good, sum(new)))

            self._begin(end, len(keys), self._connector.submit_batch_set, _texts(keys), views)

        self._begin(put, len(keys), self._connector.submit_batch_exists, _texts(keys))
        return number

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Return the stores that have ended."""
        return self._stored.take_all()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        """Check which blocks exist, and lease them until they are unlocked, for at most 5 minutes."""
        number = self._next()

        def end(_: bool, are_there: list[bool]) -> None:
            self._found.add(number, _bitmap(self._lock_those(self._names(keys), are_there)))

        self._begin(end, len(keys), self._connector.submit_batch_exists, _texts(keys))
        return number

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Return a bit for each key of a lookup that has ended, or ``None``."""
        return self._found.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Remove one lock from each block."""
        for name in self._names(keys):
            self._pins.give_back(name)

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Read blocks. Blocks that are missing, damaged or of another length are misses."""
        number = self._next()

        def end(_: bool, are_read: list[bool]) -> None:
            read = [key for key, is_read in zip(keys, are_read) if is_read]
            try:
                if read:
                    self._notify_keys_accessed(read)
            finally:
                self._loaded.add(number, _bitmap(are_read))

        views = [held.byte_array for held in objects]
        self._begin(end, len(keys), self._connector.submit_batch_get, _texts(keys), views)
        return number

    def query_load_result(self, task_id: int) -> Any:
        """Return a bit for each key of a load that has ended, or ``None``."""
        return self._loaded.take(task_id)

    def delete(self, keys: list[Any]) -> None:
        """Remove blocks, and report them to LMCache even if already evicted, because it would ask forever."""
        keys = list(dict.fromkeys(keys))
        try:
            were_there = self.store.delete_many(self._names(keys))
        except Error as why:
            self._trouble.log("removing blocks", why)
            return
        with self._lock:
            gone = {
                key: self._known.pop(key, (0, 0))[0]
                for key, was_there in zip(keys, were_there)
                if was_there or key in self._known
            }
        self._tell_gone(gone)

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> Any:
        """Return some of the blocks, of one model or all, and where to continue. Omits keys hashed for their length."""
        if page_size <= 0:
            raise ValueError(f"page_size is {page_size}: give a number above 0")
        at, skip = _place(cursor)
        entries: list[Any] = []
        while True:
            found, then = self.store.scan(at, prefix=self._connector.keys.start)
            for place in range(skip, len(found)):
                if len(entries) == page_size:
                    return KeyListPage(tuple(entries), f"{at}.{place}")
                key = _object_key(self._connector.keys.text(found[place][0]))
                if key is not None and model_name in (None, key.model_name):
                    entries.append(KeyEntry(key.to_encoded_object_key(), found[place][1]))
            if then is None:
                return KeyListPage(tuple(entries), None)
            at, skip = then, 0

    def get_usage(self) -> Any:
        """Return the bytes stored since the start, but at most those that the store still has."""
        usage: AdapterUsage = super().get_usage()
        try:
            used = min(usage.total_bytes_used, self.store.stats()["used_bytes"])
        except Error as why:
            self._trouble.log("asking for the usage", why)
            return usage
        return dataclasses.replace(usage, total_bytes_used=used)

    def report_status(self) -> dict[str, Any]:
        """Return whether the store answers, and some of its counters."""
        status = {"type": type(self).__name__, "locked_key_count": len(self._pins)}
        try:
            stats = self.store.stats()
        except Error as why:
            return status | {"is_healthy": False, "error": str(why)}
        return status | {
            "is_healthy": self._thread.is_alive(),
            "stored_object_count": stats["objects"],
            "used_bytes": stats["used_bytes"],
            "capacity_bytes": stats["capacity_bytes"],
        }

    def close(self) -> None:
        """Wait for the tasks in progress, and close the store and the eventfds."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if not is_first:
            return
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        self._pins.close()
        self._connector.close()
        os.close(self._closing)
        for done in (self._stored, self._found, self._loaded):
            done.close()

    def _next(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def _counted(self, keys: list[Any], new: list[int], number: int) -> list[int]:
        """Return the bytes of blocks that LMCache does not count yet. It still counts blocks that the store evicted."""
        counted = []
        with self._lock:
            for key, nbytes in zip(keys, new):
                known, _ = self._known.pop(key, (0, 0))
                counted.append(max(0, nbytes - known))
                self._known[key] = known + counted[-1], number
        return counted

    def _ask_for_oldest(self, count: int) -> None:
        """Check some of the oldest known blocks, and report those that the store has evicted to LMCache.

        Otherwise LMCache and this adapter would keep the keys of all blocks ever stored. More blocks are checked than
        stored, so the known ones exceed those in the store only a little.
        """
        with self._lock:
            asked = dict(itertools.islice(self._known.items(), count))
            for key in asked:
                self._known[key] = self._known.pop(key)

        def end(is_good: bool, are_there: list[bool]) -> None:
            gone = {}
            with self._lock:
                for (key, known), is_there in zip(asked.items(), are_there):
                    # A block stored since exists again.
                    if is_good and not is_there and self._known.get(key) == known:
                        gone[key] = self._known.pop(key)[0]
            self._tell_gone(gone)

        keys = list(asked)
        self._begin(end, len(keys), self._connector.submit_batch_exists, _texts(keys))

    def _tell_gone(self, gone: dict[Any, int]) -> None:
        """Report removed blocks to LMCache, with the bytes that it counts for each."""
        if gone:
            self._notify_keys_deleted(list(gone), list(gone.values()))

    def _names(self, keys: list[Any]) -> list[bytes]:
        return self._connector.keys.of(_texts(keys))

    def _begin(self, end: _End, count: int, submit: Callable[..., int], *arguments: object) -> None:
        """Submit a batch of ``count`` keys to the connector; a refused batch counts as failed."""
        try:
            with self._lock:
                # A begun batch continues on that thread.
                if self._is_closed and threading.current_thread() is not self._thread:
                    raise ClosedError("the adapter is closed")
                self._ends[submit(*arguments)] = end
        except Exception as why:
            # LMCache waits for each task to end.
            self._trouble.log("submitting blocks", why)
            end(False, [False] * count)

    def _run(self) -> None:
        poll = select.poll()
        for event in (self._connector.event_fd(), self._closing):
            poll.register(event, select.POLLIN)
        is_open = True
        while is_open or self._ends:
            if self._closing in dict(poll.poll()):
                poll.unregister(self._closing)
                is_open = False
            for number, is_good, _, results in self._connector.drain_completions():
                with self._lock:
                    end = self._ends.pop(number)
                try:
                    end(is_good, results or [])
                except Exception as why:
                    # A listener of LMCache failed; further tasks must still end.
                    self._trouble.log("ending a task", why)

    def _lock_those(self, names: list[bytes], are_there: list[bool]) -> list[bool]:
        """Lock the existing blocks, and return for each whether it exists."""
        locked = [False] * len(names)
        rest = [place for place, is_there in enumerate(are_there) if is_there]
        try:
            while rest:
                count = self._pins.take([names[place] for place in rest])
                for place in rest[:count]:
                    locked[place] = True
                # The next block was evicted since the check.
                rest = rest[count + 1 :]
        except Error as why:
            self._trouble.log("locking blocks", why)
        return locked


def _eventfd() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def _texts(keys: Sequence[Any]) -> list[str]:
    """Return keys in LMCache's form for native connectors."""
    return [_text(key) for key in keys]


def _text(key: Any) -> str:
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text


def _object_key(text: str | None) -> Any:
    """Return LMCache's key for a native connector's text, or ``None``."""
    parts = (text or "").split("@")
    try:
        model, rank, group, chunk, *salt = parts
        return ObjectKey(bytes.fromhex(chunk), model, int(rank, 16), int(group, 16), *salt)
    except (TypeError, ValueError):
        return None


def _place(cursor: str | None) -> tuple[int, int]:
    """Return the position to continue at: the store's cursor, and the number of its objects to skip."""
    if cursor is None:
        return 0, 0
    places = re.fullmatch(r"([0-9]{1,19})\.([0-9]{1,19})", cursor)
    if places is None:
        raise ValueError(f"cursor is {cursor!r}: give the last page's next_page_token")
    return int(places[1]), int(places[2])


def _bitmap(bits: list[bool]) -> Any:
    bitmap = Bitmap(len(bits))
    for place, is_set in enumerate(bits):
        if is_set:
            bitmap.set(place)
    return bitmap
