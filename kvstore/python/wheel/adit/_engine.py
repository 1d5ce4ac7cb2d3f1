"""Common parts of the adapters for inference engines.

A load returns the right block or a miss: a block of another configuration has another key, a block of another length is
not loaded, and a block with a wrong checksum is a miss.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import logging
import os
import select
import time
from typing import TYPE_CHECKING, Any

from ._adit import Client, Region, Store, connect
from ._errors import Error, InvalidError, LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ._adit import Queue, _Target

logger = logging.getLogger("adit")

PAGE = 4096
# Prefixes of targets that are files or block devices.
_FILES = ("uring", "psync")
# Prefix of a target that is the socket of a server.
_SERVED = "serve:"
# Prefixes of all targets.
_KINDS = (*_FILES, "serve", "vfio", "vfio-user", "soft", "uring-cmd", "mmap", "null")
# ctypes creates and keeps a type for each length, so types are reused.
_ARRAYS: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}
# Minimum objects of a store, maximum objects of its one shard, and default bytes per object.
_OBJECTS_MIN, _OBJECTS_MAX, _OBJECT_NBYTES = 4096, (1 << 26) - 1, 64 << 10
# Seconds between messages about the same kind of failure.
_PATIENCE = 60.0


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or ``None`` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(engine: str, found: str | None, tried: Sequence[str]) -> None:
    """Log a warning unless this version of the engine was tried.

    Adapters call this before they import the engine, whose modules may have moved in another version.

    Parameters
    ----------
    engine : str
        The engine's name.
    found : str or None
        The engine's version, if known.
    tried : sequence of str
        Versions with which the adapter was tested.
    """
    if found not in tried:
        known = ", ".join(tried)
        logger.warning(
            "%s is version %s; its adapter was tried with %s: if it fails, use one of these",
            engine,
            found or "unknown",
            known,
        )


def open_store(
    target: _Target | Sequence[_Target],
    size_gb: float = 0,
    rank: int = 0,
    *,
    objects_max: int | None = None,
    block_nbytes: int = _OBJECT_NBYTES,
    **options: Any,
) -> Store | Client:
    """Open a store, formatting a new file first; or connect to a store that another process serves.

    Parameters
    ----------
    target : str, os.PathLike or list of them
        The store's devices, or ``serve:`` and the socket of ``adit kv serve``. ``{rank}`` stands for the process's
        rank.
    size_gb : float
        GiB of a new file. Existing files, other devices, and a served store must already be formatted.
    rank : int
        The process's rank.
    objects_max : int, optional
        Maximum number of objects of a new store. By default as many as fit at a length of ``block_nbytes``, and at
        least one per 64 KiB.
    block_nbytes : int
        Length of the shortest objects that the engine stores often.
    **options
        As for ``Store``, or for ``connect``.
    """
    given = [target] if isinstance(target, (str, os.PathLike)) else target
    targets = [_text_of(one).replace("{rank}", str(rank)) for one in given]
    if any(one.startswith(_SERVED) for one in targets):
        if len(targets) > 1:
            raise InvalidError(f"{', '.join(targets)}: a store that is served has one socket, and no other target")
        logger.info("connecting to %s: blocks are copied, as the server cannot use the engine's memory", *targets)
        return _looked_at(connect(targets[0].removeprefix(_SERVED), **options), targets)
    nbytes = _bytes_of(size_gb)
    paths = [path for path in map(_new_file, targets) if path is not None]
    if nbytes and len(paths) == len(targets):
        if objects_max is None:
            objects_max = _objects(nbytes * len(targets), block_nbytes)
        logger.info("formatting %s for %d objects", ", ".join(targets), objects_max)
        _format(targets, nbytes, objects_max, paths)
    return Store(targets, **options)


def _text_of(target: _Target) -> str:
    """Return a target as text. A path means a file or block device reached through the kernel."""
    if isinstance(target, str):
        return target
    path = os.fspath(target)
    if path.partition(":")[0] in _KINDS:
        raise InvalidError(f"the path {path} is the text of a target: give that as a str")
    if "," in path:
        raise InvalidError(f"the path {path} has a comma, which begins options of a target: give one without")
    return f"uring:{path}"


def _looked_at(store: Client, targets: list[str]) -> Client:
    """Log losses of a served store by damage to its journal. This process's own store logs them when it is opened."""
    stats = store.stats()
    lost, outdated = stats["journal_lost_blocks"], stats["journal_outdated_objects"]
    if lost or outdated:
        logger.warning(
            "%s: %d blocks of its journal could not be read, which may have replaced or deleted %d objects: these are "
            "misses, unless it was opened with keep_outdated; check the drive",
            ", ".join(targets),
            lost,
            outdated,
        )
    return store


def _bytes_of(size_gb: object) -> int:
    """Return a configured number of GiB in bytes, rounded down to whole pages."""
    is_number = isinstance(size_gb, (int, float)) and not isinstance(size_gb, bool)
    if is_number and (size_gb == 0 or 0 < size_gb < float("inf")):  # type: ignore[operator]
        return int(size_gb * (1 << 30)) // PAGE * PAGE  # type: ignore[operator]
    raise InvalidError(f"size_gb is {size_gb!r}: give GiB as a number above 0")


def _new_file(target: str) -> str | None:
    """Return the path of a target that is a missing file."""
    kind, _, rest = target.partition(":")
    path = rest.split(",")[0]
    return path if kind in _FILES and not os.path.exists(path) else None


def _objects(nbytes: int, block_nbytes: int) -> int:
    """Return how many blocks fit. Each takes whole pages and 0.3 KB of metadata."""
    pages = -(-min(block_nbytes, _OBJECT_NBYTES) // PAGE)
    return min(max(nbytes // (max(pages, 1) * PAGE), _OBJECTS_MIN), _OBJECTS_MAX)


def _format(targets: list[str], nbytes: int, objects_max: int, paths: list[str]) -> None:
    """Format a store in new files; on failure leave no file, because an existing one would not be formatted again."""
    try:
        Store.format(targets, size=nbytes, objects_max=objects_max)
    except Error:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        raise


def space(engine: str, **fields: object) -> bytes:
    """Return the first bytes of all keys of a configuration.

    Parameters
    ----------
    engine : str
        The engine's name.
    **fields
        Everything that must be equal for blocks to be interchangeable: model, type, rank, layout.
    """
    text = json.dumps([engine, fields], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).digest()[:16]


def overlay(address: int, nbytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Return an engine's memory as a buffer. The engine must keep it alive."""
    kind = _ARRAYS.get(nbytes)
    if kind is None:
        kind = _ARRAYS.setdefault(nbytes, ctypes.c_ubyte * nbytes)
    return kind.from_address(address)


def register(store: Store | Client, address: int, nbytes: int) -> Region | None:
    """Register the whole pages of an engine's memory.

    Parameters
    ----------
    store : Store or Client
    address, nbytes : int
        The memory.

    Returns
    -------
    Region or None
        ``None`` if blocks are copied: always with a connection, because a server can share only memory of
        ``Client.allocate``; with a store if the system refuses, which is logged.
    """
    if isinstance(store, Client):
        return None
    start = -(-address // PAGE) * PAGE
    length = (address + nbytes) // PAGE * PAGE - start
    if length <= 0:
        return None
    try:
        return store.register(overlay(start, length))
    except Error as why:
        logger.warning("the engine's memory is not registered, so blocks are copied: %s", why)
        return None


def address_of(buffer: memoryview) -> int:
    """Return the address of a writable buffer's first byte."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer))


def mapping_of(address: int) -> tuple[int, int] | None:
    """Return the start and length of the writable mapping around an address, unless it is a heap or a stack."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            bounds, rights = line.split()[:2]
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            if start <= address < end:
                is_whole = rights.startswith("rw") and not line.rstrip().endswith("]")
                return (start, end - start) if is_whole else None
    return None


def register_around(store: Store | Client, buffer: memoryview, trouble: Trouble) -> Region | None:
    """Register the mapping around a buffer; return ``None`` if that fails, which is logged."""
    try:
        found = mapping_of(address_of(buffer))
        return register(store, *found) if found else None
    except (Error, OSError, TypeError) as why:
        trouble.log("registering the engine's memory", why)
        return None


def close_regions(regions: list[Region], trouble: Trouble) -> None:
    """Return registered memory to its engine. Memory in use by a request returns when the store closes."""
    while regions:
        try:
            regions.pop().close()
        except Error as why:
            trouble.log("giving back the engine's memory", why)


class Trouble:
    """Logs failures, each kind at most once a minute. The loss of a server is logged by the connection itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[type[Exception], float] = {}

    def log(self, what: str, why: Exception) -> None:
        """Log a failure with its reason."""
        if isinstance(why, LostError):
            return
        now = time.monotonic()
        if now - self._last.get(type(why), -_PATIENCE) >= _PATIENCE:
            self._last[type(why)] = now
            logger.warning("%s: %s failed: %s", self._name, what, why)


def each(
    store: Store | Client, submit: Callable[[Queue], int], trouble: Trouble, what: str
) -> list[Any]:
    """Run one job and return its results, with ``None`` for each failed request."""
    try:
        with store.queue() as queue:
            submit(queue)
            poll = select.poll()
            poll.register(queue.event_fd(), select.POLLIN)
            while not (ended := queue.drain()):
                poll.poll()
    except Error as why:
        trouble.log(what, why)
        return []
    ((_, results, failure),) = ended
    if failure is not None:
        trouble.log(what, failure)
    return results


def are_all(results: list[Any], wanted: Iterable[object], count: int) -> list[bool]:
    """Return for each result whether it is that of success; if the job failed as a whole, none is."""
    if not results:
        return [False] * count
    return [result == want for result, want in zip(results, wanted)]
