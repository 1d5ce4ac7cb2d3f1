"""Queues, futures and adapters on a store that another process serves."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from conftest import Rows, Served, noise, pool, until
from engines import HiCacheStorageConfig, HostPool, Llama
from test_futures import drain
from test_llama_cpp import same, state
from test_lmcache import KEYS as BLOCKS
from test_lmcache import end, views
from test_vllm import KEYS as CHUNKS
from test_vllm import finished, job

import adit
from adit.lmcache import Connector

ROW = 128 << 10
RANK = Path(__file__).with_name("rank.py")


def shared(client: adit.Client, rows: int) -> Rows:
    """Return rows of the client's memory."""
    return np.frombuffer(client.allocate(rows * ROW), dtype=np.uint8).reshape(rows, ROW)


@pytest.mark.parametrize("model", [[], ["mla"]], ids=["each its own", "mla"])
def test_eight_ranks_share_a_store(served: Served, client: adit.Client, model: list[str]) -> None:
    ranks = []
    for number in range(8):
        words = [sys.executable, "-B", str(RANK), str(served.socket), str(number), "8", *model]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "stored\n"
    assert client.stats()["clients_now"] == 9
    for rank in ranks:
        assert rank.communicate("read\n", timeout=120)[0] == "read\n" and rank.returncode == 0
    until(lambda: client.stats()["clients_now"] == 1)
    stats = client.stats()
    assert stats["objects"] == 2 * 16 * (1 if model else 8), "ranks have keys of their own, or share them"
    assert stats["misses_corrupt"] == 0 and stats["clients_expelled"] == 0


def test_jobs_in_the_clients_memory_are_not_copied(client: adit.Client) -> None:
    rows, there, keys = shared(client, 8), noise(8, ROW), [str(number) for number in range(8)]
    rows[:] = there
    before = client.stats()["copied_bytes"]
    with client.queue() as queue:
        queue.submit_put(keys, rows)
        assert drain(queue, 1) == {0: ([True] * 8, None)}
        rows[:] = 0
        queue.submit_get_into([*keys[:7], "none"], rows)
        assert drain(queue, 1) == {1: ([ROW] * 7 + [None], None)}
        assert np.array_equal(rows[:7], there[:7])
        assert client.stats()["copied_bytes"] == before
        # Two jobs want one row: one of them gets a copy.
        into = [queue.submit_get_into(["7"], [rows[7]]) for _ in range(2)]
        assert drain(queue, 2) == {number: ([ROW], None) for number in into}
        assert np.array_equal(rows[7], there[7])
    assert client.stats()["copied_bytes"] in (before, before + ROW)


def test_jobs_with_more_than_the_pool_holds_all_end(served: Served) -> None:
    rows, keys = noise(64, ROW), [str(number) for number in range(64)]
    with adit.connect(served.socket, pool_bytes=4 * ROW, depth=16) as client, client.queue() as queue:
        back = [np.zeros_like(rows) for _ in range(2)]
        put = queue.submit_put(keys, rows)
        assert drain(queue, 1) == {put: ([True] * 64, None)}
        # These are not drained before the last is answered.
        gets = [queue.submit_get([*keys, "none"]) for _ in range(2)]
        into = [queue.submit_get_into(keys, rows) for rows in back]
        last = queue.submit_exists(keys, token="last")
        until(lambda: len(queue) == 5 and bool(select.select([queue.event_fd()], [], [], 0)[0]))
        assert client.get("0") == rows[0].tobytes(), "others find memory meanwhile"
        ended = drain(queue, 5)
        for number in gets:
            assert ended[number] == ([*(row.tobytes() for row in rows), None], None)
        assert [ended[number] for number in into] == [([ROW] * 64, None)] * 2
        assert all(np.array_equal(one, rows) for one in back)
        assert ended["last"] == ([True] * 64, None) and last == 5


def test_queues_and_calls_of_many_threads_share_a_connection(client: adit.Client) -> None:
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            rows = noise(4, 10_000, thread)
            keys = [f"{thread}/{number}" for number in range(4)]
            for _ in range(50):
                with client.queue() as queue:
                    queue.submit_put(keys, rows)
                    drain(queue, 1)
                    number = queue.submit_get(keys)
                    assert client.get_many(keys) == [row.tobytes() for row in rows]
                    assert drain(queue, 1) == {number: ([row.tobytes() for row in rows], None)}
        except BaseException as why:
            failures.append(why)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_lost_server_ends_every_call(served: Served) -> None:
    client = adit.connect(served.socket)
    memory, plain = shared(client, 4), bytearray(ROW)
    memory[:] = 5
    client.put("key", memory[0])
    queue, futures = client.queue(), client.futures()

    async def serve() -> list[Any]:
        aio = client.aio()
        waiting = [aio.get("key"), aio.put_many(["1", "2"], memory[2:]), aio.commit()]
        await asyncio.sleep(0.05)
        assert not any(future.done() for future in waiting)
        served.end(signal.SIGKILL)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        await aio.close()
        return ended

    served.pause()
    numbers = [
        queue.submit_put(["a"], [memory[0]]),
        queue.submit_get_into(["key"], [memory[1]]),
        queue.submit_get_into(["key", "none"], [plain, bytearray(ROW)]),
        queue.submit_lookup_prefix(["key"]),
    ]
    pending = [futures.get("key"), futures.exists("key"), futures.delete_many(["1", "2"])]
    begun = time.monotonic()
    ended: list[Any] = asyncio.run(serve())
    ended += [future.exception(30) for future in pending]
    failures = drain(queue, 4)
    assert sorted(failures) == numbers  # type: ignore[type-var]
    ended += [failure for _, failure in failures.values()]
    assert [type(why) for why in ended] == [adit.LostError] * 10
    assert all("calls work again soon after 'adit kv serve' runs" in str(why) for why in ended)
    assert time.monotonic() - begun < 30, "nothing waits for its timeout"
    # Nor does what is asked afterwards.
    number = queue.submit_put(["b"], [b"x"])
    ((name, (_, failure)),) = drain(queue, 1).items()
    assert name == number and isinstance(failure, adit.LostError)
    with pytest.raises(adit.LostError):
        futures.get("key").result(30)
    futures.close()
    queue.close()
    client.close()
    assert memory.tobytes() == bytes([5]) * (4 * ROW), "memory stays in place"


def test_jobs_of_a_server_that_hangs_end_in_time(served: Served) -> None:
    with adit.connect(served.socket, timeout=0.3) as client, client.queue() as queue:
        memory = shared(client, 2)
        until(lambda: client.put("key", memory[0]))
        queue.submit_get_into(["key"], [bytearray(ROW)])
        until(lambda: bool(queue.drain()))  # Has made the pool, for which the server has to run.
        served.pause()
        plain = bytearray(ROW)
        jobs = [
            queue.submit_get(["key", "none"]),
            queue.submit_get_into(["key", "key"], [memory[1], plain]),
        ]
        ended = drain(queue, 2)
        assert sorted(ended) == jobs  # type: ignore[type-var]
        for results, failure in ended.values():
            assert results == [None, None]
            assert isinstance(failure, adit.DeadlineError) and "300 ms" in str(failure)
            assert failure.index == 0
        queue.submit_exists(["key"])
        queue.close()  # Waits no longer, either.
        served.send(signal.SIGCONT)

        def is_there() -> bool:
            number = queue.submit_exists(["key"])
            return drain(queue, 1)[number][0] == [True]

        until(is_there)
    assert plain == bytearray(ROW), "an answer that comes too late changes no buffer"


def test_memory_of_a_prompt_that_came_too_late_is_not_used_again(
    served: Served, client: adit.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.llama_cpp(monkeypatch)
    cache = importlib.import_module("adit.llama_cpp").PromptCache(
        f"serve:{served.socket}", Llama(), timeout=1.0
    )
    prompts = [[number] * 40 for number in range(3)]
    until(lambda: kept(cache, prompts[0]))
    ((_, name, nbytes),) = cache._candidates(np.array(prompts[0], dtype=np.int32))
    calls: list[Callable[[], object]] = [
        lambda: cache._load(name, nbytes),
        lambda: cache._save(np.array(prompts[1], dtype=np.int32), state(prompts[1])),
    ]
    for call in calls:
        before = cache._memory
        served.pause()
        with pytest.raises(adit.DeadlineError):
            call()
        served.send(signal.SIGCONT)
        assert cache._memory is None, "the drive may still write it"
        until(lambda: client.exists("none") is False)
        copied = client.stats()["copied_bytes"]
        until(lambda: kept(cache, prompts[2]))
        assert cache._memory is not before
        # Marks are copied, and no state is.
        assert client.stats()["copied_bytes"] - copied < nbytes
    assert same(cache[prompts[0]], state(prompts[0])), "it is what was stored"
    cache.close()


def kept(cache: Any, prompt: list[int]) -> bool:
    """Keep a prompt, and say whether it comes back: a busy machine may need another try."""
    cache[prompt] = state(prompt)
    return prompt in cache and same(cache[prompt], state(prompt))


def test_memory_is_dropped_while_the_server_hangs(served: Served) -> None:
    with adit.connect(served.socket) as client:
        memory = shared(client, 2)
        until(lambda: client.put("key", memory[0]))
        value = memory[0].tobytes()
        served.pause()
        # A wait for an answer would end the connection.
        del memory
        gc.collect()
        served.send(signal.SIGCONT)
        assert client.get("key") == value


def test_a_connection_ends_with_its_last_job(served: Served) -> None:
    with adit.connect(served.socket) as watcher:
        client = adit.connect(served.socket)
        queue, closed = client.queue(), client.queue()
        rows, keys = noise(64, ROW), [str(number) for number in range(64)]
        number = queue.submit_put(keys, rows)
        closed.submit_get(keys)
        closed.close()
        client.close()
        with pytest.raises(adit.ClosedError):
            queue.submit_get(keys)
        with pytest.raises(adit.ClosedError):
            client.queue()
        assert drain(queue, 1) == {number: ([True] * 64, None)}
        until(lambda: watcher.stats()["clients_now"] == 1)
        assert watcher.exists_many(keys) == [True] * 64


def test_what_a_connection_does_not_have_is_refused(client: adit.Client) -> None:
    with client.queue() as queue:
        with pytest.raises(adit.InvalidError, match="adit.connect names"):
            queue.submit_put(["a"], [b"x"], tenant="another")
        with pytest.raises(adit.InvalidError, match="after"):
            queue.submit_put(["a"], [b"x"], after="b")
        assert len(queue) == 0
    with pytest.raises(adit.InvalidKeyError):
        client.delete_where(prefix="")
    client.put_many(["a/1", "a/2", "b"], [b"1", b"2", b"3"])
    assert client.delete_where(prefix="a/") == 2 and client.exists_many(["a/1", "b"]) == [False, True]


def test_a_forked_child_cannot_use_queues(client: adit.Client) -> None:
    queue, futures = client.queue(), client.futures()
    queue.submit_put(["a"], [b"1"])
    calls: list[Callable[[], object]] = [
        client.queue,
        queue.drain,
        queue.event_fd,
        queue.close,
        lambda: queue.submit_get(["a"]),
        lambda: futures.get("a"),
        lambda: client.delete_where(prefix="a"),
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except adit.ForkedError:
                refused += 1
        del queue, calls
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(calls)
    assert drain(queue, 1) == {0: ([True], None)} and futures.get("a").result(30) == b"1"
    futures.close()


CLIENT = """
import sys
import numpy as np
from adit.lmcache import Connector
connector = Connector("serve:" + sys.argv[1], pool_bytes=1 << 20)
row = np.full(1 << 16, 7, dtype=np.uint8)
keys = [f"model@0@0@{number}" for number in range(64)]
connector.submit_batch_set(keys[:8], [memoryview(row)] * 8)
while not connector.drain_completions():
    pass
print("stored", flush=True)
while True:
    connector.submit_batch_set(keys, [memoryview(row)] * 64)
    connector.submit_batch_get(keys, [memoryview(bytearray(1 << 16)) for _ in keys])
    connector.drain_completions()
"""


def test_a_killed_engine_leaves_the_others_alone(served: Served, client: adit.Client) -> None:
    before = client.stats()
    words = [sys.executable, "-c", CLIENT, str(served.socket)]
    killed = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    connector = Connector(f"serve:{served.socket}")
    rows = noise(16, 64 << 10)
    with killed:
        assert killed.stdout is not None and killed.stdout.readline() == "stored\n"
        number = connector.submit_batch_set(BLOCKS, views(rows))
        killed.kill()
        assert end(connector, number) == (True, "", [True] * 16)
    back = pool(16, 64 << 10)
    assert end(connector, connector.submit_batch_get(BLOCKS, views(back))) == (True, "", [True] * 16)
    assert (back == rows).all()
    until(lambda: client.stats()["clients_now"] == 2)
    theirs = end(connector, connector.submit_batch_get(["model@0@0@3"], views(back[:1])))
    assert theirs[2] == [True] and (back[0] == 7).all()
    connector.close()
    until(lambda: client.stats()["mapped_bytes_now"] == before["mapped_bytes_now"])


def test_adapters_miss_what_a_killed_server_had(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    socket = f"serve:{served.socket}"
    engines.vllm(monkeypatch)
    engines.sglang(monkeypatch)
    engines.llama_cpp(monkeypatch)
    connector, blocks = Connector(socket), noise(16, 64 << 10)
    end(connector, connector.submit_batch_set(BLOCKS, views(blocks)))
    rows = pool(8, 32 << 10)
    tier = importlib.import_module("adit.vllm").AditTier(
        offloading_spec=engines.vllm_spec(),
        primary_kv_view=rows.data,
        tier_type="AditTier",
        target=socket,
    )
    tier.submit_store(job(1, CHUNKS, list(range(8))))
    assert finished(tier, 1).success
    storage = importlib.import_module("adit.sglang").AditStorage(
        HiCacheStorageConfig({"target": socket, "size_gb": 1, "weights": ""})
    )
    storage.register_mem_pool_host(HostPool(pool(16, 16 << 10).reshape(2, 8, 16 << 10)))
    pages, tokens = [f"{number:064x}" for number in range(8)], np.arange(32)
    assert storage.batch_set_v1(pages, tokens) == [True] * 8
    cache = importlib.import_module("adit.llama_cpp").PromptCache(socket, Llama())
    # Of the engines' versions and weights.
    caplog.clear()
    # They are in the middle of loads.
    served.pause()
    number = connector.submit_batch_get(BLOCKS, views(blocks))
    tier.submit_load(job(2, CHUNKS, list(range(8)), is_load=True))
    killer = threading.Timer(0.2, served.end, [signal.SIGKILL])
    killer.start()
    assert storage.batch_get_v1(pages, tokens) == [False] * 8
    killer.join()
    ok, error, loaded = end(connector, number)
    assert not ok and loaded == [False] * 16 and "lost" in error
    assert not finished(tier, 2).success
    with pytest.raises(KeyError):
        cache[list(range(40))]
    # And go on without it.
    assert storage.batch_exists(pages) == 0 and storage.batch_set_v1(pages, tokens) == [False] * 8
    assert end(connector, connector.submit_batch_set(BLOCKS, views(blocks)))[2] == [False] * 16
    tier.submit_store(job(3, CHUNKS, list(range(8))))
    assert not finished(tier, 3).success
    assert "adit.sglang: " not in caplog.text, "the connection logs that it is lost"
    for adapter in (connector, storage, cache):
        adapter.close()
    tier.shutdown()
    # With the server back, an engine that starts finds what it had.
    again = Served(served.target, tmp_path / "again.sock")
    storage = importlib.import_module("adit.sglang").AditStorage(
        HiCacheStorageConfig({"target": f"serve:{again.socket}"})
    )
    storage.register_mem_pool_host(HostPool(pool(16, 16 << 10).reshape(2, 8, 16 << 10)))
    found = storage.batch_exists(pages)
    assert storage.batch_get_v1(pages[:found], np.arange(4 * found)) == [True] * found
    assert storage.batch_set_v1(pages, tokens) == [True] * 8 and storage.batch_exists(pages) == 8
    storage.clear()
    assert storage.batch_exists(pages) == 0
    storage.close()
    again.stop()


def test_the_blocks_of_a_connection_are_its_tenants(served: Served, client: adit.Client) -> None:
    connector = Connector([f"serve:{served.socket}"], tenant="engine", register_l1=True)
    before = client.stats()["copied_bytes"]
    rows = pool(16, 64 << 10)
    assert end(connector, connector.submit_batch_set(BLOCKS, views(rows)))[0]
    assert connector.store.stats()["copied_bytes"] == before + rows.nbytes
    connector.close()
    served.end(signal.SIGTERM)
    with adit.Store(served.target) as store:
        assert store.tenants()["engine"]["objects"] == 16


def test_a_target_of_a_server_and_more_is_refused(tmp_path: Path) -> None:
    with pytest.raises(adit.InvalidError, match="one socket"):
        Connector([f"serve:{tmp_path}/kv.sock", f"uring:{tmp_path}/kv.img"])
    with pytest.raises(adit.RefusedError, match="adit kv serve"):
        Connector(f"serve:{tmp_path}/none.sock")
    with pytest.raises(TypeError, match="durability"):
        Connector(f"serve:{tmp_path}/none.sock", durability="durable")
