"""Memory as engines have it for transfers: of huge pages, where the system has them, or not."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

HUGE = 2 << 20


KINDS = ("huge", "small", "odd")


def room(nbytes: int, kind: str) -> Any:
    """Return bytes in huge pages, in ordinary ones, or in ones that cannot become huge: a file's, askew in its mapping."""
    if kind == "huge":
        return huge(nbytes)
    if kind == "small":
        return np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)
    file = os.memfd_create("pages")
    os.ftruncate(file, nbytes + 4 * mmap.PAGESIZE)
    for offset in (mmap.PAGESIZE, 2 * mmap.PAGESIZE):
        raw = np.frombuffer(mmap.mmap(file, nbytes, offset=offset), dtype=np.uint8)
        if (raw.ctypes.data - offset) % HUGE:
            break
    os.close(file)
    return raw


def huge(nbytes: int) -> Any:
    """Return bytes that begin with a huge page."""
    room = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(room, dtype=np.uint8)
    skip = -raw.ctypes.data % HUGE
    return raw[skip : skip + nbytes]
