"""Forks, threads, kills, and damage on the drive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import noise, pool

import adit


def test_a_forked_child_is_refused_and_harms_nothing(store: adit.Store) -> None:
    rows = pool(4, 64 << 10)
    region, queue = store.register(rows), store.queue()
    lease, futures = store.lease(["a"]), store.futures()
    writer = store.reserve_blocks(
        store.layout(layers=1, kv_heads=1, head_dim=64, tokens=16, dtype="f16"), ["block"]
    )
    store.put("a", rows[0])
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.put("a", b"x"),
        store.close,
        store.stats,
        store.queue,
        queue.drain,
        lambda: queue.submit_get(["a"]),
        lambda: futures.get("a"),
        region.close,
        lease.release,
        writer.commit,
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except adit.ForkedError as why:
                refused += "after the fork" in str(why)
        del store, region, queue, lease, writer, calls
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(calls)
    assert store.put("a", rows[1]) and store.get_into("a", rows[2]) == 64 << 10
    assert store.stats()["copied_bytes"] == 0
    writer.close()
    futures.close()


@pytest.mark.parametrize("call", ["get", "get_into", "put", "put_many", "exists", "commit", "stats"])
def test_other_threads_run_while_a_call_waits(store: adit.Store, call: str) -> None:
    store.put("key", bytes(1 << 20))
    into = bytearray(1 << 20)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("key"),
        "get_into": lambda: store.get_into("key", into),
        "put": lambda: store.put("key", into),
        "put_many": lambda: store.put_many(["key"], [into]),
        "exists": lambda: store.exists("key"),
        "commit": store.commit,
        "stats": store.stats,
    }
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def wait() -> None:
        with gate:
            ran.set()

    before = sys.getswitchinterval()
    thread = threading.Thread(target=wait)
    thread.start()
    # From here on the thread runs only if a call lets it.
    sys.setswitchinterval(1000)
    try:
        gate.release()
        for _ in range(10_000):
            if ran.is_set():
                break
            calls[call]()
        has_run = ran.is_set()
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert has_run


WRITER = """
import sys, adit
target, durability = sys.argv[1:]
store = adit.Store(target, durability=durability)
generation = 0
while True:
    for number in range(50):
        text = f"{number}.{generation}."
        store.put(f"key/{number}", (text * 40_000)[:65_000 + 97 * number].encode())
        print("put", number, generation, flush=True)
    store.commit()
    print("committed", 0, generation, flush=True)
    generation += 1
"""


@pytest.mark.parametrize("durability", ["durable", "restart"])
@pytest.mark.parametrize("lines", [20, 137, 260])
def test_what_a_killed_process_was_told_is_there(target: str, durability: str, lines: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, target, durability], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        told = [writer.stdout.readline().split() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        told += [line.split() for line in writer.stdout if line.endswith("\n")]
    least: dict[int, int] = {}
    committed = -1
    for what, key, version in told:
        if what == "committed":
            committed = int(version)
        elif durability == "durable":
            least[int(key)] = int(version)
    with adit.Store(target) as store:
        for number in range(50):
            value = store.get(f"key/{number}")
            promised = max(least.get(number, -1), committed)
            if value is None:
                assert promised == -1, f"object {number} of generation {promised} is gone"
                continue
            generation = int(value.split(b".")[1])
            text = (f"{number}.{generation}." * 40_000)[: 65_000 + 97 * number]
            assert value == text.encode(), "no other byte is ever returned"
            assert generation >= promised
        store.put("another", b"x")
        assert store.get("another") == b"x"


def test_a_corrupt_block_is_a_miss(target: str) -> None:
    image = Path(target.removeprefix("uring:"))
    rows = noise(8, 128 << 10)
    keys = [f"row/{number}" for number in range(8)]
    with adit.Store(target) as store:
        store.put_many(keys, rows)
    with image.open("r+b") as file:
        contents = file.read()
        at = contents.find(rows[3].tobytes())
        assert at > 0
        file.seek(at + 70_000)
        file.write(bytes([contents[at + 70_000] ^ 1]))
    with adit.Store(target) as store:
        into = pool(8, 128 << 10)
        with store.register(into):
            lengths = store.get_many_into(keys, into)
            assert lengths == [None if number == 3 else 128 << 10 for number in range(8)]
            assert store.get(keys[3]) is None and store.lookup_prefix(keys) == 3
            assert store.stats()["misses_corrupt"] == 1
            for number in {0, 1, 2, 4, 5, 6, 7}:
                assert into[number].tobytes() == rows[number].tobytes()


def test_a_process_that_ends_closes_its_stores(target: str) -> None:
    lines = "import sys, adit\nstore = adit.Store(sys.argv[1])\nstore.put('key', b'last')"
    subprocess.run([sys.executable, "-c", lines, target], check=True)
    with adit.Store(target) as store:
        assert store.get("key") == b"last"
