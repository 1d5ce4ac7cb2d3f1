"""Answers that are collected later: from a queue, and as futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import noise, pool, until

import adit

KEYS = [f"row/{number}" for number in range(64)]


def drain(queue: adit.Queue, jobs: int) -> dict[object, tuple[list[object], adit.Error | None]]:
    """Wait for so many jobs by the eventfd alone."""
    ended: dict[object, tuple[list[object], adit.Error | None]] = {}
    poll = select.poll()
    poll.register(queue.event_fd(), select.POLLIN)
    while len(ended) < jobs:
        assert poll.poll(30_000), "the eventfd says when a job has ended"
        for number, results, failure in queue.drain():
            assert number not in ended
            ended[number] = (results, failure)
    assert not poll.poll(0) and queue.drain() == [], "nothing is left"
    return ended


def test_jobs_end_at_the_eventfd(either: adit.Store | adit.Client) -> None:
    rows = noise(64, 10_000)
    with either.queue() as queue:
        put = queue.submit_put(KEYS, rows)
        assert drain(queue, 1) == {put: ([True] * 64, None)}
        back = np.zeros_like(rows)
        get, into = queue.submit_get([*KEYS, "none"]), queue.submit_get_into(KEYS, back)
        exists, prefix = queue.submit_exists(["none", KEYS[0]]), queue.submit_lookup_prefix(KEYS)
        commit, nothing = queue.submit_commit(), queue.submit_get([], token="nothing")
        assert len({put, get, into, exists, prefix, commit, nothing}) == 7
        ended = drain(queue, 6)
        assert ended[get] == ([*(row.tobytes() for row in rows), None], None)
        assert ended[into] == ([10_000] * 64, None) and np.array_equal(back, rows)
        assert ended[exists] == ([False, True], None) and ended[prefix] == ([64], None)
        assert ended[commit] == ([None], None) and ended["nothing"] == ([], None)
        delete = queue.submit_delete([KEYS[0], "none"])
        assert drain(queue, 1) == {delete: ([True, False], None)}
        assert len(queue) == 0


def small_layout(either: adit.Store | adit.Client) -> adit.Layout:
    """Return a layout that no value of a few bytes fits."""
    return either.layout(layers=1, kv_heads=1, head_dim=64, tokens=16, dtype="bf16")


def test_a_job_that_fails_says_which_request(either: adit.Store | adit.Client) -> None:
    with either.queue() as queue:
        layout = small_layout(either)
        block = bytes(layout.block_bytes)
        queue.submit_put(["a", "b", "c"], [block, b"2", block], token="put", layout=layout)
        ((results, failure),) = drain(queue, 1).values()
        assert results == [True, None, True]
        assert isinstance(failure, adit.InvalidError) and failure.index == 1


def test_a_queue_that_is_closed_has_waited(store: adit.Store) -> None:
    rows = pool(64, 256 << 10)
    with store.register(rows):
        queue = store.queue()
        queue.submit_put(KEYS, rows)
        queue.close()
        queue.close()
        assert len(queue) == 0 and queue.drain() == []
        assert store.exists_many(KEYS) == [True] * 64
        store.queue().submit_get_into(KEYS, rows)  # Forgotten, and ended by its collection.
    assert store.lookup_prefix(KEYS) == 64


def test_jobs_end_with_the_store(target: str) -> None:
    store = adit.Store(target)
    queue = store.queue()
    queue.submit_put(KEYS, noise(64, 1000))
    store.close()
    ((results, failure),) = drain(queue, 1).values()
    assert len(results) == 64 and (failure is None or isinstance(failure, adit.ClosedError))
    with pytest.raises(adit.ClosedError):
        queue.submit_exists(KEYS)


def test_futures_of_threads(either: adit.Store | adit.Client) -> None:
    rows = noise(64, 10_000)
    with either.futures() as futures:
        puts = [futures.put(key, row) for key, row in zip(KEYS, rows)]
        done, _ = concurrent.futures.wait(puts, timeout=30)
        assert len(done) == 64 and all(future.result() is True for future in puts)
        gets = [futures.get(key) for key in KEYS]
        assert [future.result(30) for future in gets] == [row.tobytes() for row in rows]
        back = np.zeros_like(rows)
        assert futures.get_many_into(KEYS, back).result(30) == [10_000] * 64
        assert np.array_equal(back, rows)
        assert futures.put_many(["x", "y"], [b"1", b"2"]).result(30) == [True, True]
        assert futures.get_many(["x", "none"]).result(30) == [b"1", None]
        assert futures.get_into("x", bytearray(4)).result(30) == 1
        assert futures.exists("x").result(30) is True
        assert futures.exists_many(["none"]).result(30) == [False]
        assert futures.lookup_prefix(["x", "y", "none"]).result(30) == 2
        assert futures.delete("x").result(30) is True
        assert futures.delete_many(["x"]).result(30) == [False]
        assert futures.commit().result(30) is None
        called: list[object] = []
        futures.get("y").add_done_callback(lambda future: called.append(future.result()))
        with pytest.raises(adit.InvalidError):
            futures.put("z", b"short", layout=small_layout(either)).result(30)
        with pytest.raises(TypeError):
            futures.get(1)  # type: ignore[arg-type]
        assert futures.get("y").cancel() is False
    assert called == [b"2"]
    futures.close()
    with pytest.raises(adit.ClosedError):
        futures.get("y")


def test_closing_waits_for_a_call_that_has_begun(store: adit.Store) -> None:
    futures = store.futures()
    closer = threading.Thread(target=futures.close)

    def keys() -> Iterator[str]:
        closer.start()
        # It must not end the thread of the futures before this call has made its request.
        closer.join(0.2)
        yield "none"

    assert futures.get_many(keys()).result(30) == [None]
    closer.join(30)
    assert not closer.is_alive()
    with pytest.raises(adit.ClosedError):
        futures.get("none")


def test_futures_of_threads_end_after_the_store(target: str) -> None:
    store = adit.Store(target)
    futures = store.futures()
    pending = futures.get_many(KEYS)
    store.close()
    futures.close()
    assert pending.done()


def test_futures_of_an_event_loop(either: adit.Store | adit.Client) -> None:
    rows = noise(64, 10_000)

    async def serve() -> None:
        async with either.aio() as aio:
            puts = (aio.put(key, row) for key, row in zip(KEYS, rows))
            assert await asyncio.gather(*puts) == [True] * 64
            gets = (aio.get(key) for key in KEYS)
            assert await asyncio.gather(*gets) == [row.tobytes() for row in rows]
            back = np.zeros_like(rows)
            cancelled = aio.get_many(KEYS)
            cancelled.cancel()
            assert await aio.get_many_into(KEYS, back) == [10_000] * 64
            assert np.array_equal(back, rows) and cancelled.cancelled()
            assert await aio.lookup_prefix(KEYS) == 64
            assert await aio.commit() is None
            with pytest.raises(adit.InvalidError):
                await aio.put("z", b"short", layout=small_layout(either))
            with pytest.raises(TypeError):
                aio.get(1)  # type: ignore[arg-type]
            last = aio.get_many(KEYS)
        assert last.done()
        with pytest.raises(adit.ClosedError):
            aio.get(KEYS[0])

    asyncio.run(serve())


def test_the_loop_serves_others_meanwhile(either: adit.Store | adit.Client) -> None:
    async def serve() -> int:
        ticks = 0
        async with either.aio() as aio:
            rows = noise(64, 200_000)
            pending = [aio.put_many(KEYS, rows) for _ in range(5)]
            until = time.monotonic() + 60
            while not all(future.done() for future in pending):
                assert time.monotonic() < until
                ticks += 1
                await asyncio.sleep(0)
        return ticks

    assert asyncio.run(serve()) > 0


def test_a_drain_copies_about_as_much_as_it_may(either: adit.Store | adit.Client) -> None:
    rows = noise(4, 3 << 20)
    assert either.put_many(KEYS[:4], rows) == [True] * 4
    values = [row.tobytes() for row in rows]
    back = [bytearray(3 << 20) for _ in rows]
    with either.queue() as queue:
        queue.submit_get(KEYS[:2], token="get")
        queue.submit_get(KEYS[2:4], token="more")
        queue.submit_get_into(KEYS[:2], back[:2], token="into")
        queue.submit_get_into(["none"], [bytearray(1)], token="none")
        queue.submit_get_into([KEYS[0]], [bytearray(1)], token="short")
        poll = select.poll()
        poll.register(queue.event_fd(), select.POLLIN)
        ended: dict[object, tuple[list[object], adit.Error | None]] = {}
        calls = 0
        while len(ended) < 5:
            assert poll.poll(30_000), "the eventfd is readable as long as something is left"
            for token, results, failure in queue.drain(1 << 20):
                ended[token] = (results, failure)
            calls += 1
            assert len(queue) == 5 - len(ended)
        assert not poll.poll(0) and queue.drain(1) == []
        # A server's answers to buffers are copied as they come, by another thread.
        least = 18 if isinstance(either, adit.Store) else 12
        assert calls >= least, "a MiB at a time"
        assert ended["get"] == (values[:2], None) and ended["more"] == (values[2:], None)
        assert ended["into"] == ([3 << 20] * 2, None) and ended["none"] == ([None], None)
        assert back[0] == values[0] and back[1] == values[1]
        assert isinstance(ended["short"][1], adit.BadBufferError)
        queue.submit_get(KEYS[:4], token="left")
        assert poll.poll(30_000) and queue.drain(1 << 20) == [] and len(queue) == 1
    assert len(queue) == 0, "a job that is half drained is forgotten, too"
    with pytest.raises(adit.InvalidError, match="nbytes"):
        queue.drain(0)


def test_the_least_drain_returns_what_is_small(either: adit.Store | adit.Client) -> None:
    assert either.put("a", b"value")
    with either.queue() as queue:
        queue.submit_get(["a", "none"], token="get")
        queue.submit_exists(["a"], token="exists")
        ended: dict[object, list[object]] = {}

        def is_drained() -> bool:
            ended.update((token, results) for token, results, _ in queue.drain(1))
            return len(ended) == 2

        until(is_drained)
        assert ended == {"get": [b"value", None], "exists": [True]}


def test_values_without_room_fail_their_own_job(target: str) -> None:
    """Run apart, as all memory is limited and taken but for some MiB."""
    code = """
import adit, resource, sys, time
store = adit.Store(sys.argv[1])
assert store.put("big", bytes(33 << 20))
queue = store.queue()
for token, key in enumerate(("none", "big", "none")):
    queue.submit_get([key], token=token)
before = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), before[1]))
ended, others = [], []
try:
    while True:
        others.append(bytearray(4 << 20))
except MemoryError:
    pass
while len(ended) < 3:
    ended += queue.drain()
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_AS, before)
print(sorted((token, results, type(failure).__name__) for token, results, failure in ended))
queue.close()
store.close()
"""
    ended = subprocess.run([sys.executable, "-c", code, target], capture_output=True, timeout=60, check=True)
    assert ended.stdout == b"[(0, [None], 'NoneType'), (1, [None], 'MemoryError'), (2, [None], 'NoneType')]\n"


def test_tokens_that_call_their_queue_as_they_go(target: str) -> None:
    """Run apart: on a failure it would stand still, with the interpreter's lock."""
    code = """
import adit, select, sys
store = adit.Store(sys.argv[1])
queue = store.queue()
class Token:
    def __del__(self):
        print(len(queue))
assert store.put("a", bytes(1 << 20))
queue.submit_get(["a"], token=Token())
poll = select.poll()
poll.register(queue.event_fd(), select.POLLIN)
while not poll.poll(1000):
    pass
assert queue.drain(1) == []
queue.close()
store.close()
"""
    ended = subprocess.run([sys.executable, "-c", code, target], capture_output=True, timeout=60, check=True)
    assert ended.stdout == b"0\n"


def test_the_loop_has_turns_while_values_are_copied(either: adit.Store | adit.Client) -> None:
    rows = noise(16, 4 << 20)
    for key, row in zip(KEYS, rows):
        assert either.put(key, row)

    async def serve() -> None:
        async with either.aio() as aio:
            one = [aio.get(key) for key in KEYS[:8]]
            all_of = aio.get_many(KEYS[8:16])
            # Other threads answer meanwhile, so that the loop finds most of it at once.
            time.sleep(1)
            done = 0
            while done < 9:
                await asyncio.sleep(0)
                before, done = done, sum(future.done() for future in (*one, all_of))
                assert done <= before + 1, "each takes some turns, and others get theirs"
            assert [future.result() for future in one] == [row.tobytes() for row in rows[:8]]
            assert all_of.result() == [row.tobytes() for row in rows[8:]]

    asyncio.run(serve())


def test_futures_that_are_closed_by_their_own_callback_say_why_not(
    store: adit.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures = store.futures()
    raised: list[BaseException] = []
    make = futures._make

    def close(_: object) -> None:
        try:
            futures.close()
        except Exception as why:
            raised.append(why)

    def made() -> concurrent.futures.Future[object]:
        # The callback is there before the request, so that the thread of the futures runs it.
        future = make()
        future.add_done_callback(close)
        return future

    with monkeypatch.context() as patch:
        patch.setattr(futures, "_make", made)
        assert futures.get("none").result(30) is None
        until(lambda: bool(raised))
    (why,) = raised
    assert isinstance(why, adit.InvalidError) and "on another thread" in str(why)
    assert futures.get("none").result(30) is None, "they are still open"

    def closing() -> Iterator[str]:
        futures.close()
        yield "none"

    with pytest.raises(adit.InvalidError, match="close them after it"):
        futures.get_many(closing())
    futures.close()


def test_a_store_that_is_closed_by_a_callback_or_a_source(target: str) -> None:
    store = adit.Store(target)
    ended = threading.Event()
    with store.futures() as futures:

        def close(_: object) -> None:
            store.close()
            ended.set()

        futures.put("a", b"1").add_done_callback(close)
        assert ended.wait(30)
    with adit.Store(target) as store:
        assert store.get("a") == b"1"

        def chunks() -> Iterator[bytes]:
            yield bytes(4 << 20)
            store.close()
            yield bytes(4 << 20)

        with pytest.raises(adit.ClosedError):
            store.put_from("b", chunks(), 8 << 20)
    with adit.Store(target) as store:
        assert not store.exists("b")


def test_futures_of_a_loop_are_closed_on_it(either: adit.Store | adit.Client) -> None:
    rows = noise(64, 200_000)

    async def make() -> adit.Aio:
        return either.aio()

    async def serve() -> None:
        async with either.aio() as aio:
            gone = [aio.put_many(KEYS, rows) for _ in range(3)]
            for future in gone:
                future.cancel()
        assert repr(aio).endswith("0 jobs, closed)"), "it awaits what was cancelled"
        assert either.lookup_prefix(KEYS) == 64
        waiting = either.aio()
        put = waiting.put_many(KEYS, rows)
        closing = asyncio.create_task(waiting.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await asyncio.wait_for(put, 30) == [True] * 64, "it ends without the close"
        await waiting.close()
        await waiting.close()

    asyncio.run(serve())
    aio = asyncio.run(make())
    with pytest.raises(adit.InvalidError, match="another event loop"):
        asyncio.run(aio.close())


def test_long_values_are_whole_for_each_of_several_threads(store: adit.Store) -> None:
    value = noise(1, 32 << 20).tobytes()
    store.put("a", value)
    assert store.get("a") == value and store.get_many(["a", "none"]) == [value, None]
    versioned = store.get_versioned("a")
    assert versioned is not None and versioned[0] == value
    assert store.get("a", 1, 20 << 20) == value[1 : 20 << 20]
    # Two threads, of which each gets its own value whole.
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: store.get("a") == value, range(16))) == {True}
