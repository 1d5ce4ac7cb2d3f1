"""LMCache's multi-process server with the store as `plugin` and as `native_plugin`: locks, keys and memory tags."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import BLOCK_BYTES, content, contents
from lmcache.v1.distributed import api
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache_engine import PATIENCE_MS, LMCache, adit, adit_l2

BYTES = BLOCK_BYTES["lmcache"]
MEMORY_BYTES = 64 << 20
LAYOUT = api.MemoryLayoutDesc(shapes=[torch.Size([BYTES // 2])], dtypes=[torch.bfloat16])
KEYS = [api.ObjectKey(number.to_bytes(32, "big"), "model", 0) for number in range(8)]


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Return the file of a store, removed at the end: pytest keeps folders of several runs."""
    path = tmp_path / "kv.img"
    yield path
    path.unlink(missing_ok=True)


def test_both_ways_have_the_same_blocks(image: Path) -> None:
    params = {"target": f"uring:{image}", "size_gb": 0.125, "namespace": "bf16"}
    for first, second, numbers in ((adit, adit_l2, range(4)), (adit_l2, adit, range(4, 8))):
        engine = LMCache(first(**params), BYTES, 8)
        assert engine.store(contents("lmcache", numbers)) == list(numbers)
        engine.close()
        engine = LMCache(second(**params), BYTES, 8)
        loaded = engine.load(numbers)
        assert list(loaded) == list(numbers)
        for number, block in loaded.items():
            assert torch.equal(block, content("lmcache", number))
        engine.close()


def test_a_block_that_was_looked_up_stays(image: Path) -> None:
    engine = LMCache(adit_l2(f"uring:{image}", size_gb=0.0625), BYTES, 8)
    engine.store(contents("lmcache", range(4)))
    keys = engine.keys(range(2))
    task = engine.adapter.submit_lookup_and_lock_task(keys, {})
    bits = until(lambda: engine.adapter.query_lookup_and_lock_result(task))
    assert bits.test(0) and bits.test(1)
    for first in range(100, 500, 4):
        engine.store(contents("lmcache", range(first, first + 4)))
    objects = engine.objects(4)
    assert engine.load_objects(range(4), objects) == [True, True, False, False]
    assert torch.equal(objects[1].tensor.view(torch.uint8), content("lmcache", 1))
    engine.adapter.submit_unlock(keys)
    for first in range(500, 900, 4):
        engine.store(contents("lmcache", range(first, first + 4)))
    assert engine.lookup(range(4)) == []
    engine.close()


def until(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not (answer := ask()):
        assert time.monotonic() < end, "LMCache does not end"
        time.sleep(0.001)
    return answer


class Server:
    """What LMCache's server keeps blocks with: its memory, and L2 adapters behind it."""

    def __init__(self, *adapters: dict[str, Any]) -> None:
        # Words of `--l2-adapter`.
        words = argparse.Namespace(l2_adapter=[json.dumps(each) for each in adapters])
        memory = L1MemoryManagerConfig(MEMORY_BYTES, use_lazy=False)
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory),
                eviction_config=EvictionConfig("LRU"),
                l2_adapter_config=parse_args_to_l2_adapters_config(words),
            )
        )

    def store(self, keys: list[api.ObjectKey]) -> None:
        """Write blocks to memory, and wait until all adapters have them."""
        written = self.manager.reserve_write(keys, LAYOUT)
        for key, held in written.items():
            held.tensor.view(torch.uint8).copy_(content("lmcache", KEYS.index(key)))
        self.manager.finish_write(keys)
        wanted = BYTES * len(keys)
        until(lambda: all(each.get_usage().total_bytes_used == wanted for _, each in self.manager.l2_adapters()))

    def prefetch(self, keys: list[api.ObjectKey], **filters: Any) -> list[int]:
        """Have blocks in memory again; return those that came from the adapters."""
        self.manager.clear(force=True)
        spec = api.PrefetchTaskSpec([api.GroupedObjectKeys(keys, 0, LAYOUT)], **filters)
        handle = self.manager.submit_prefetch_task(spec)
        result = until(lambda: self.manager.query_prefetch_status(handle))
        (bits,) = result.l2_hit_cells
        hits = [place for place in range(len(keys)) if bits.test(place)]
        if hits:
            self.manager.finish_read_prefetched([keys[place] for place in hits])
        return hits


def test_lmcaches_server_stores_and_loads(image: Path) -> None:
    server = Server(adit_l2(f"uring:{image}", size_gb=0.125))
    server.store(KEYS[:4])
    assert server.prefetch(KEYS[:6]) == [0, 1, 2, 3]
    (status,) = server.manager.report_status()["l2_adapters"]
    assert status["is_healthy"] and status["stored_object_count"] == 4
    server.manager.close()


@pytest.mark.skipif(not hasattr(api, "MemoryTags"), reason="memory tags are of LMCache 0.5.7")
@pytest.mark.parametrize(
    ("kind", "shared", "place"), [(adit_l2, False, "LOCAL"), (adit_l2, True, "REMOTE"), (adit, False, "REMOTE")]
)
def test_what_asks_for_local_storage_has_the_plugin(image: Path, kind: Any, shared: bool, place: str) -> None:
    server = Server(kind(f"uring:{image}", size_gb=0.125) | {"shared": shared})
    server.store(KEYS[:4])
    for residency in api.MemoryResidency:
        tags = api.MemoryTags(api.MemorySegment.STORAGE, residency)
        hits = server.prefetch(KEYS[:4], allowed_l2_memory_tags=frozenset({tags}))
        assert hits == ([0, 1, 2, 3] if residency.name == place else []), residency
    server.manager.close()
