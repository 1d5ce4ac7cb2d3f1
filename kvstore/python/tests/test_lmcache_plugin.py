"""The interface of LMCache's storage plug-ins."""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Served, pool, until
from engines import (
    ChunkKey,
    LMCacheMetadata,
    LocalCpu,
    MemoryFormat,
    lmcache_config,
    lmcache_plugin,
)
from test_lmcache import damage
from test_weights import model

import adit

Make = Callable[..., Any]
KEYS = [ChunkKey(number) for number in range(8)]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Return what makes plug-ins on one drive; none keeps LMCache's memory."""
    lmcache_plugin(monkeypatch)
    module = importlib.import_module("adit.lmcache_plugin")
    memories: list[LocalCpu] = []

    def make(
        room: int = 8,
        namespace: str = "",
        register_l1: bool = False,
        target: str = f"uring:{tmp_path / 'kv.img'}",
        **meta: Any,
    ) -> Any:
        memories.append(LocalCpu(room))
        config = lmcache_config(
            target=target, size_gb=0.125, namespace=namespace, register_l1=register_l1
        )
        return module.AditBackend(config, LMCacheMetadata(**meta), memories[-1])

    yield make
    assert all(memory.used == 0 for memory in memories)


def chunk(plugin: Any, number: int, tokens: int = 16) -> Any:
    """Return a chunk with content of its own, in LMCache's memory."""
    meta = plugin.metadata
    made = plugin.local_cpu_backend.allocate(meta.get_shapes(tokens), meta.get_dtypes())
    made.array[:] = np.random.default_rng(number).random(made.array.shape)
    return made


def store(plugin: Any, *numbers: int, tokens: int = 16) -> list[int]:
    """Store chunks as LMCache does; return those that were told of."""
    told: list[int] = []
    chunks = [chunk(plugin, number, tokens) for number in numbers]
    keys = [KEYS[number] for number in numbers]
    plugin.batched_submit_put_task(keys, chunks, None, lambda key: told.append(key.number))
    for each in chunks:
        each.ref_count_down()
    end = time.monotonic() + 30
    while any(plugin.exists_in_put_tasks(key) for key in keys):
        assert time.monotonic() < end
        time.sleep(0.001)
    plugin._futures.exists(b"after the callbacks").result(30)
    return told



def test_a_new_store_has_room_for_as_many_chunks_as_fit(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make(chunk_size=8).close()
    assert "for 16384 objects" in caplog.text, "a chunk has 6 KiB, which takes 8"


def load(plugin: Any, *numbers: int, tokens: int = 16) -> list[bool]:
    """Load chunks, check what comes, and say which came."""
    read = plugin.batched_get_blocking([KEYS[number] for number in numbers])
    for number, one in zip(numbers, read):
        if one is not None:
            wanted = chunk(plugin, number, tokens)
            assert one.array.shape == wanted.array.shape and (one.array == wanted.array).all()
            wanted.ref_count_down()
            one.ref_count_down()
    return [one is not None for one in read]


def test_chunks_come_back_after_a_restart(make: Make) -> None:
    plugin = make()
    assert load(plugin, 0, 1) == [False, False] and str(plugin) == "AditBackend"
    assert store(plugin, 0, 1, 2) == [0, 1, 2] and store(plugin, 1) == []
    assert plugin.get_blocking(KEYS[5]) is None
    plugin.close()
    plugin = make()
    assert load(plugin, 0, 1, 2, 3) == [True, True, True, False]
    assert plugin.batched_contains(KEYS) == 3 and plugin.contains(KEYS[2])
    assert asyncio.run(plugin.batched_async_contains("lookup", KEYS)) == 3
    assert plugin.batched_remove(KEYS[1:2]) == 1 and not plugin.remove(KEYS[1])
    assert load(plugin, 0, 1, 2) == [True, False, False], "the prefix before a miss"
    (only,) = asyncio.run(plugin.batched_get_non_blocking("lookup", KEYS))
    only.ref_count_down()
    plugin.close()


def test_other_configurations_have_other_chunks(make: Make) -> None:
    plugin = make()
    store(plugin, 0)
    plugin.close()
    changes: list[dict[str, Any]] = [
        {"layers": 4},
        {"dtype": "int16"},
        {"chunk_size": 8},
        {"use_mla": True},
        {"namespace": "other"},
    ]
    for change in changes:
        plugin = make(**change)
        assert not plugin.contains(KEYS[0]), change
        plugin.close()
    plugin = make()
    assert plugin.contains(KEYS[0]) and not plugin.contains(ChunkKey(0, "another"))
    assert not plugin.contains(ChunkKey(0, "m" * 600))
    plugin.close()


def test_other_weights_at_the_same_path_find_nothing(make: Make, tmp_path: Path) -> None:
    folder = model(tmp_path / "tiny")
    plugin = make(model_name=str(folder))
    store(plugin, 0)
    plugin.close()
    plugin = make(model_name=str(folder))
    assert plugin.contains(KEYS[0])
    plugin.close()
    shutil.rmtree(folder)
    model(folder, seed=7)
    plugin = make(model_name=str(folder))
    assert not plugin.contains(KEYS[0])
    plugin.close()


def test_a_chunk_with_fewer_tokens_keeps_its_shape(make: Make) -> None:
    plugin = make()
    store(plugin, 0, 1)
    store(plugin, 2, tokens=5)
    assert load(plugin, 2, tokens=5) == [True]
    plugin.store.put(plugin._names(KEYS[3:4])[0], bytes(100))
    assert load(plugin, 3) == [False], "these are no tokens"
    plugin.close()


def test_without_memory_for_all_the_first_chunks_are_read(make: Make) -> None:
    plugin = make(room=4)
    store(plugin, 0, 1, 2)
    store(plugin, 3)
    held = chunk(plugin, 7)
    read = plugin.batched_get_blocking(KEYS[:4])
    assert [one is not None for one in read] == [True, True, True, False]
    for one in [held, *read[:3]]:
        one.ref_count_down()
    plugin.close()


def test_a_corrupt_chunk_is_a_miss(make: Make, tmp_path: Path) -> None:
    plugin = make()
    store(plugin, 0, 1, 2)
    block = chunk(plugin, 1)
    plugin.close()
    damage({"target": f"uring:{tmp_path / 'kv.img'}"}, block.array.tobytes())
    block.ref_count_down()
    plugin = make()
    assert load(plugin, 0, 1, 2) == [True, False, False] and store(plugin, 1) == [1]
    assert load(plugin, 0, 1, 2) == [True] * 3
    plugin.close()


def leased(plugin: Any, count: int) -> bool:
    """Wait until leases hold so many chunks; those that two hold count twice."""

    def is_so() -> bool:
        # Releases of many leases wait in the client for room, which any request finds.
        plugin.store.exists(b"none")
        return bool(plugin.store.stats()["leased"] == count)

    until(is_so)
    return True


def test_pins_are_counted_and_end(make: Make) -> None:
    plugin = make()
    store(plugin, 0, 1, 2)
    # Two requests pin the same chunks, the second of them one more.
    assert plugin.batched_contains([*KEYS[:2], KEYS[5]], pin=True) == 2
    assert plugin.batched_contains(KEYS[:5], pin=True) == 3 and leased(plugin, 5)
    assert len(plugin._pins._lookups) == 2, "a lease for each lookup, not for each chunk"
    assert plugin.unpin(KEYS[0]) and plugin.unpin(KEYS[1]) and leased(plugin, 3)
    assert all(plugin.unpin(key) for key in KEYS[:3]) and leased(plugin, 0)
    assert not plugin.unpin(KEYS[0]) and not plugin._pins and not plugin._pins._lookups
    assert plugin.pin(KEYS[0]) and plugin.pin(KEYS[0]) and not plugin.pin(KEYS[5])
    assert plugin.unpin(KEYS[0]) and leased(plugin, 1)
    assert plugin.remove(KEYS[0]) and not plugin.unpin(KEYS[0]) and leased(plugin, 0)
    # Those that LMCache forgets end.
    assert plugin.batched_contains(KEYS[1:3], pin=True) == 2 and leased(plugin, 2)
    (forgotten,) = plugin._pins._lookups
    forgotten.end = 0.0
    del forgotten
    assert plugin.pin(KEYS[1]) and list(plugin._pins._pins) == plugin._names(KEYS[1:2])
    assert leased(plugin, 1)
    plugin.close()
    assert not plugin._pins and not plugin._pins._lookups


@pytest.fixture(params=["the store's", "the client's"])
def limited(request: pytest.FixtureRequest, make: Make, tmp_path: Path) -> Iterator[Any]:
    """Return a plug-in that meets the store's limit of leases, or first the server's limit for a client."""
    if request.param == "the store's":
        yield make()
        return
    target = f"uring:{tmp_path / 'many.img'}"
    adit.Store.format(target, size=128 << 20, objects_max=50_000)
    server = Served(target, tmp_path / "kv.sock")
    yield make(target=f"serve:{server.socket}")
    server.stop()


def test_chunks_are_found_when_no_more_can_be_pinned(
    limited: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = limited
    store(plugin, 0, 1)
    assert plugin.batched_contains(KEYS[:2], pin=True) == 2
    name = plugin._names(KEYS[:1])
    held: list[adit.Lease] = []
    with pytest.raises((adit.FullError, adit.RefusedError), match="release"):
        while len(held) < 50_000:
            held.append(plugin.store.lease(name))
    for _ in range(2):
        assert plugin.batched_contains(KEYS[:3], pin=True) == 2 and not plugin.pin(KEYS[0])
    assert caplog.text.count("pinning") == 1, "not for each lookup"
    held.clear()
    # The first request's pins are taken away last, as those of the others keep nothing.
    for left in (2, 2, 0):
        assert plugin.unpin(KEYS[0]) and plugin.unpin(KEYS[1]) and leased(plugin, left)
    assert not plugin.unpin(KEYS[0])
    plugin.close()


class Broken:
    """A chunk whose memory LMCache has lost."""

    def __init__(self, chunk: Any) -> None:
        self._chunk = chunk

    def __getattr__(self, name: str) -> Any:
        if name == "byte_array":
            raise ValueError("this chunk has no memory")
        return getattr(self._chunk, name)


def test_failures_of_lmcache_are_logged_and_hold_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = make()
    chunks = [chunk(plugin, 0), chunk(plugin, 1)]
    given = [chunks[0], Broken(chunks[1])]
    assert plugin.batched_submit_put_task(KEYS[:2], given) is None
    assert "this chunk has no memory" in caplog.text
    assert not plugin._storing and [one._count for one in chunks] == [1, 1]
    for each in chunks:
        each.ref_count_down()
    assert store(plugin, 0, 1) == [0, 1] and store(plugin, 2, tokens=5) == [2]
    allocate = plugin.local_cpu_backend.allocate
    monkeypatch.setattr(
        plugin.local_cpu_backend, "allocate", lambda *given, **named: Broken(allocate(*given, **named))
    )
    assert plugin.batched_get_blocking(KEYS[:2]) == [None, None]
    # Memory for fewer tokens than it was asked for.
    whole, shapes = plugin.metadata.get_shapes(), plugin.metadata.get_shapes
    monkeypatch.setattr(plugin.local_cpu_backend, "allocate", allocate)
    monkeypatch.setattr(
        plugin.metadata, "get_shapes", lambda tokens=None: whole if tokens == 5 else shapes(tokens)
    )
    assert plugin.batched_get_blocking(KEYS[2:3]) == [None]
    assert plugin.local_cpu_backend.used == 0
    plugin.close()


def test_the_store_is_closed_while_a_load_uses_the_memory(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = make()
    rows = pool(16, 256 << 10)
    plugin._regions.append(plugin.store.register(rows))
    queue = plugin.store.queue()
    queue.submit_put([str(number) for number in range(16)], rows)
    plugin.close()
    assert "giving back the engine's memory failed" in caplog.text and not plugin._regions
    with pytest.raises(adit.ClosedError):
        plugin.store.exists("none")


def test_another_format_is_not_stored(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    plugin = make()
    other = plugin.local_cpu_backend.allocate([(4,)], ["int8"], MemoryFormat.KV_T2D)
    assert plugin.batched_submit_put_task(KEYS[:1], [other]) is None
    assert "its layout is not" in caplog.text
    other.ref_count_down()
    plugin.close()


def test_a_closed_store_is_misses_in_the_log(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    plugin = make()
    held = chunk(plugin, 0)
    plugin.store.close()
    assert load(plugin, 0) == [False] and plugin.batched_submit_put_task(KEYS[:1], [held]) is None
    assert not plugin.pin(KEYS[0]) and not plugin.remove(KEYS[0]) and "closed" in caplog.text
    held.ref_count_down()
    plugin.close()


def test_configurations_that_cannot_work_say_what_to_change(make: Make) -> None:
    module = importlib.import_module("adit.lmcache_plugin")
    meta, memory = LMCacheMetadata(), LocalCpu()
    for config, held, advice in (
        (lmcache_config(), memory, "'target', such as uring:"),
        (lmcache_config(target="uring:x"), None, "max_local_cpu_size"),
        (lmcache_config(use_layerwise=True, target="uring:x"), memory, "use_layerwise to false"),
    ):
        with pytest.raises(ValueError, match=advice):
            module.AditBackend(config, meta, held)
