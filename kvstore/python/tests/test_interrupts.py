"""Signals while calls wait: Ctrl-C ends them, and buffers stay as long as a device may write them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import Served, noise, pool, until

import adit


class Interrupted(Exception):
    """Raised by the signal's handler, as KeyboardInterrupt is by Python's."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Have Ctrl-C raise what does not end the tests."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(call: Callable[[], Any]) -> None:
    """Check that a call that waits ends when a signal comes."""
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        # Without the signal it would wait for its deadline, and raise another error.
        with pytest.raises(Interrupted):
            call()
    finally:
        timer.cancel()
        timer.join()


def in_doubt(client: adit.Client, reader: adit.Reader) -> dict[str, Callable[[], Any]]:
    """Return calls that wait for a server."""
    return {
        "put": lambda: client.put("b", bytes(10)),
        "put_many": lambda: client.put_many(["b", "c"], [bytes(10)] * 2),
        "put_from": lambda: client.put_from("b", [bytes(10)] * 2, 20),
        "get": lambda: client.get("a"),
        "get_many": lambda: client.get_many(["a", "b"]),
        "get_into": lambda: client.get_into("a", bytearray(1 << 20)),
        "get_many_into": lambda: client.get_many_into(["a", "b"], [bytearray(1 << 20)] * 2),
        "get_versioned": lambda: client.get_versioned("a"),
        "info": lambda: client.info("a"),
        "exists": lambda: client.exists("a"),
        "in": lambda: "a" in client,
        "refresh_many": lambda: client.refresh_many(["a"]),
        "lookup_prefix": lambda: client.lookup_prefix(["a"]),
        "removals": lambda: client.removals(),
        "delete": lambda: client.delete("b"),
        "delete_if": lambda: client.delete("b", if_version=1),
        "delete_where": lambda: client.delete_where(prefix="b"),
        "touch": lambda: client.touch("b", 1),
        "persist": lambda: client.persist("b"),
        "lease": lambda: client.lease(["b"]),
        "commit": lambda: client.commit(),
        "scan": lambda: client.scan(),
        "stats": lambda: client.stats(),
        "layout": lambda: client.layout(layers=1, kv_heads=1, head_dim=64, tokens=16, dtype="f16"),
        "allocate": lambda: client.allocate(1 << 20),
        "reader": lambda: client.reader("a"),
        "readinto": lambda: reader.readinto(bytearray(3 << 20)),
        "read": lambda: reader.read(),
        "read of a length": lambda: reader.read(1 << 20),
        "read1": lambda: reader.read1(1 << 20),
        "peek": lambda: reader.peek(),
        "readline": lambda: reader.readline(),
    }


def test_calls_of_a_server_that_stands_still(served: Served, client: adit.Client) -> None:
    client.put("a", noise(1, 3 << 20))
    client.put("short", b"short")
    queue, futures = client.queue(), client.futures()
    reader, short = client.reader("a"), client.reader("short")
    assert reader is not None and short is not None
    assert reader.read(1) == noise(1, 1).tobytes()
    calls = in_doubt(client, reader)
    reader.seek(2 << 20)
    served.pause()
    for call in calls.values():
        interrupted(call)
    interrupted(lambda: adit.connect(served.socket))
    queue.submit_put(["q"], [bytes(10)])
    interrupted(queue.close)
    future = futures.put("f", bytes(10))
    interrupted(lambda: future.result())
    interrupted(futures.close)
    served.send(signal.SIGCONT)
    assert future.result(60) is True
    futures.close()
    assert not futures._thread.is_alive(), "a later close waits for the end"
    # What was asked for is answered meanwhile, and the connection is as good as before.
    until(lambda: client.get_many(["short", "q", "f"]) == [b"short", bytes(10), bytes(10)])
    reader.seek(0)
    assert reader.read() == noise(1, 3 << 20).tobytes()
    reader.close()
    short.close()


def test_memory_that_is_shared_is_lent_again_once_the_server_has_answered(
    served: Served, client: adit.Client
) -> None:
    memory = client.allocate(8192)
    memory[:] = noise(1, 8192).tobytes()
    served.pause()
    interrupted(lambda: client.put("a", memory))
    served.send(signal.SIGCONT)
    until(lambda: client.exists("a"))

    def is_in_place() -> bool:
        before = client.stats()["copied_bytes"]
        assert client.get_into("a", memory) == 8192
        return client.stats()["copied_bytes"] == before

    until(is_in_place)


def test_calls_of_a_drive_that_is_slow(tmp_path: Path) -> None:
    plain = f"soft:file={tmp_path / 'disk.img'},size=64M"
    adit.Store.format(plain)
    slow = f"{plain},faults=delay(700ms)@write"
    interrupted(lambda: adit.Store.format(slow, force=True))
    until(lambda: is_there(plain))
    interrupted(lambda: adit.Store(slow))
    until(lambda: is_there(plain))
    store = adit.Store(slow)
    memory = pool(4, 4096)
    memory[:] = noise(4, 4096)
    region = store.register(memory)
    interrupted(lambda: store.put("a", memory))
    with pytest.raises(adit.BadBufferError, match="requests use 16384 bytes"):
        region.close()
    held = bytearray(4096)
    interrupted(lambda: store.put_many(["b", "c"], [held, held]))
    interrupted(lambda: store.put_from("d", [bytes(1 << 20)] * 4, 4 << 20))
    layout = store.layout(layers=1, kv_heads=1, head_dim=64, tokens=16, dtype="f16")
    writer = store.reserve_blocks(layout, ["x"])
    interrupted(lambda: writer.put_layer(0, [bytes(layout.layer_bytes)]))
    interrupted(writer.commit)
    del writer  # It has the devices as long as it is there.
    queue = store.queue()
    queue.submit_put(["q"], [bytes(4096)])
    interrupted(queue.close)
    # What was left goes on, and gives the memory back.
    until(lambda: store.exists_many(["a", "b", "c", "x", "q"]) == [True] * 5)
    until(lambda: closes(region))
    assert store.get("a") == memory.tobytes() and not store.exists("d")
    interrupted(store.close)
    with pytest.raises(adit.ClosedError):
        store.get("a")
    # As the end of the process does.
    store.close()
    assert is_there(plain), "a later close waits for the end"


def is_there(target: str) -> bool:
    """Return whether a store can be opened: what was left has ended."""
    try:
        adit.Store(target).close()
    except adit.Error:
        return False
    return True


def closes(region: adit.Region) -> bool:
    """Return whether no request has some of the memory."""
    try:
        region.close()
    except adit.BadBufferError:
        return False
    return True


def test_a_source_that_is_interrupted_leaves_nothing(store: adit.Store) -> None:
    threads: set[int] = set()

    def chunks() -> Iterator[bytes]:
        threads.add(threading.get_ident())
        yield bytes(1 << 20)
        os.kill(os.getpid(), signal.SIGINT)
        yield bytes(1 << 20)

    with pytest.raises(Interrupted):
        store.put_from("a", chunks(), 2 << 20)
    assert not store.exists("a") and threads == {threading.get_ident()}


def test_a_buffer_is_kept_until_its_request_has_ended(served: Served, client: adit.Client) -> None:
    client.put("a", noise(1, 4096))
    buffer = bytearray(4096)
    served.pause()
    interrupted(lambda: client.get_into("a", buffer))
    with pytest.raises(BufferError, match="re-sized"):
        buffer.clear()
    served.send(signal.SIGCONT)
    until(lambda: is_free(buffer))


def test_a_reader_lets_go_of_a_buffer_whose_caller_leaves(served: Served, client: adit.Client) -> None:
    client.put("a", noise(1, 1 << 20))
    reader, buffer = client.reader("a"), bytearray(1 << 20)
    assert reader is not None
    served.pause()
    interrupted(lambda: reader.readinto(buffer))
    assert is_free(buffer), "of io.BufferedReader's own memory nothing else would be kept"
    served.send(signal.SIGCONT)
    assert reader.read() == noise(1, 1 << 20).tobytes()


def is_free(buffer: bytearray) -> bool:
    """Return whether a buffer is nowhere used."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    return True
