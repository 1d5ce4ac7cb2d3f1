"""Memory as engines have it for transfers: of huge pages, where the system has them."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

HUGE = 2 << 20


def huge(nbytes: int) -> Any:
    """Return bytes that begin with a huge page."""
    room = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(room, dtype=np.uint8)
    skip = -raw.ctypes.data % HUGE
    return raw[skip : skip + nbytes]
