"""LMCache's storage plug-in, made by LMCache's storage manager."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import BLOCK_BYTES, content, contents
from lmcache_plugin_engine import NAME, TOKEN_BYTES, LMCachePlugin, config

BYTES = BLOCK_BYTES["lmcache-plugin"]
# More than LMCache's memory has room for.
MANY = 300


def start(tmp_path: Path, **params: Any) -> LMCachePlugin:
    params = {"target": f"uring:{tmp_path / 'kv.img'}", "size_gb": 0.0625, **params}
    return LMCachePlugin(config(**params), BYTES)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LMCachePlugin]:
    """Return LMCache over a store, closed at the end."""
    engine = start(tmp_path)
    yield engine
    engine.close()


def give_back(chunks: list[Any]) -> None:
    for chunk in chunks:
        if chunk is not None:
            chunk.ref_count_down()


def test_the_prefix_before_the_first_miss_is_read(engine: LMCachePlugin) -> None:
    engine.store(contents("lmcache-plugin", range(4)))
    keys = [engine.key(number) for number in range(4)]
    assert engine.backend.batched_contains(keys) == 4
    assert engine.manager.batched_remove(keys[2:3], [NAME]) == 1
    assert engine.backend.batched_contains(keys) == 2 and not engine.backend.contains(keys[2])
    read = engine.backend.batched_get_blocking(keys)
    assert [chunk is not None for chunk in read] == [True, True, False, False]
    give_back(read)
    assert engine.backend.get_blocking(keys[2]) is None
    assert asyncio.run(engine.backend.batched_async_contains("lookup", keys)) == 2
    read = asyncio.run(engine.backend.batched_get_non_blocking("lookup", keys))
    for number, chunk in enumerate(read):
        same = torch.equal(
            chunk.tensor.flatten().view(torch.uint8), content("lmcache-plugin", number)
        )
        assert same
    assert len(read) == 2
    give_back(read)


def test_the_last_chunk_of_a_prompt_has_fewer_tokens(engine: LMCachePlugin) -> None:
    tokens = engine.metadata.chunk_size // 2 - 1
    part = content("lmcache-plugin", 0)[: tokens * TOKEN_BYTES]
    assert engine.store({0: part}) == [0]
    for _ in range(MANY):
        (read,) = engine.manager.batched_get([engine.key(0)], NAME)
        assert read.get_shape() == engine.metadata.get_shapes(tokens)[0]
        assert torch.equal(read.tensor.flatten().view(torch.uint8), part)
        read.ref_count_down()


def test_neither_reads_nor_misses_keep_memory(engine: LMCachePlugin) -> None:
    engine.store(contents("lmcache-plugin", range(2)))
    engine.backend.store.put(engine.backend._names([engine.key(2)])[0], b"no chunk")
    keys = [engine.key(number) for number in range(3)]
    for _ in range(MANY):
        read = engine.backend.batched_get_blocking(keys)
        assert [chunk is not None for chunk in read] == [True, True, False]
        give_back(read)
    assert engine.manager.memcheck()


def test_without_memory_for_all_chunks_the_first_are_read(engine: LMCachePlugin) -> None:
    numbers = range(8)
    engine.store(contents("lmcache-plugin", numbers))
    held = []
    while (chunk := engine.backend._allocate(engine.metadata.chunk_size)) is not None:
        held.append(chunk)
    give_back(held[:3])
    read = engine.backend.batched_get_blocking([engine.key(number) for number in numbers])
    assert [chunk is not None for chunk in read] == [True] * 3 + [False] * 5
    give_back(read + held[3:])


def test_a_pinned_chunk_stays(tmp_path: Path) -> None:
    engine = start(tmp_path, capacity_bytes=4 << 20)
    first = engine.key(0)
    engine.store(contents("lmcache-plugin", [0]))
    assert engine.backend.contains(first, pin=True) and not engine.backend.pin(engine.key(999))
    engine.store(contents("lmcache-plugin", range(1, 17)))
    engine.store(contents("lmcache-plugin", range(17, 33)))
    assert engine.backend.contains(first) and not engine.backend.contains(engine.key(1))
    assert engine.backend.unpin(first) and not engine.backend.unpin(first)
    engine.store(contents("lmcache-plugin", range(33, 65)))
    assert not engine.backend.contains(first)
    engine.close()


def test_a_chunk_that_is_there_is_not_stored_again(engine: LMCachePlugin) -> None:
    engine.store(contents("lmcache-plugin", range(4)))
    puts = engine.backend.store.stats()["puts"]
    assert engine.store(contents("lmcache-plugin", range(4))) == list(range(4))
    assert engine.backend.store.stats()["puts"] == puts == 4


def test_each_stored_chunk_is_told_of(
    engine: LMCachePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def tell(key: Any) -> None:
        told.append(key)
        raise RuntimeError("LMCache's")

    chunk, key = engine.allocate(engine.metadata.chunk_size), engine.key(0)
    (future,) = engine.backend.batched_submit_put_task([key], [chunk], None, tell)
    assert future.result(30) == [True]
    engine.backend._futures.close()
    assert told == [key] and not engine.backend.exists_in_put_tasks(key)
    assert "LMCache's callback failed" in caplog.text
    chunk.ref_count_down()


def test_long_keys_are_kept(engine: LMCachePlugin) -> None:
    engine.metadata.model_name = "m" * 600
    assert engine.store(contents("lmcache-plugin", range(2))) == [0, 1]
    assert list(engine.load(range(3))) == [0, 1]


def test_what_cannot_be_stored_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = start(tmp_path, capacity_bytes=1 << 20)
    number = 0
    while engine.store(contents("lmcache-plugin", [number])):
        assert engine.backend.pin(engine.key(number))
        number += 1
    assert 1 <= number <= 4
    assert "storing chunks failed" in caplog.text
    engine.backend.store.close()
    assert engine.backend.batched_contains([engine.key(0)]) == 0
    assert engine.backend.batched_get_blocking([engine.key(0)]) == [None]
    assert engine.backend.batched_submit_put_task([engine.key(0)], [object()]) is None
    assert engine.backend.remove(engine.key(0)) is False and "closed" in caplog.text
    engine.close()


def test_registered_memory_is_not_copied(tmp_path: Path) -> None:
    engine = start(tmp_path, register_l1=True)
    engine.store(contents("lmcache-plugin", range(4)))
    assert list(engine.load(range(4))) == list(range(4))
    assert engine.backend.store.stats()["copied_bytes"] == 0
    engine.close()


def test_configurations_that_cannot_work_are_refused(tmp_path: Path) -> None:
    from adit.lmcache_plugin import AditBackend

    settings = config(target=f"uring:{tmp_path / 'kv.img'}")
    with pytest.raises(ValueError, match="max_local_cpu_size"):
        AditBackend(settings, None, None)
    settings.use_layerwise = True
    with pytest.raises(ValueError, match="use_layerwise"):
        AditBackend(settings, None, object())
    with pytest.raises(ValueError, match="'target', such as uring:"):
        AditBackend(config(), None, object())


def test_workers_have_stores_of_their_own(tmp_path: Path) -> None:
    target = f"uring:{tmp_path}/kv-{{rank}}.img"
    workers = [
        LMCachePlugin(config(target=target, size_gb=0.0625), BYTES, rank=rank, world=2)
        for rank in (0, 1)
    ]
    assert [worker.store(contents("lmcache-plugin", [0])) for worker in workers] == [[0], [0]]
    for worker in workers:
        worker.close()
    assert {path.name for path in tmp_path.iterdir()} == {"kv-0.img", "kv-1.img"}
