"""One rank of an engine: a process with SGLang's adapter, on a store that all ranks share.

Its arguments are the server's socket, its number, the number of ranks, and "mla" if the ranks have the same KV. It stores
its pages if they are its to store, says so, and reads them when a line comes in.
"""

from __future__ import annotations

import importlib
import sys

import engines
import numpy as np
import pytest
from conftest import noise, pool
from engines import HiCacheStorageConfig, HostPool

PAGES, HALF = 16, 16 << 10
KEYS = [f"{number:064x}" for number in range(PAGES)]


def main(socket: str, rank: int, ranks: int, is_mla: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        engines.sglang(patch)
        storage = importlib.import_module("adit.sglang").AditStorage
    config = {"target": f"serve:{socket}", "store_options": {"pool_bytes": 1 << 20}}
    host = HostPool(pool(2 * PAGES, HALF).reshape(2, PAGES, HALF))
    mine = storage(HiCacheStorageConfig(config, tp_rank=rank, tp_size=ranks, is_mla_model=is_mla))
    mine.register_mem_pool_host(host)
    there = noise(2 * PAGES, HALF, 0 if is_mla else rank).reshape(2, PAGES, HALF)
    tokens = np.arange(PAGES * HostPool.page_size)
    if rank == 0 or not is_mla:
        host.array[:] = there
        assert mine.batch_set_v1(KEYS, tokens) == [True] * PAGES
        host.array[:] = 0
    print("stored", flush=True)
    assert sys.stdin.readline() == "read\n"
    for _ in range(20):
        assert mine.batch_exists(KEYS) == PAGES
        assert mine.batch_get_v1(KEYS, tokens) == [True] * PAGES
        assert np.array_equal(host.array, there)
        host.array[:] = 0
    mine.close()
    print("read", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["mla"])
