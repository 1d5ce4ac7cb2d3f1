"""What the adapters for inference engines share.

A block is right or a miss: one that another configuration wrote has another key, one of another length is not loaded,
and one whose checksum is wrong is none.
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
# Targets that are files or block devices.
_FILES = ("uring", "psync")
# Begins a target that is the socket of a server, in place of a device.
_SERVED = "serve:"
# What targets begin with.
_KINDS = (*_FILES, "serve", "vfio", "vfio-user", "soft", "uring-cmd", "mmap", "null")
# ctypes makes a type for each length and keeps it: one of each is enough.
_ARRAYS: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}
# A store holds at least as many objects, at most as many in its one shard, and one for as many bytes unless told otherwise.
_OBJECTS_MIN, _OBJECTS_MAX, _OBJECT_NBYTES = 4096, (1 << 26) - 1, 64 << 10
# Seconds between messages about the same trouble.
_PATIENCE = 60.0


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or ``None`` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(engine: str, found: str | None, tried: Sequence[str]) -> None:
    """Log a warning unless this version of the engine was tried.

    Adapters call it before they import the engine, whose modules may be elsewhere in another version.

    Parameters
    ----------
    engine : str
        Its name.
    found : str or None
        Its version, if it is known.
    tried : sequence of str
        Those that the adapter is known to work with.
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
    """Open a store, and make it before if it is to be in a new file; or connect to one that another process serves.

    Parameters
    ----------
    target : str, os.PathLike or list of them
        The store's devices, or ``serve:`` and the socket of ``adit kv serve``. ``{rank}`` in it stands for the process's
        rank.
    size_gb : float
        GiB of a new file. Files that are there, other devices, and the store of a server have to be formatted.
    rank : int
        The process's rank.
    objects_max : int, optional
        Number of objects that a new store holds. Default as many as there is room for if they are ``block_nbytes`` long,
        and at least one for each 64 KiB.
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
    """Return a target as text. A path is that of a file or block device of the kernel's."""
    if isinstance(target, str):
        return target
    path = os.fspath(target)
    if path.partition(":")[0] in _KINDS:
        raise InvalidError(f"the path {path} is the text of a target: give that as a str")
    if "," in path:
        raise InvalidError(f"the path {path} has a comma, which begins options of a target: give one without")
    return f"uring:{path}"


def _looked_at(store: Client, targets: list[str]) -> Client:
    """Log what damage to its journal cost a store that is served. One of this process logs that when it is opened."""
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
    """Return whole pages of a number of GiB, which comes from a configuration."""
    is_number = isinstance(size_gb, (int, float)) and not isinstance(size_gb, bool)
    if is_number and (size_gb == 0 or 0 < size_gb < float("inf")):  # type: ignore[operator]
        return int(size_gb * (1 << 30)) // PAGE * PAGE  # type: ignore[operator]
    raise InvalidError(f"size_gb is {size_gb!r}: give GiB as a number above 0")


def _new_file(target: str) -> str | None:
    """Return the path of a target that is a file of the kernel's and is not there yet."""
    kind, _, rest = target.partition(":")
    path = rest.split(",")[0]
    return path if kind in _FILES and not os.path.exists(path) else None


def _objects(nbytes: int, block_nbytes: int) -> int:
    """Return how many blocks there is room for. Each takes whole pages, and metadata 0.3 KB."""
    pages = -(-min(block_nbytes, _OBJECT_NBYTES) // PAGE)
    return min(max(nbytes // (max(pages, 1) * PAGE), _OBJECTS_MIN), _OBJECTS_MAX)


def _format(targets: list[str], nbytes: int, objects_max: int, paths: list[str]) -> None:
    """Make a store in new files, or no file: one that is there would not be formatted the next time."""
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
        Its name.
    **fields
        All that has to be equal for two blocks to be the same: model, type, rank, layout.
    """
    text = json.dumps([engine, fields], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).digest()[:16]


def overlay(address: int, nbytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Return memory of an engine's as a buffer. The engine keeps it alive."""
    kind = _ARRAYS.get(nbytes)
    if kind is None:
        kind = _ARRAYS.setdefault(nbytes, ctypes.c_ubyte * nbytes)
    return kind.from_address(address)


def register(store: Store | Client, address: int, nbytes: int) -> Region | None:
    """Register an engine's memory, so far as it is whole pages.

    Parameters
    ----------
    store : Store or Client
    address, nbytes : int
        The memory.

    Returns
    -------
    Region or None
        ``None`` if blocks are copied: of a connection always, as a server cannot share the pages of memory that is not
        ``Client.allocate``'s; of a store if the system refuses, which is logged.
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
    """Return the start and the length of the writable mapping that an address is in, unless it is a heap or a stack."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            bounds, rights = line.split()[:2]
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            if start <= address < end:
                is_whole = rights.startswith("rw") and not line.rstrip().endswith("]")
                return (start, end - start) if is_whole else None
    return None


def register_around(store: Store | Client, buffer: memoryview, trouble: Trouble) -> Region | None:
    """Register the mapping that a buffer is in; return ``None`` if that cannot be, which is logged."""
    try:
        found = mapping_of(address_of(buffer))
        return register(store, *found) if found else None
    except (Error, OSError, TypeError) as why:
        trouble.log("registering the engine's memory", why)
        return None


def close_regions(regions: list[Region], trouble: Trouble) -> None:
    """Give registered memory back to its engine. What a request still uses goes back with the store's end."""
    while regions:
        try:
            regions.pop().close()
        except Error as why:
            trouble.log("giving back the engine's memory", why)


class Trouble:
    """Logs failures, each kind at most once a minute. A connection logs itself that its server is lost."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[type[Exception], float] = {}

    def log(self, what: str, why: Exception) -> None:
        """Log that something failed, and why."""
        if isinstance(why, LostError):
            return
        now = time.monotonic()
        if now - self._last.get(type(why), -_PATIENCE) >= _PATIENCE:
            self._last[type(why)] = now
            logger.warning("%s: %s failed: %s", self._name, what, why)


def each(
    store: Store | Client, submit: Callable[[Queue], int], trouble: Trouble, what: str
) -> list[Any]:
    """Make one job and return its results; that of a request that failed is ``None``."""
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
    """Compare results with those of success; of a job that failed as a whole, all are failures."""
    if not results:
        return [False] * count
    return [result == want for result, want in zip(results, wanted)]
