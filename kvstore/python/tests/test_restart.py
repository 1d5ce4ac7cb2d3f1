"""A served store that restarts: the connections to it come back, and with them all that uses them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from conftest import Rows, Served, noise, pool, until
from engines import HiCacheStorageConfig, HostPool, Llama, LookupResult, ObjectKey, ReqContext
from test_futures import drain
from test_llama_cpp import same, state
from test_lmcache import KEYS as BLOCKS
from test_lmcache import end, views
from test_lmcache_l2 import leased, load, look_up
from test_lmcache_l2 import store as store_blocks
from test_lmcache_plugin import KEYS as WHOLE
from test_lmcache_plugin import Make, chunk
from test_lmcache_plugin import make as plugins
from test_lmcache_plugin import store as store_chunks
from test_vllm import KEYS as CHUNKS
from test_vllm import ROW as TOLD_ROW
from test_vllm import ask, finished, job
from test_vllm_events import KEYS as TOLD
from test_vllm_events import ON, Told
from test_vllm_events import store as store_told

import adit
from adit.lmcache import Connector

ROW = 128 << 10
KEYS = [f"row/{number}" for number in range(8)]
# Others than the native connector's.
L2_BLOCKS = [ObjectKey(bytes([number]) * 32, "l2") for number in range(16)]
LOST, BACK, COPIED = "kv.sock is lost", "kv.sock is back", "allocate anew"
SHAPE: dict[str, Any] = {"layers": 4, "kv_heads": 2, "head_dim": 64, "tokens": 128, "dtype": "f16"}

# A fixture of another module's tests.
make = plugins


class Restarting:
    """A server at one socket, which is killed and started again."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target, self.socket = target, folder / "kv.sock"
        self.now = Served(target, self.socket)

    @property
    def engines_target(self) -> str:
        """Return the target for adapters."""
        return f"serve:{self.socket}"

    def start(self, *options: str) -> None:
        """Start it again."""
        self.now = Served(self.target, self.socket, *options)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, and start it again."""
        self.now.end(how)
        self.start()


@pytest.fixture
def server(target: str, tmp_path: Path) -> Iterator[Restarting]:
    """Return a server that can be restarted."""
    server = Restarting(target, tmp_path)
    yield server
    server.now.stop()


@pytest.fixture
def client(server: Restarting) -> Iterator[adit.Client]:
    """Return a connection to it."""
    with adit.connect(server.socket) as client:
        yield client


def is_there(call: Callable[[], object]) -> bool:
    """Say whether a call does not find its server lost."""
    try:
        call()
    except adit.LostError:
        return False
    return True


def shared(client: adit.Client, rows: int) -> Rows:
    """Return rows of the client's memory."""
    return np.frombuffer(client.allocate(rows * ROW), dtype=np.uint8).reshape(rows, ROW)


def count(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def connecting() -> int:
    """Return how many threads connect again."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return names.count("adit-connects")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_calls_work_again_after_each_restart(
    server: Restarting, client: adit.Client, how: signal.Signals
) -> None:
    rows, queue, futures = noise(8, ROW), client.queue(), client.futures()
    assert client.put_many(KEYS, rows) == [True] * 8
    client.commit()
    event = queue.event_fd()

    async def serve() -> None:
        async with client.aio() as aio:
            for _ in range(2):
                server.restart(how)
                while not isinstance(found := (await gather(aio.get(KEYS[1])))[0], bytes):
                    assert isinstance(found, adit.LostError)
                    await asyncio.sleep(0.005)
                assert found == rows[1].tobytes()

    async def gather(*futures: Any) -> Any:
        return await asyncio.gather(*futures, return_exceptions=True)

    for _ in range(2):
        server.restart(how)
        until(lambda: is_there(lambda: client.exists("none")))
        assert client.get_many([*KEYS, "none"]) == [*(row.tobytes() for row in rows), None]
        back = np.zeros_like(rows)
        number = queue.submit_get_into(KEYS, back)
        assert drain(queue, 1) == {number: ([ROW] * 8, None)} and queue.event_fd() == event
        assert np.array_equal(back, rows)
        assert futures.get(KEYS[3]).result(30) == rows[3].tobytes()
        assert client.put("again", rows[0]) and client.stats()["clients_now"] == 1
        client.commit()
    asyncio.run(serve())
    assert client.get("again") == rows[0].tobytes()
    futures.close()
    queue.close()


def test_a_loss_is_logged_once_and_its_end_once(
    server: Restarting, client: adit.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.queue()
    for number in range(1, 4):
        server.now.end(signal.SIGKILL)
        for _ in range(50):
            assert not is_there(lambda: client.get("key"))
            queue.submit_exists(["key"])
        assert all(isinstance(why, adit.LostError) for _, why in drain(queue, 50).values())
        until(lambda: count(caplog, LOST) == number)
        assert count(caplog, BACK) == number - 1
        until(lambda: connecting() == 1)
        server.start()
        until(lambda: is_there(lambda: client.get("key")))
        until(lambda: count(caplog, BACK) == number)
    assert count(caplog, LOST) == 3 and str(server.socket) in caplog.text
    assert len(caplog.records) == 6, "and nothing else"
    until(lambda: connecting() == 0)
    queue.close()


@pytest.mark.parametrize("notice", ["stats", "allocate", "layout", "reader"])
def test_any_call_that_finds_the_server_lost_connects_again(
    server: Restarting, client: adit.Client, notice: str
) -> None:
    calls: dict[str, Callable[[], object]] = {
        "stats": client.stats,
        "allocate": lambda: client.allocate(4096),
        "layout": lambda: client.layout(**SHAPE),
        "reader": lambda: client.reader("none"),
    }
    client.put("key", b"value")
    server.restart(signal.SIGTERM)
    until(lambda: is_there(calls[notice]))
    assert client.get("key") == b"value"


def test_what_is_in_flight_at_the_loss_ends_once(server: Restarting, client: adit.Client) -> None:
    rows, queue, futures = noise(8, ROW), client.queue(), client.futures()
    client.put_many(KEYS, rows)
    client.commit()
    server.now.pause()
    numbers = [queue.submit_get(KEYS), queue.submit_put(["new"], rows[:1])]
    numbers.append(queue.submit_get_into(KEYS, np.zeros_like(rows)))
    pending = [futures.get(key) for key in KEYS]
    server.restart()
    # These come while the connection does.
    numbers += [queue.submit_exists(KEYS) for _ in range(20)]
    ended = drain(queue, len(numbers))
    assert sorted(ended) == numbers  # type: ignore[type-var]
    assert all(isinstance(ended[number][1], adit.LostError) for number in numbers[:3])
    assert all(isinstance(future.exception(30), adit.LostError) for future in pending)
    until(lambda: is_there(lambda: client.get("none")))
    number = queue.submit_get(KEYS)
    assert drain(queue, 1) == {number: ([row.tobytes() for row in rows], None)}
    futures.close()
    queue.close()


def test_memory_of_a_lost_server_is_copied_and_new_memory_is_not(
    server: Restarting, client: adit.Client, caplog: pytest.LogCaptureFixture
) -> None:
    old, there = shared(client, 8), noise(8, ROW)
    old[:] = there
    assert client.put_many(KEYS[:4], old[:4]) == [True] * 4 and client.times_connected == 1
    for life in range(1, 4):
        new = shared(client, 8)
        before = client.stats()["copied_bytes"]
        assert client.put_many(KEYS, new) == [True] * 8 and client.stats()["copied_bytes"] == before
        server.restart(signal.SIGTERM)
        until(lambda: is_there(lambda: client.get("none")))
        assert client.times_connected == life + 1
        assert np.array_equal(old, there), "its bytes stay"
        before = client.stats()["copied_bytes"]
        assert client.put_many(KEYS, old) == [True] * 8
        new[:] = 0
        assert client.get_many_into(KEYS, new) == [ROW] * 8 and np.array_equal(new, there)
        assert client.stats()["copied_bytes"] == before + 16 * ROW
        with pytest.raises(adit.BadBufferError, match="Client.allocate"):
            client.get_layer(0, KEYS[:1], old[:1])
        until(lambda: count(caplog, BACK) == life)
        assert count(caplog, COPIED) == life
    server.restart(signal.SIGTERM)
    until(lambda: is_there(lambda: client.get("none")))
    until(lambda: count(caplog, BACK) == 4)
    assert count(caplog, COPIED) == 3, "a loss is logged once"
    mapped = client.stats()["mapped_bytes_now"]
    new = shared(client, 8)
    assert client.stats()["mapped_bytes_now"] > mapped
    del new
    until(lambda: client.stats()["mapped_bytes_now"] == mapped)


def test_memory_that_the_lost_server_had_in_use_is_copied(
    server: Restarting, client: adit.Client
) -> None:
    memory, there, queue = shared(client, 8), noise(8, ROW), client.queue()
    memory[:] = there
    client.put_many(KEYS, memory)
    client.commit()
    server.now.pause()
    queue.submit_get_into(KEYS[:2], memory[:2])
    server.restart()
    drain(queue, 1)
    until(lambda: is_there(lambda: client.get("none")))
    before = client.stats()["copied_bytes"]
    assert client.get_many_into(KEYS, memory) == [ROW] * 8
    assert np.array_equal(memory, there)
    assert client.stats()["copied_bytes"] == before + 8 * ROW
    queue.close()


def test_layouts_are_defined_again(server: Restarting, client: adit.Client) -> None:
    layout = client.layout(**SHAPE, slots=4)
    blocks, keys = noise(3, layout.block_bytes), ["a", "b", "c"]
    length = layout.layer_bytes
    for what in ("as it was", "formatted anew"):
        server.now.end(signal.SIGTERM)
        with pytest.raises(adit.LostError):
            client.put_many(keys, blocks, layout=layout)
        if what == "formatted anew":
            adit.Store.format(server.target, size=128 << 20, force=True)
        server.start()
        until(lambda: is_there(lambda: client.get("none")))
        is_new = what == "formatted anew"
        assert client.exists("a") is False, "the first server was given none" if is_new else what
        # Takes the first number.
        client.layout(**{**SHAPE, "tokens": 64}, slots=4)
        assert client.put_many(keys, blocks, layout=layout) == [True] * 3
        into = np.frombuffer(client.allocate(3 * length), dtype=np.uint8).reshape(3, -1)
        assert client.get_layer(2, keys, into) == [length] * 3
        assert np.array_equal(into, blocks[:, 2 * length : 3 * length])


def test_a_store_that_was_formatted_anew_has_misses(
    server: Restarting, client: adit.Client
) -> None:
    client.put("key", b"value")
    server.now.end(signal.SIGTERM)
    adit.Store.format(server.target, size=128 << 20, force=True)
    server.start()
    until(lambda: is_there(lambda: client.get("key")))
    assert client.get("key") is None and client.put("key", b"another")
    assert client.get("key") == b"another"


def test_readers_go_on_if_their_object_is_the_same(server: Restarting, client: adit.Client) -> None:
    long = noise(1, 20 << 20)[0].tobytes()
    assert client.put_from("long", [long]) and client.put_from("other", [long])
    client.commit()
    with client.reader("long") as reader, client.reader("other") as other:  # type: ignore[union-attr]
        begin = reader.read(1 << 20)
        assert begin == long[: 1 << 20] == other.read(1 << 20)
        server.restart()
        until(lambda: is_there(lambda: client.get("none")))
        assert reader.read() == long[1 << 20 :]
        client.put("other", b"another")
        server.restart()
        until(lambda: is_there(lambda: client.get("none")))
        with pytest.raises(adit.ConflictError) as conflict:
            other.seek(0)
            other.read()
        assert conflict.value.version == client.info("other")["version"]  # type: ignore[index]


def test_a_stream_that_is_cut_off_stores_nothing(server: Restarting, client: adit.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(10 << 20)
        server.restart()
        yield bytes(10 << 20)

    with pytest.raises(adit.LostError):
        client.put_from("long", pieces(), 20 << 20)
    until(lambda: is_there(lambda: client.get("none")))
    assert client.exists("long") is False and client.put_from("long", [bytes(20 << 20)])


def test_leases_of_a_lost_server_are_gone(server: Restarting, client: adit.Client) -> None:
    client.put("key", b"value")
    lease = client.lease(["key"])
    server.restart(signal.SIGTERM)
    until(lambda: is_there(lambda: client.get("none")))
    assert client.stats()["leases_now"] == 0
    lease.release()
    with client.lease(["key"]) as again:
        assert again.count == 1 and client.stats()["leases_now"] == 1


class Dropping:
    """Listens where the server was, and drops each client at once."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()
                self.times.append(time.monotonic())

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def test_tries_to_connect_become_rarer(server: Restarting, client: adit.Client) -> None:
    server.now.end(signal.SIGKILL)
    dropping = Dropping(server.socket)
    assert not is_there(lambda: client.get("key"))
    until(lambda: len(dropping.times) == 5)
    gaps = np.diff(dropping.times)
    dropping.close()
    # A sleep is not shorter than it is meant to be.
    assert all(gap > least for gap, least in zip(gaps, (0.09, 0.19, 0.39, 0.79))), gaps
    server.start()
    until(lambda: is_there(lambda: client.get("key")))


def test_a_closed_connection_does_not_come_back(server: Restarting) -> None:
    closed, forgotten = adit.connect(server.socket), adit.connect(server.socket)
    server.now.end(signal.SIGKILL)
    for client in (closed, forgotten):
        assert not is_there(lambda: client.get("key"))
    until(lambda: connecting() == 2)
    closed.close()
    until(lambda: connecting() == 1)
    del client, forgotten
    until(lambda: connecting() == 0)
    with pytest.raises(adit.ClosedError):
        closed.get("key")


def test_a_fork_while_the_server_is_lost_harms_nothing(
    server: Restarting, client: adit.Client
) -> None:
    client.put("key", b"value")
    client.commit()
    queue = client.queue()
    server.now.end(signal.SIGKILL)
    assert not is_there(lambda: client.get("key"))
    child = os.fork()
    if child == 0:
        try:
            client.get("key")
        except adit.ForkedError:
            del client, queue
            os._exit(connecting())
        os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child is refused, and has no thread"
    server.start()
    until(lambda: is_there(lambda: client.get("key")))
    number = queue.submit_get(["key"])
    assert drain(queue, 1) == {number: ([b"value"], None)}


def test_a_process_in_another_folder_finds_the_socket(
    server: Restarting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with adit.connect("kv.sock") as client:
        client.put("key", b"value")
        client.commit()
        monkeypatch.chdir("/")
        server.restart()
        until(lambda: is_there(lambda: client.get("key")))
        assert client.get("key") == b"value"


def test_a_server_that_stops_for_a_while_is_not_lost(
    server: Restarting, caplog: pytest.LogCaptureFixture
) -> None:
    with adit.connect(server.socket, timeout=0.2) as client:
        until(lambda: not isinstance(failure(lambda: client.put("key", b"value")), Exception))
        server.now.pause()
        for _ in range(3):
            assert isinstance(failure(lambda: client.get("key")), adit.DeadlineError)
        server.now.send(signal.SIGCONT)
        until(lambda: failure(lambda: client.get("key")) == b"value")
        assert count(caplog, LOST) == 0 == connecting()


def failure(call: Callable[[], object]) -> object:
    """Return what a call returns, or its failure to answer in time."""
    try:
        return call()
    except adit.DeadlineError as why:
        return why


def test_a_server_that_refuses_is_told_of_once(
    server: Restarting, client: adit.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.put("key", b"value")
    client.commit()
    server.now.end(signal.SIGKILL)
    server.socket.unlink()
    os.symlink("kv.sock", server.socket)
    assert not is_there(lambda: client.get("key"))
    until(lambda: count(caplog, "cannot connect to the store's server again") == 1)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 0.5)
    assert count(caplog, "cannot connect") == 1
    server.socket.unlink()
    server.start()
    until(lambda: is_there(lambda: client.get("key")))


def test_adapters_find_their_blocks_after_each_restart(
    server: Restarting,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = server.engines_target
    engines.vllm(monkeypatch)
    engines.sglang(monkeypatch)
    engines.llama_cpp(monkeypatch)
    engines.lmcache_l2(monkeypatch)
    connector, blocks = Connector(target), noise(16, 64 << 10)
    adapter = importlib.import_module("adit.lmcache_l2").AditAdapter({"target": target, "weights": ""})
    rows, kept = pool(8, 32 << 10), noise(8, 32 << 10, 2)
    tier = importlib.import_module("adit.vllm").AditTier(
        offloading_spec=engines.vllm_spec(),
        primary_kv_view=rows.data,
        tier_type="AditTier",
        target=target,
    )
    storage = importlib.import_module("adit.sglang").AditStorage(
        HiCacheStorageConfig({"target": target})
    )
    halves, pages = pool(16, 16 << 10), [f"{number:064x}" for number in range(8)]
    tokens, was = np.arange(32), noise(16, 16 << 10, 3)
    storage.register_mem_pool_host(HostPool(halves.reshape(2, 8, 16 << 10)))
    # Its states are longer than the pool.
    cache = importlib.import_module("adit.llama_cpp").PromptCache(target, Llama(), pool_bytes=1 << 20)
    prompt = list(range(40))
    plugin = make(target=target)
    rows[:], halves[:] = kept, was
    assert end(connector, connector.submit_batch_set(BLOCKS, views(blocks)))[0]
    assert store_blocks(adapter, L2_BLOCKS, blocks) == blocks.nbytes
    tier.submit_store(job(1, CHUNKS, list(range(8))))
    assert finished(tier, 1).success
    assert storage.batch_set_v1(pages, tokens) == [True] * 8
    cache[prompt] = state(prompt, 3 << 20)
    assert store_chunks(plugin, 0, 1, 2) == [0, 1, 2]
    cache.store.commit()
    # Of the engines' versions.
    caplog.clear()

    def lmcache() -> bool:
        back = pool(16, 64 << 10)
        loaded = end(connector, connector.submit_batch_get(BLOCKS, views(back)))[2]
        assert loaded is not None and all((back[at] == blocks[at]).all() for at in range(16) if loaded[at])
        return all(loaded)

    def lmcache_l2() -> bool:
        back = pool(16, 64 << 10)
        loaded = load(adapter, L2_BLOCKS, back)
        assert all((back[at] == blocks[at]).all() for at in range(16) if loaded[at])
        return all(loaded)

    def vllm(number: int) -> bool:
        rows[:] = 0
        request = ReqContext(f"request {number} {time.monotonic()}")
        verdicts = ask(tier, CHUNKS, request)
        if verdicts == [LookupResult.MISS] * 8:
            return False
        assert verdicts == [LookupResult.HIT] * 8
        tier.submit_load(job(number, CHUNKS, list(range(8)), is_load=True))
        loaded = finished(tier, number).success
        assert not loaded or (rows == kept).all()
        tier.on_request_finished(request)
        return loaded

    def sglang() -> bool:
        halves[:] = 0
        loaded = storage.batch_exists(pages) == 8 and all(storage.batch_get_v1(pages, tokens))
        assert not loaded or (halves == was).all()
        return loaded

    def llama() -> bool:
        try:
            assert same(cache[prompt], state(prompt, 3 << 20))
        except KeyError:
            return False
        return prompt in cache

    def whole() -> bool:
        found = plugin.batched_get_blocking(WHOLE[:3])
        for number, held in enumerate(found):
            if held is not None:
                wanted = chunk(plugin, number)
                assert np.array_equal(held.array, wanted.array)
                wanted.ref_count_down()
                held.ref_count_down()
        return None not in found

    jobs, lives = itertools.count(2), 4
    for life in range(lives):
        number = next(jobs)
        assert look_up(adapter, L2_BLOCKS) == [True] * 16
        if life % 2:
            server.now.pause()
            # It is lost in the middle of these.
            late = connector.submit_batch_get(BLOCKS, views(pool(16, 64 << 10)))
            tier.submit_load(job(number, CHUNKS, list(range(8)), is_load=True))
            server.now.end(signal.SIGKILL)
            assert end(connector, late)[2] == [False] * 16
            assert not finished(tier, number).success
            tier.drain_jobs()
        else:
            server.now.end(signal.SIGKILL)
        assert not lmcache() and not vllm(next(jobs)) and not sglang() and not llama() and not whole()
        assert not lmcache_l2() and look_up(adapter, L2_BLOCKS) == [False] * 16
        assert storage.batch_set_v1(pages, tokens) == [False] * 8 and not storage.clear()
        assert prompt not in cache and plugin.batched_submit_put_task(WHOLE[:1], [None]) is None
        server.start()
        until(lmcache)
        until(lambda: vllm(next(jobs)))
        until(sglang)
        until(llama)
        until(whole)
        until(lmcache_l2)
        # Those of the old server are gone, and taken away first.
        assert len(adapter._pins) == 16 and look_up(adapter, L2_BLOCKS) == [True] * 16
        adapter.submit_unlock(L2_BLOCKS)
        leased(adapter, 16)
        adapter.submit_unlock(L2_BLOCKS)
        leased(adapter, 0)
        assert len(adapter._pins) == 0
    until(lambda: count(caplog, BACK) == 6 * lives)
    assert count(caplog, LOST) == 6 * lives and count(caplog, COPIED) == lives, "of the states' memory"
    assert len(caplog.records) == 13 * lives, "two lines for each loss"
    for each in (connector, adapter, storage, cache, plugin):
        each.close()
    tier.shutdown()


def test_a_state_longer_than_the_pool_is_found_after_a_loss_that_met_no_state(
    server: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.llama_cpp(monkeypatch)
    cache = importlib.import_module("adit.llama_cpp").PromptCache(
        server.engines_target, Llama(), pool_bytes=1 << 20
    )
    prompt = list(range(40))
    cache[prompt] = state(prompt, 3 << 20)
    for _ in range(2):
        server.restart(signal.SIGTERM)
        until(lambda: prompt in cache)
        assert same(cache[prompt], state(prompt, 3 << 20))
        assert cache.store.stats()["copied_bytes"] < 1 << 20
    cache.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_events_tell_what_a_server_that_was_started_again_has(
    server: Restarting, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    engines.vllm(monkeypatch)
    rows = pool(64, TOLD_ROW)
    rows[:] = noise(64, TOLD_ROW)
    tier = importlib.import_module("adit.vllm").AditTier(
        offloading_spec=engines.vllm_spec(**ON),
        primary_kv_view=rows.data,
        tier_type="AditTier",
        target=server.engines_target,
        enable_kv_events=True,
    )
    told, names = Told(tier), {key: tier._space + key for key in TOLD}
    store_told(tier, 1, TOLD)
    told.until(there := set(TOLD))
    for life in range(3):
        told.settle()
        cursor = tier._announced._cursor
        tier.store.commit()
        server.now.end(how)
        gone = TOLD[8 * life : 8 * life + 4]
        with adit.Store(server.target) as store:
            store.delete_many([names[key] for key in gone])
        told.settle()
        assert told.blocks == there, "nothing is known of a lost store"
        server.start()
        until(lambda: is_there(lambda: tier.store.exists("none")))
        assert tier.store.removals(cursor)[2], "its place is none of the new server's"
        told.until(there := there - set(gone))
        told.settle()
        # And of what goes from then on.
        later = TOLD[8 * life + 4 : 8 * life + 6]
        tier.store.delete_many([names[key] for key in later])
        told.until(there := there - set(later))
        store_told(tier, 2 + life, gone[:2])
        told.until(there := there | set(gone[:2]))
    with adit.connect(server.socket) as other:
        for number in range(150):
            other.put(f"other {number}", bytes(1 << 20))
        there = {key for key in there if other.exists(names[key])}
        assert len(there) < 50, "some were evicted"
        told.until(there)
    tier.shutdown()


def test_vllm_asks_again_for_new_requests_only(
    server: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.vllm(monkeypatch)
    rows = pool(8, 32 << 10)
    tier = importlib.import_module("adit.vllm").AditTier(
        offloading_spec=engines.vllm_spec(),
        primary_kv_view=rows.data,
        tier_type="AditTier",
        target=server.engines_target,
    )
    tier.submit_store(job(1, CHUNKS[:4], list(range(4))))
    assert finished(tier, 1).success
    tier.store.commit()
    old = ReqContext("old")
    server.now.end(signal.SIGKILL)
    assert ask(tier, CHUNKS, old) == [LookupResult.MISS] * 8
    server.start()
    until(lambda: is_there(lambda: tier.store.get("none")))
    assert ask(tier, CHUNKS, old) == [LookupResult.MISS] * 8, "it computes them already"
    new = [LookupResult.HIT] * 4 + [LookupResult.MISS] * 4
    assert ask(tier, CHUNKS, ReqContext("new")) == new
    # So is a load that the loss cut off.
    server.now.pause()
    tier.submit_load(job(2, CHUNKS[:4], list(range(4)), is_load=True))
    server.restart()
    assert not finished(tier, 2).success
    until(lambda: is_there(lambda: tier.store.get("none")))
    assert ask(tier, CHUNKS, ReqContext("newer")) == new
    tier.shutdown()


def test_adapters_end_while_their_server_is_lost(
    server: Restarting, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.vllm(monkeypatch)
    connector, plugin = Connector(server.engines_target), make(target=server.engines_target)
    rows, blocks = pool(8, 32 << 10), noise(16, 64 << 10)
    tier = importlib.import_module("adit.vllm").AditTier(
        offloading_spec=engines.vllm_spec(),
        primary_kv_view=rows.data,
        tier_type="AditTier",
        target=server.engines_target,
    )
    assert store_chunks(plugin, 0) == [0] and plugin.pin(WHOLE[0])
    server.now.pause()
    tier.submit_store(job(1, CHUNKS, list(range(8))))
    connector.submit_batch_set(BLOCKS, views(blocks))
    server.now.end(signal.SIGKILL)
    tier.drain_jobs()
    assert not finished(tier, 1).success
    tier.shutdown()
    connector.close()
    plugin.close()
    until(lambda: connecting() == 0)
