"""LMCache: a store as an L2 adapter of the multi-process server.

``{"type": "native_plugin", "module_path": "adit.lmcache", "class_name": "Connector",
"adapter_params": {"target": "uring:/data/kv.img", "size_gb": 100}}``
"""

from __future__ import annotations

import hashlib
import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from . import _engine, _weights
from ._adit import Store
from ._errors import Error, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ._adit import Region

TRIED = ("0.5.6", "0.5.7rc2")
_NAME = "adit.lmcache"
# Maximum bytes of a tenant's name, and of a key.
_TENANT_BYTES = 64
_KEY_BYTES = 512
# Prefix of the weights' identity in a key; this many digits suffice for weights under one name.
_MARK, _DIGITS = "#", 16
# Prefix of LMCache's addition to a model's name for decode context parallelism.
_LAYOUT = "##lmcache-"


_found = _engine.version_of("lmcache")
# The contract needs no module of LMCache.
if _found is not None:
    _engine.check_version("LMCache", _found, TRIED)


class Keys:
    """Converts LMCache's keys to the store's, which are text: the model, ``@``, and the fields that identify a block.

    Parameters
    ----------
    namespace, weights
        As for ``Connector``.
    """

    def __init__(self, namespace: str, weights: str | None) -> None:
        self._start = f"lmcache/{namespace}/"
        self._is_given = weights is not None
        self._given = _weights.of_engine(_NAME, "", weights) if self._is_given else None
        # Weights by LMCache's name of the model.
        self._starts: dict[str, str] = {}

    @property
    def start(self) -> bytes:
        """The prefix of all keys except long ones."""
        return self._start.encode()

    def of(self, texts: Iterable[str]) -> list[bytes]:
        """Return the store's keys."""
        return [self._key(text) for text in texts]

    def text(self, key: bytes) -> str | None:
        """Return LMCache's key, unless it is hashed for its length, or is of other weights."""
        text = key[len(self.start) :].decode(errors="replace")
        if text.startswith(_MARK):
            text = text.partition("/")[2]
        return text if self._key(text) == key else None

    def _key(self, text: str) -> bytes:
        model, _, rest = text.partition("@")
        start = self._start_of(model)
        key = (start + text).encode()
        if len(key) <= _KEY_BYTES:
            return key
        # Replace a long model name by its hash, and keep the rest.
        digest = hashlib.sha256((start + model).encode()).hexdigest()
        shorter = f"lmcache-long/{digest}/{rest}".encode()
        if len(shorter) <= _KEY_BYTES:
            return shorter
        # Hash everything if the salt, which comes with a request, is long.
        return f"lmcache-long/{hashlib.sha256(key).hexdigest()}".encode()

    def _start_of(self, model: str) -> str:
        start = self._starts.get(model)
        if start is None:
            found = self._given
            if not self._is_given:
                found = _weights.of_engine(_NAME, model.partition(_LAYOUT)[0], None)
            start = self._start if found is None else f"{self._start}{_MARK}{found.identity[:_DIGITS]}/"
            self._starts[model] = start
        return start


class _Job:
    """A batch of LMCache, with one job of the queue per tenant."""

    def __init__(self, count: int) -> None:
        self.left = 1
        self.per_key = [False] * count
        self.error = ""


class Connector:
    """The client that LMCache's ``NativeConnectorL2Adapter`` drives.

    Parameters
    ----------
    target : str or list of str
        The store's devices, or ``serve:`` and the socket of ``adit kv serve``.
    size_gb : float
        GiB of a new file.
    namespace : str
        The KV's type and layout, which LMCache's keys lack, such as ``"bf16"``. Servers with different namespaces do
        not see each other's blocks.
    tenants : bool
        Whether each model is a tenant of the store, for quotas and counters. In a served store, all blocks belong to
        the tenant that the option ``tenant`` names.
    register_l1 : bool
        Whether to register LMCache's memory at its first buffer, so that blocks are not copied. Has no effect on a
        served store.
    weights : str, optional
        The place of the model's weights, if LMCache's name of the model does not give it or their revision: a folder, a
        file, or ``id@revision`` of the Hub's cache. Empty to put only the model's name in the keys.
    objects_max : int, optional
        Maximum number of blocks of a new file; by default one per 64 KiB, because LMCache does not tell their length.
    **options
        As for ``adit.Store``, or for ``adit.connect``.
    """

    def __init__(
        self,
        target: str | list[str],
        size_gb: float = 0,
        namespace: str = "",
        tenants: bool = True,
        register_l1: bool = False,
        weights: str | None = None,
        **options: Any,
    ) -> None:
        self.keys = Keys(namespace, weights)
        self.store = _engine.open_store(target, size_gb, **options)
        self._queue = self.store.queue()
        self._tenants = tenants and isinstance(self.store, Store)
        self._register_l1 = register_l1
        self._regions: list[Region] = []
        self._next = 0
        self._jobs: dict[int, _Job] = {}
        self._trouble = _engine.Trouble(_NAME)
        self._lock = threading.Lock()

    def event_fd(self) -> int:
        """Return the eventfd, which is readable once batches have ended."""
        return self._queue.event_fd()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Read blocks into buffers. A block of another length than its buffer is a miss."""
        self._see(memoryviews)
        lengths = [view.nbytes for view in memoryviews]
        with self._batch(len(keys)) as number:
            token = (number, "get", range(len(keys)), lengths)
            self._queue.submit_get_into(self.keys.of(keys), memoryviews, token=token)
        return number

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Store blocks."""
        self._see(memoryviews)
        owners: dict[str | None, list[int]] = defaultdict(list)
        for position, key in enumerate(keys):
            owners[self._tenant(key)].append(position)
        with self._batch(len(keys)) as number:
            job, begun = self._jobs[number], 0
            for owner, positions in (owners or {None: []}).items():
                token = (number, "set", positions, None)
                some = self.keys.of([keys[position] for position in positions])
                values = [memoryviews[position] for position in positions]
                try:
                    self._put(some, values, token, owner)
                except Error as why:
                    if begun == 0:
                        raise
                    # LMCache keeps the memory of begun requests until the batch ends.
                    job.error = job.error or str(why)
                else:
                    begun += 1
            job.left = begun
        return number

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Check which blocks exist."""
        with self._batch(len(keys)) as number:
            token = (number, "exists", range(len(keys)), None)
            self._queue.submit_exists(self.keys.of(keys), token=token)
        return number

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Remove blocks. A block already evicted counts as removed."""
        with self._batch(len(keys)) as number:
            token = (number, "delete", range(len(keys)), None)
            self._queue.submit_delete(self.keys.of(keys), token=token)
        return number

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """Return the batches that have ended.

        Returns
        -------
        list of tuple
            For each batch its number, whether all of it succeeded, the first error, and the result for each key. Misses
            and declined blocks are not errors.
        """
        completions: list[tuple[int, bool, str, list[bool] | None]] = []
        with self._lock:
            for (number, what, positions, lengths), results, failure in self._queue.drain():
                job = self._jobs[number]
                if failure is not None:
                    self._trouble.log(what, failure)
                    job.error = job.error or str(failure)
                for order, position in enumerate(positions):
                    job.per_key[position] = self._is_good(what, results, lengths, order)
                job.left -= 1
                if job.left == 0:
                    del self._jobs[number]
                    completions.append((number, not job.error, job.error, job.per_key))
        return completions

    def register(self, address: int, nbytes: int) -> None:
        """Register LMCache's memory, so that blocks in it are not copied."""
        region = _engine.register(self.store, address, nbytes)
        self._regions += [] if region is None else [region]

    def close(self) -> None:
        """Wait for the batches in progress and close the store."""
        self._queue.close()
        for region in self._regions:
            region.close()
        self.store.close()

    @staticmethod
    def _is_good(what: str, results: list[Any], lengths: list[int] | None, order: int) -> bool:
        if what == "delete":
            return results[order] is not None
        if lengths is not None:
            return bool(results[order] == lengths[order])
        return bool(results[order])

    @contextlib.contextmanager
    def _batch(self, count: int) -> Iterator[int]:
        """Number a batch under the lock and submit it; if its requests are refused, drop it."""
        with self._lock:
            self._next += 1
            number = self._next
            self._jobs[number] = _Job(count)
            try:
                yield number
            except BaseException:
                del self._jobs[number]
                raise

    def _put(
        self, keys: list[bytes], values: list[memoryview], token: object, tenant: str | None
    ) -> None:
        try:
            self._queue.submit_put(keys, values, token=token, tenant=tenant)
        except InvalidError as why:
            # A store has at most 255 tenants.
            self._trouble.log(f"making a tenant of {tenant!r}", why)
            self._queue.submit_put(keys, values, token=token)

    def _tenant(self, key: str) -> str | None:
        if not self._tenants:
            return None
        model = key.partition("@")[0]
        if len(model.encode()) <= _TENANT_BYTES:
            return model or None
        return hashlib.sha256(model.encode()).hexdigest()

    def _see(self, buffers: Sequence[memoryview]) -> None:
        """Register the memory around buffers, once."""
        if not self._register_l1 or not buffers:
            return
        self._register_l1 = False
        region = _engine.register_around(self.store, buffers[0], self._trouble)
        if region is not None:
            self._regions.append(region)
