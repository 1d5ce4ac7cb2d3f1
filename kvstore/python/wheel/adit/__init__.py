"""An object store for the KV caches of large language models, on NVMe drives and files.

>>> import adit, numpy
>>> adit.Store.format("uring:kv.img", size=64 << 20)            # doctest: +SKIP
>>> with adit.Store("uring:kv.img") as store:                   # doctest: +SKIP
...     store.put("block/1", numpy.arange(1000))
...     again = numpy.empty(1000, dtype=int)
...     store.get_into("block/1", again)

A read returns exactly the bytes that were put, or ``None``. Keys are bytes or text; values are objects with a buffer,
such as ``bytes``, ``memoryview`` and NumPy arrays, torch tensors on the CPU, and other arrays with DLPack. While a call
waits, other threads run, and a signal handler that raises (Ctrl-C) ends the wait.
"""

from ._adit import BlocksWriter, Client, Layout, Lease, Queue, Region, Store, __version__, connect
from ._errors import (
    BadBufferError,
    ClosedError,
    ConflictError,
    DeadlineError,
    DeclinedError,
    DeviceError,
    Error,
    ForkedError,
    FullError,
    InvalidError,
    InvalidKeyError,
    LostError,
    MediaError,
    NoSpaceError,
    QuotaError,
    RefusedError,
)
from ._futures import Aio, Futures
from ._streams import Reader

__all__ = [
    "Aio",
    "BadBufferError",
    "BlocksWriter",
    "Client",
    "ClosedError",
    "ConflictError",
    "DeadlineError",
    "DeclinedError",
    "DeviceError",
    "Error",
    "ForkedError",
    "FullError",
    "Futures",
    "InvalidError",
    "InvalidKeyError",
    "Layout",
    "Lease",
    "LostError",
    "MediaError",
    "NoSpaceError",
    "Queue",
    "QuotaError",
    "Reader",
    "RefusedError",
    "Region",
    "Store",
    "__version__",
    "connect",
]
