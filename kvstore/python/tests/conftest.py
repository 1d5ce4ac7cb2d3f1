"""A store on a file of its own for each test."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import adit

Rows = npt.NDArray[np.uint8]


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Return the target of a formatted store."""
    target = f"uring:{tmp_path / 'kv.img'}"
    adit.Store.format(target, size=128 << 20, shards=2)
    return target


@pytest.fixture
def store(target: str) -> Iterator[adit.Store]:
    """Return an open store."""
    with adit.Store(target) as store:
        yield store


def pool(rows: int, row_bytes: int) -> Rows:
    """Return an engine's pool: whole pages of memory, as rows."""
    memory = mmap.mmap(-1, rows * row_bytes)
    return np.frombuffer(memory, dtype=np.uint8).reshape(rows, row_bytes)


def noise(rows: int, row_bytes: int, seed: int = 1) -> Rows:
    """Return rows of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), dtype=np.uint8)
