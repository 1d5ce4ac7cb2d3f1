"""Several processes use a store that another one serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Rows, Served, noise, until

import adit

ROW = 128 << 10


def shared(client: adit.Client, rows: int) -> Rows:
    """Return rows of the client's memory."""
    return np.frombuffer(client.allocate(rows * ROW), dtype=np.uint8).reshape(rows, ROW)


def test_two_clients_see_each_others_objects(served: Served, client: adit.Client) -> None:
    keys, rows = [f"row/{number}" for number in range(8)], noise(8, ROW)
    with adit.connect(str(served.socket), tenant="another") as other:
        assert client.put_many(keys, rows) == [True] * 8
        assert other.get_many([*keys, "none"]) == [*(row.tobytes() for row in rows), None]
        back = np.empty_like(rows)
        assert other.get_many_into([*keys[:7], "none"], back) == [ROW] * 7 + [None]
        assert np.array_equal(back[:7], rows[:7])
        assert other.exists_many(["none", keys[1]]) == [False, True] and keys[2] in other
        assert other.put("theirs", b"1", ttl=3600) is True and client.get("theirs") == b"1"
        assert other.lookup_prefix([*keys, "none", "theirs"]) == 8 and other.lookup_prefix([]) == 0
        assert other.delete_many([keys[3], "none"]) == [True, False]
        assert client.lookup_prefix(keys) == 3 and not client.delete(keys[3])
        client.commit()
        assert other.stats()["objects"] == 8 and other.stats()["clients_now"] == 2
    assert served.end(signal.SIGTERM) == 0
    with adit.Store(served.target) as store:
        assert store.get(keys[5]) == rows[5].tobytes()
        assert store.tenants()["another"]["objects"] == 1


def test_the_clients_memory_is_not_copied(client: adit.Client) -> None:
    rows, back, there = shared(client, 8), shared(client, 8), noise(8, ROW)
    rows[:] = there
    keys = [str(number) for number in range(8)]
    before = client.stats()["copied_bytes"]
    assert client.put_many(keys, rows) == [True] * 8
    assert client.get_many_into([*keys[:7], "none"], back) == [ROW] * 7 + [None]
    assert np.array_equal(back[:7], there[:7])
    assert client.put("0", rows[1]) and client.get_into("0", back[7]) == ROW
    assert np.array_equal(back[7], there[1])
    assert client.stats()["copied_bytes"] == before
    assert client.put("plain", there[0]) and client.get_into("plain", bytearray(ROW)) == ROW
    assert client.stats()["copied_bytes"] == before + 2 * ROW


def test_a_row_that_two_requests_want_is_right(client: adit.Client) -> None:
    there, memory = noise(1, ROW), shared(client, 1)
    memory[0] = there[0]
    before = client.stats()["copied_bytes"]
    assert client.put_many(["1", "2"], [memory[0], memory[0]]) == [True] * 2
    assert client.stats()["copied_bytes"] == before + ROW
    assert client.get_many(["1", "2"]) == [there[0].tobytes()] * 2


def test_memory_lasts_as_long_as_what_refers_to_it(served: Served) -> None:
    with adit.connect(served.socket) as watcher, adit.connect(served.socket) as client:
        rings = watcher.stats()["mapped_bytes_now"]
        row = shared(client, 4)[2]
        row[:] = 7
        assert watcher.stats()["mapped_bytes_now"] == rings + 4 * ROW
        client.put("row", row)
        client.close()
        assert row.tobytes() == bytes([7]) * ROW, "arrays outlast the connection"
        with pytest.raises(adit.ClosedError):
            client.get("row")
        del row
        until(lambda: watcher.stats()["clients_now"] == 1)
        assert watcher.stats()["mapped_bytes_now"] < rings
        assert watcher.get("row") == bytes([7]) * ROW


@pytest.mark.parametrize("length", [1, 4095, 4097, 300_001])
def test_lengths_that_are_no_whole_pages_come_back(client: adit.Client, length: int) -> None:
    value, memory = noise(1, length)[0].tobytes(), client.allocate(length + 5000)
    assert client.put("key", value) and client.get("key") == value
    for start in (0, 4096, 17):
        part = memory[start : start + length]
        part[:] = value
        assert client.put("other", part)
        part[:] = bytes(length)
        memory[start + length] = 99
        assert client.get_into("other", part) == length
        assert part == value and memory[start + length] == 99


def test_more_values_than_the_pool_holds_come_back(served: Served) -> None:
    keys = [str(number) for number in range(40)]
    rows = noise(40, ROW)
    with adit.connect(served.socket, pool_bytes=8 * ROW, depth=4) as client:
        assert client.put_many(keys, rows) == [True] * 40
        assert client.get_many(keys) == [row.tobytes() for row in rows]
        back = np.empty_like(rows)
        assert client.get_many_into(keys, back) == [ROW] * 40 and np.array_equal(back, rows)
        with pytest.raises(adit.InvalidError, match="raise pool_bytes"):
            client.put("long", bytes(8 * ROW + 1))


def test_layers_of_blocks_are_read(served: Served, client: adit.Client) -> None:
    shape = {"layers": 4, "kv_heads": 2, "head_dim": 64, "tokens": 128, "slots": 4}
    layout = client.layout(**shape, dtype="f16")
    blocks, keys = noise(3, layout.block_bytes), ["a", "b", "c"]
    assert client.put_many(keys, blocks, layout=layout) == [True] * 3
    length = layout.layer_bytes
    into = np.frombuffer(client.allocate(3 * length), dtype=np.uint8).reshape(3, -1)
    assert client.get_layer(2, [*keys[:2], "none"], into) == [length, length, None]
    assert np.array_equal(into[:2], blocks[:2, 2 * length : 3 * length])
    with pytest.raises(adit.BadBufferError, match="Client.allocate"):
        client.get_layer(2, keys, [into[0], into[0], into[1]])
    assert client.get_layer(1, keys, into) == [length] * 3, "a refusal gives the memory back"
    with adit.connect(served.socket) as other, pytest.raises(adit.InvalidError, match="Client.layout"):
        other.put("d", blocks[0], layout=layout)


def test_a_buffer_that_is_too_short_is_refused(client: adit.Client) -> None:
    client.put_many(["short", "long"], [b"x", bytes(ROW)])
    memory = shared(client, 1)[0]
    for buffers in ([bytearray(1), bytearray(9)], [memory[:4096], memory[4096:8192]]):
        with pytest.raises(adit.BadBufferError, match=str(ROW)) as failure:
            client.get_many_into(["short", "long"], buffers)
        assert failure.value.index == 1
    assert client.get_into("long", memory) == ROW
    with pytest.raises(adit.BadBufferError, match="writable"):
        client.get_into("long", bytes(ROW))
    with pytest.raises(adit.InvalidError, match="nbytes"):
        client.allocate(0)
    with pytest.raises(adit.RefusedError):
        client.allocate(1 << 50)


PUTTER = """
import sys, adit
client = adit.connect(sys.argv[1])
memory, number = client.allocate(1 << 20), 0
client.put("leased", b"x")
lease = client.lease(["leased"])
while True:
    memory[:8] = number.to_bytes(8, "little")
    client.put(f"object/{number}", memory)
    print(number, flush=True)
    number += 1
"""


def test_a_killed_client_leaves_what_it_put_and_nothing_else(
    served: Served, client: adit.Client
) -> None:
    before = client.stats()
    putter = subprocess.Popen(
        [sys.executable, "-c", PUTTER, str(served.socket)], stdout=subprocess.PIPE, text=True
    )
    assert putter.stdout is not None
    with putter, putter.stdout:
        told = [int(putter.stdout.readline()) for _ in range(20)]
        assert client.stats()["leases_now"] == 1 and client.stats()["clients_now"] == 2
        putter.kill()
    until(lambda: client.stats()["clients_now"] == 1)
    assert client.stats()["leases_now"] == 0
    # Its memory goes with the last put that the store is still carrying out.
    until(lambda: client.stats()["mapped_bytes_now"] == before["mapped_bytes_now"])
    for number in told:
        value = client.get(f"object/{number}")
        assert value is not None and value == number.to_bytes(8, "little") + bytes((1 << 20) - 8)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_goes_away_is_told_with_what_to_do(
    target: str, tmp_path: Path, how: signal.Signals
) -> None:
    first = Served(target, tmp_path / "kv.sock")
    client = adit.connect(first.socket)
    memory = shared(client, 4)
    memory[:] = 5
    client.put("key", memory[0])
    client.commit()
    failures: list[Exception] = []

    def work() -> None:
        try:
            while True:
                client.put_many(["1", "2", "3"], memory[:3])
        except (adit.LostError, adit.ClosedError) as why:
            failures.append(why)

    thread = threading.Thread(target=work)
    thread.start()
    first.end(how)
    thread.join(60)
    assert not thread.is_alive() and len(failures) == 1
    calls: list[Callable[[], object]] = [
        lambda: client.get("key"),
        lambda: client.put("key", b"x"),
        lambda: client.get_into("key", memory[3]),
        client.stats,
        client.commit,
        lambda: client.allocate(4096),
    ]
    for call in calls:
        with pytest.raises(adit.LostError, match="calls work again soon after 'adit kv serve' runs"):
            call()
    client.close()
    assert memory.tobytes() == bytes([5]) * (4 * ROW), "memory stays in place"
    again = Served(target, tmp_path / "kv.sock")
    with adit.connect(again.socket) as client:
        assert client.get("key") == bytes([5]) * ROW
    again.end(signal.SIGTERM)


def asked(call: Callable[[], object]) -> bool:
    try:
        return bool(call())
    except adit.DeadlineError:
        return False


def test_calls_to_a_server_that_hangs_end_in_time(served: Served) -> None:
    with adit.connect(served.socket, timeout=0.2) as client:
        memory, there = shared(client, 2), noise(2, ROW)
        memory[:] = there
        # Makes the pool, for which the server has to run.
        until(lambda: asked(lambda: client.put("plain", b"x")))
        served.pause()
        with pytest.raises(adit.DeadlineError, match="200 ms"):
            client.put_many(["a", "b"], memory)
        calls: list[Callable[[], object]] = [
            lambda: client.get_many(["a", "b"]),
            lambda: client.get("a"),
            client.commit,
        ]
        for call in calls:
            with pytest.raises(adit.DeadlineError):
                call()
        served.send(signal.SIGCONT)
        with adit.connect(served.socket) as other:
            # The requests are carried out all the same, unless their client leaves before.
            until(lambda: other.get_many(["a", "b"]) == [row.tobytes() for row in there])


def test_without_a_server_the_exception_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(adit.RefusedError, match="none.sock: .*adit kv serve --store"):
        adit.connect(tmp_path / "none.sock")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(adit.RefusedError, match="or correct the path"):
        adit.connect(tmp_path / "file")
    with pytest.raises(adit.InvalidError, match="depth is '3'"):
        adit.connect(tmp_path / "file", depth=3)


OF_ANOTHER_USER = """
import os, sys
import adit
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    adit.connect(sys.argv[1])
except adit.RefusedError as why:
    print(why)
"""


def test_the_socket_of_another_user_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    command = [sys.executable, "-c", OF_ANOTHER_USER, str(folder / "kv.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Permission denied" in done.stdout and "run as the user" in done.stdout


def test_a_forked_child_is_refused_and_harms_nothing(client: adit.Client) -> None:
    memory = shared(client, 1)
    lease = client.lease([])
    calls: list[Callable[[], object]] = [
        lambda: client.get("a"),
        lambda: client.put("a", memory),
        lambda: client.allocate(4096),
        client.close,
        lease.release,
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except adit.ForkedError as why:
                refused += "connect after the fork" in str(why)
        del client, memory, lease, calls
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(calls)
    memory[:] = 3
    before = client.stats()["copied_bytes"]
    assert client.put("a", memory) and client.get("a") == memory.tobytes()
    assert client.stats()["copied_bytes"] == before


def test_other_threads_run_while_a_call_waits(client: adit.Client) -> None:
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
            client.put("key", b"value")
        has_run = ran.is_set()
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert has_run
