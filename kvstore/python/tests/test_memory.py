"""Registered memory: nothing is copied, and nothing is lost."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref

import numpy as np
import pytest
from conftest import noise, pool

import adit

KEYS = [f"row/{number}" for number in range(64)]


def test_rows_of_a_registered_pool_are_not_copied(store: adit.Store) -> None:
    rows, there = pool(64, 256 << 10), noise(64, 256 << 10)
    with store.register(rows):
        rows[:] = there
        assert store.put_many(KEYS, rows) == [True] * 64
        rows[:] = 0
        assert store.get_many_into(KEYS, rows) == [256 << 10] * 64
        assert np.array_equal(rows, there)
        assert store.put("one", rows[5]) and store.get_into("one", rows[6]) == 256 << 10
        assert np.array_equal(rows[6], there[5])
        stats = store.stats()
        assert stats["copied_bytes"] == 0
        assert stats["in_place_bytes"] == 2 * rows.nbytes + 2 * (256 << 10)
    # The same without registration: each byte is copied once for a put and once for a get.
    store.put_many(KEYS, rows)
    store.get_many_into(KEYS, rows)
    assert store.stats()["copied_bytes"] == 2 * rows.nbytes


def test_rows_of_any_length_are_right_and_their_neighbours_stay(store: adit.Store) -> None:
    memory = pool(1, 1 << 20)[0]
    rows = memory[: 50 * 18_432].reshape(50, 18_432)
    there = noise(50, 18_432)
    with store.register(memory):
        rows[:] = there
        store.put_many(KEYS[:50:2], rows[::2])
        store.get_many_into(KEYS[:50:2], rows[1::2])
        for number in range(50):
            assert np.array_equal(rows[number], there[number // 2 * 2]), number
        copied = store.stats()["copied_bytes"]
        assert 0 < copied < 50 * 18_432, "only the ends are copied"


def test_memory_that_several_requests_share_is_copied(store: adit.Store) -> None:
    rows, there = pool(4, 64 << 10), noise(4, 64 << 10)
    with store.register(rows):
        rows[:] = there
        store.put_many(KEYS[:8], [rows[number % 4] for number in range(8)])
        assert store.stats()["copied_bytes"] == 4 * (64 << 10), "each row went once in place"
        for number, value in enumerate(store.get_many(KEYS[:8])):
            assert value == there[number % 4].tobytes()


def test_memory_comes_back_whatever_became_of_the_request(store: adit.Store) -> None:
    rows = pool(4, 64 << 10)
    region = store.register(rows)
    store.put("long", bytes(1 << 20))
    store.put("short", b"x")
    with pytest.raises(adit.BadBufferError, match="1048576 bytes") as refused:
        store.get_many_into(["short", "none", "long"], rows[:3])
    assert refused.value.index == 2
    with pytest.raises(adit.InvalidError):
        store.put("x" * 600, rows[0])
    region.close()
    region.close()
    store.put("closed", rows[0])
    assert store.stats()["copied_bytes"] >= 64 << 10


def test_memory_in_use_stays_registered(store: adit.Store) -> None:
    rows = pool(64, 256 << 10)
    region = store.register(rows)
    with store.queue() as queue:
        queue.submit_put(KEYS, rows)
        # The memory returns when the queue is drained, though the devices may be done before.
        with pytest.raises(adit.BadBufferError, match="wait for them"):
            region.close()
    region.close()


def test_only_whole_pages_are_registered(store: adit.Store) -> None:
    memory = pool(1, 64 << 10)[0]
    with pytest.raises(adit.InvalidError, match="multiples of 4096"):
        store.register(memory[100:8292])
    with pytest.raises(adit.InvalidError, match="multiples of 4096"):
        store.register(memory[:5000])
    with pytest.raises(adit.InvalidError):
        store.register(bytearray())
    with pytest.raises(adit.BadBufferError, match="writable"):
        store.register(bytes(8192))


def test_no_memory_is_registered_twice(store: adit.Store) -> None:
    rows = pool(8, 64 << 10)
    with store.register(rows[2:4]):
        for again in (rows, rows[2:4], rows[3:], rows[:3], rows[2, :4096]):
            with pytest.raises(adit.BadBufferError, match="registered already"):
                store.register(again)
        with store.register(rows[:2]), store.register(rows[4:]):
            assert store.put_many(KEYS[:8], rows) == [True] * 8
    with store.register(rows):
        assert store.get_many_into(KEYS[:8], rows) == [64 << 10] * 8
    assert store.stats()["copied_bytes"] == 0


def test_the_owner_lives_as_long_as_its_memory_is_registered(store: adit.Store) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    alive = weakref.ref(memory)
    region = store.register(memory)
    with pytest.raises(BufferError):
        memory.close()
    del memory
    gc.collect()
    assert alive() is not None
    region.close()
    gc.collect()
    assert alive() is None


def test_threads_share_a_pool(store: adit.Store) -> None:
    rows, there = pool(64, 64 << 10), noise(64, 64 << 10)
    rows[:] = there

    def work(first: int) -> None:
        for _ in range(20):
            store.put_many(KEYS[first::4], rows[first::4])
            rows[first::4] = 0
            assert store.get_many_into(KEYS[first::4], rows[first::4]) == [64 << 10] * 16

    with store.register(rows):
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert np.array_equal(rows, there)
        # In place or by copy is the store's choice, which begins in place.
        assert store.stats()["in_place_bytes"] > 0


def test_buffers_are_free_with_the_answer(store: adit.Store) -> None:
    store.put("key", bytes(100))
    used = bytearray(100)

    def is_free() -> bool:
        # A buffer that is in use cannot be resized.
        used.append(0)
        del used[-1]
        return True

    store.put("other", used)
    assert is_free()
    store.get_into("key", used)
    assert is_free()
    with pytest.raises(adit.BadBufferError):
        store.get_many_into(["key", "key"], [used, bytearray(1)])
    assert is_free()
    with pytest.raises(adit.InvalidError):
        store.put_many(["a", "b", "c"], [used, used])
    assert is_free()
    with pytest.raises(TypeError):
        store.put_many(["a", "b"], [used, 1])  # type: ignore[list-item]
    assert is_free()
    with pytest.raises(adit.BadBufferError):
        store.get_layer(0, ["key"], [used])
    assert is_free()
    with pytest.raises(adit.InvalidError):
        store.register(used)
    assert is_free()
    with store.queue() as queue:
        queue.submit_get_into(["key"], [used])
        with pytest.raises(BufferError):
            used.append(0)
    assert is_free()


@pytest.mark.parametrize("jobs", [1, 3, 6])
def test_memory_comes_back_from_a_store_that_ends(target: str, jobs: int) -> None:
    store = adit.Store(target, pool_bytes=4 << 20)
    memory = pool(1, 64 * 20_480)[0]
    rows = memory[: 64 * 18_432].reshape(64, 18_432)
    region, queue = store.register(memory), store.queue()
    for job in range(jobs):
        queue.submit_put([f"{job}/{row}" for row in range(64)], rows)
        queue.submit_get_into([f"{job}/{row}" for row in range(64)], rows)
    store.close()
    failures = set()
    while len(queue) > 0:
        failures |= {type(failure) for _, _, failure in queue.drain()}
    assert failures <= {type(None), adit.ClosedError}
    region.close()
