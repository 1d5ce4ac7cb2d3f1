"""The interface of LMCache's L2 adapters."""

from __future__ import annotations

import importlib
import os
import select
import signal
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Rows, Served, anywhere, noise, pool, until
from engines import MemoryResidency, ObjectKey, lmcache_l2
from test_lmcache import end as end_batch
from test_lmcache import views

import adit
from adit.lmcache import Connector

Make = Callable[..., Any]
KEYS = [ObjectKey(number.to_bytes(32, "big"), cache_salt="salt" * (number % 2)) for number in range(16)]
NBYTES = 64 << 10


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[Make]:
    """Return what makes adapters of one store."""
    lmcache_l2(monkeypatch)
    module = importlib.import_module("adit.lmcache_l2")
    made: list[Any] = []

    def make(memory: Any = None, **params: Any) -> Any:
        params = {"target": place, "size_gb": 0.125, "weights": ""} | params
        made.append(module.AditAdapter(params, memory))
        return made[-1]

    yield make
    for adapter in made:
        if adapter._thread.is_alive():
            adapter.close()


def held(rows: Rows) -> list[Any]:
    """Return memory objects of LMCache's."""
    return [types.SimpleNamespace(byte_array=view) for view in views(rows)]


def wait(event: int) -> None:
    """Wait for an eventfd, which LMCache reads."""
    poll = select.poll()
    poll.register(event, select.POLLIN)
    assert poll.poll(30_000), "the eventfd says that a task has ended"
    with open(event, "rb", buffering=0, closefd=False) as file:
        file.read(8)


def store(adapter: Any, keys: list[ObjectKey], rows: Rows) -> int:
    """Store blocks; return the bytes that are new, or -1."""
    number = adapter.submit_store_task(keys, held(rows))
    wait(adapter.get_store_event_fd())
    ended = adapter.pop_completed_store_tasks()
    assert list(ended) == [number]
    return int(ended[number])


def look_up(adapter: Any, keys: list[ObjectKey]) -> list[bool]:
    number = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    bits: list[bool] = adapter.query_lookup_and_lock_result(number).bits
    assert adapter.query_lookup_and_lock_result(number) is None, "once"
    return bits


def load(adapter: Any, keys: list[ObjectKey], rows: Rows) -> list[bool]:
    number = adapter.submit_load_task(keys, held(rows))
    wait(adapter.get_load_event_fd())
    bits: list[bool] = adapter.query_load_result(number).bits
    assert adapter.query_load_result(number) is None, "once"
    return bits


def leased(adapter: Any, count: int) -> None:
    """Wait until leases hold so many blocks."""

    def is_so() -> bool:
        # Releases wait in the client for room, which any request finds.
        adapter.store.exists(b"none")
        return bool(adapter.store.stats()["leased"] == count)

    until(is_so)


@anywhere
def test_tasks_end_at_three_eventfds_with_a_bit_for_each_key(make: Make) -> None:
    adapter, rows, back = make(), noise(16, NBYTES), pool(16, NBYTES)
    events = [
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    ]
    assert len(set(events)) == 3
    assert look_up(adapter, KEYS) == [False] * 16
    assert adapter.query_lookup_and_lock_result(99) is None and adapter.query_load_result(99) is None
    assert store(adapter, KEYS[:12], rows[:12]) == 12 * NBYTES
    assert look_up(adapter, KEYS) == [True] * 12 + [False] * 4
    assert load(adapter, KEYS, back) == [True] * 12 + [False] * 4
    assert (back[:12] == rows[:12]).all() and not back[12:].any()
    adapter.submit_unlock(KEYS)
    # LMCache's policy of eviction learns of them.
    assert adapter.told == [("stored", KEYS[:12]), ("accessed", KEYS[:12])]
    assert store(adapter, [], rows[:0]) == 0 and look_up(adapter, []) == []


@anywhere
def test_blocks_are_those_of_the_native_connector(make: Make, place: str) -> None:
    rows, back = noise(4, NBYTES), pool(4, NBYTES)
    texts = [f"meta/llama@00000000@0@{key.chunk_hash.hex()}" for key in KEYS[:4]]
    texts = [f"{text}@{key.cache_salt}" if key.cache_salt else text for text, key in zip(texts, KEYS)]
    adapter = make()
    store(adapter, KEYS[:2], rows[:2])
    adapter.close()
    connector = Connector(place, weights="")
    assert end_batch(connector, connector.submit_batch_exists(texts))[2] == [True] * 2 + [False] * 2
    end_batch(connector, connector.submit_batch_set(texts[2:], views(rows[2:])))
    connector.close()
    adapter = make()
    assert load(adapter, KEYS[:4], back) == [True] * 4 and (back == rows).all()


@anywhere
def test_what_was_looked_up_is_not_evicted_until_it_is_unlocked(make: Make) -> None:
    adapter, rows, back = make(), noise(8, 1 << 20), pool(8, 1 << 20)
    store(adapter, KEYS[:8], rows)
    # Twice, by two requests, of which one has found only some.
    assert look_up(adapter, KEYS[:4]) == look_up(adapter, KEYS[:4]) == [True] * 4
    adapter.submit_unlock(KEYS[:4])
    leased(adapter, 4)
    fill(adapter)
    assert load(adapter, KEYS[:8], back) == [True] * 4 + [False] * 4
    assert (back[:4] == rows[:4]).all()
    adapter.submit_unlock(KEYS[:8])
    leased(adapter, 0)
    assert len(adapter._pins) == 0
    fill(adapter)
    assert look_up(adapter, KEYS[:4]) == [False] * 4


def fill(adapter: Any) -> None:
    """Store more than the store has room for, in each of its shards."""
    row = bytes(1 << 20)
    for number in range(280):
        adapter.store.put(f"other {number}", row)


@anywhere
def test_blocks_after_a_miss_are_locked_as_well(make: Make) -> None:
    adapter, rows = make(), noise(16, 4096)
    some = [KEYS[number] for number in (1, 2, 5, 9, 15)]
    store(adapter, some, rows[:5])
    assert look_up(adapter, KEYS) == [key in some for key in KEYS]
    leased(adapter, 5)
    adapter.submit_unlock(some[:4])
    leased(adapter, 5)
    adapter.submit_unlock([KEYS[0], *some[4:]])
    leased(adapter, 0)


def test_a_block_that_is_evicted_before_it_is_locked_is_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = make()
    store(adapter, KEYS[:5], noise(5, 4096))
    take = adapter._pins.take

    def gone_first(names: list[bytes]) -> int:
        monkeypatch.setattr(adapter._pins, "take", take)
        adapter.store.delete_many([names[0], names[3]])
        return int(take(names))

    monkeypatch.setattr(adapter._pins, "take", gone_first)
    assert look_up(adapter, KEYS[:5]) == [False, True, True, False, True]
    leased(adapter, 3)


@anywhere
def test_a_block_that_is_gone_or_of_another_length_is_a_miss_of_its_own(make: Make) -> None:
    adapter, rows = make(), noise(4, 8192)
    store(adapter, KEYS[:4], rows)
    assert look_up(adapter, KEYS[:4]) == [True] * 4
    adapter.delete(KEYS[1:2])
    store(adapter, KEYS[2:3], noise(1, 4096))
    assert load(adapter, KEYS[:4], pool(4, 8192)) == [True, False, False, True]


def test_where_the_blocks_are_is_what_the_configuration_says(make: Make) -> None:
    adapter = make()
    assert adapter.get_memory_tags().segment.value == "storage"
    assert adapter.get_memory_tags().residency is MemoryResidency.LOCAL
    adapter.set_backend_identity("plugin", shared=True)
    assert adapter.get_memory_tags().residency is MemoryResidency.REMOTE


@anywhere
def test_blocks_are_counted_once_and_no_more_than_there_are(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, rows = make(max_capacity_gb=0.5), noise(4, 1 << 20)
    usage = adapter.get_usage()
    assert (usage.total_bytes_used, usage.total_capacity_bytes) == (0, 512 << 20)
    assert store(adapter, KEYS[:3], rows[:3]) == 3 << 20
    assert store(adapter, KEYS[:4], rows) == 1 << 20, "the others were there"
    adapter.delete([*KEYS[:2], KEYS[9]])
    assert adapter.told[-1] == ("deleted", KEYS[:2]), "the third was never there"
    assert adapter.get_usage().total_bytes_used == 2 << 20
    # What the store has evicted is gone for LMCache once it removes it, with its bytes, and counted once if it comes again.
    monkeypatch.setattr(adapter, "_ask_for_oldest", lambda _: None)
    adapter.store.delete_many(adapter._names(KEYS[2:4]))
    assert store(adapter, KEYS[2:3], rows[2:3]) == 1 << 20
    assert adapter._used == 2 << 20
    adapter.delete([KEYS[3], KEYS[3]])
    assert adapter.told[-1] == ("deleted", KEYS[3:4]) and adapter._used == 1 << 20
    # LMCache hears later of what the store evicts by itself.
    adapter._notify_keys_stored(KEYS, [1 << 30] * len(KEYS))
    assert adapter.get_usage().total_bytes_used == adapter.store.stats()["used_bytes"]


@anywhere
def test_lmcache_hears_of_what_the_store_has_evicted(make: Make) -> None:
    adapter, rows = make(), noise(64, 1 << 20)
    for batch in range(16):
        keys = [ObjectKey(number.to_bytes(32, "big"), "evicted") for number in range(64 * batch, 64 * batch + 64)]
        assert store(adapter, keys, rows) == 64 << 20
        assert store(adapter, keys[:8], rows[:8]) >= 0
    until(lambda: not adapter._ends)
    stored = {key for what, keys in adapter.told if what == "stored" for key in keys}
    gone = [key for what, keys in adapter.told if what == "deleted" for key in keys]
    there = {key for key, is_there in zip(stored, adapter.store.exists_many(adapter._names(list(stored)))) if is_there}
    assert len(stored) == 1024 and there and there <= set(adapter._known)
    assert len(gone) == len(set(gone)) and set(adapter._known) == stored - set(gone)
    assert adapter._used == len(adapter._known) << 20, "with its bytes"
    assert len(adapter._known) < 4 * len(there), "some more than the store has"


@anywhere
def test_a_block_that_comes_again_while_it_is_asked_for_stays(make: Make) -> None:
    adapter, rows = make(), noise(1, 4096)
    store(adapter, KEYS[:1], rows)
    until(lambda: not adapter._ends)
    adapter.store.delete_many(adapter._names(KEYS[:1]))
    ends: list[Any] = []
    adapter._begin = lambda end, *_: ends.append(end)
    adapter._ask_for_oldest(2)
    del adapter._begin
    store(adapter, KEYS[:1], rows)
    (end,) = ends
    end(True, [False])
    assert list(adapter._known) == KEYS[:1] and "deleted" not in dict(adapter.told)
    end(False, [False])
    adapter.store.delete_many(adapter._names(KEYS[:1]))
    adapter._ask_for_oldest(2)
    until(lambda: adapter.told[-1] == ("deleted", KEYS[:1]))
    assert not adapter._known and adapter._used == 0


@anywhere
def test_closing_waits_for_the_tasks_in_progress(make: Make) -> None:
    adapter, rows = make(), noise(16, 1 << 20)
    number = adapter.submit_store_task(KEYS, held(rows))
    adapter.close()
    assert adapter.pop_completed_store_tasks() == {number: 16 << 20}
    adapter.close()
    # Its eventfd's number is another file's.
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]
    late = adapter.submit_load_task(KEYS[:1], held(rows[:1]))
    assert adapter.query_load_result(late).bits == [False]
    for other in others:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.close(other)


@anywhere
def test_blocks_are_listed_in_pages(make: Make) -> None:
    adapter, rows = make(namespace="bf16"), noise(1, 4096)
    many = [ObjectKey(number.to_bytes(32, "big"), f"model/{number % 2}") for number in range(2500)]
    store(adapter, many, rows.repeat(len(many), axis=0))
    too_long = ObjectKey(b"1", "m" * 600)
    store(adapter, [too_long, KEYS[1]], noise(2, 8192))
    for foreign in (b"lmcache/fp8/model/0@00000000@0@00", b"lmcache/bf16/model/0@x@0@00", b"lmcache/bf16/#"):
        adapter.store.put(foreign, b"1")

    def listed(model: str | None, size: int) -> list[Any]:
        entries: list[Any] = []
        cursor = None
        while True:
            page = adapter.list_l2_keys(model, size, cursor)
            assert len(page.entries) <= size
            entries += page.entries
            cursor = page.next_page_token
            if cursor is None:
                return entries

    every = listed(None, 333)
    assert {entry.key for entry in every} == {*many, KEYS[1]} and len(every) == 2501
    assert [entry.size_bytes for entry in listed("meta/llama", 10)] == [8192]
    assert {entry.key for entry in listed("model/1", 5000)} == set(many[1::2])
    for wrong in ("x", "1", "1.x", "", "1.2.3", "-1.0", f"{1 << 64}.0"):
        with pytest.raises(ValueError, match="give the last page's next_page_token"):
            adapter.list_l2_keys(cursor=wrong)
    with pytest.raises(ValueError, match="give a number above 0"):
        adapter.list_l2_keys(page_size=0)


def test_a_task_that_fails_ends_and_the_next_is_as_good_as_new(make: Make) -> None:
    adapter, rows = make(), noise(2, 8192)
    striped = [types.SimpleNamespace(byte_array=memoryview(bytearray(8192))[::2])]
    number = adapter.submit_store_task(KEYS[:1], striped)
    wait(adapter.get_store_event_fd())
    assert adapter.pop_completed_store_tasks() == {number: -1}
    number = adapter.submit_load_task(KEYS[:1], striped)
    wait(adapter.get_load_event_fd())
    assert adapter.query_load_result(number).bits == [False]

    def fail(keys: list[ObjectKey], *_: object) -> None:
        raise RuntimeError("a listener of LMCache's")

    adapter._notify_keys_stored = adapter._notify_keys_accessed = fail
    assert store(adapter, KEYS[:2], rows) == 2 * 8192
    assert load(adapter, KEYS[:2], pool(2, 8192)) == [True] * 2
    assert adapter.report_status()["is_healthy"]


def test_the_memory_that_lmcache_names_is_registered(make: Make) -> None:
    rows = pool(16, NBYTES)
    rows[:] = noise(16, NBYTES)
    memory = types.SimpleNamespace(ptr=rows.ctypes.data, size=rows.nbytes)
    adapter = make(memory, register_l1=True)
    store(adapter, KEYS, rows)
    load(adapter, KEYS, rows)
    assert adapter.store.stats()["copied_bytes"] == 0


def test_without_its_server_tasks_end_as_misses(make: Make, served: Served) -> None:
    adapter, rows = make(target=f"serve:{served.socket}", size_gb=0), noise(2, 8192)
    assert store(adapter, KEYS[:2], rows) > 0 and look_up(adapter, KEYS[:2]) == [True] * 2
    status = adapter.report_status()
    assert status["is_healthy"] and (status["stored_object_count"], status["locked_key_count"]) == (2, 2)
    served.end(signal.SIGKILL)
    assert look_up(adapter, KEYS[:2]) == [False] * 2
    assert load(adapter, KEYS[:2], pool(2, 8192)) == [False] * 2
    assert store(adapter, KEYS[:2], rows) == -1
    adapter.submit_unlock(KEYS[:2])
    adapter.delete(KEYS[:2])
    assert adapter.get_usage().total_bytes_used == 2 * 8192
    status = adapter.report_status()
    assert not status["is_healthy"] and status["error"]


def test_a_configuration_that_cannot_work_is_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(adit.InvalidError, match="weights is '/none/such'"):
        make(weights="/none/such")
    with pytest.raises(TypeError, match="target"):
        importlib.import_module("adit.lmcache_l2").AditAdapter({})
    assert list(tmp_path.iterdir()) == []
