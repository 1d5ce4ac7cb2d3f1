"""The contract of LMCache's native clients."""

from __future__ import annotations

import ctypes
import logging
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Rows, anywhere, noise, pool
from test_weights import model

import adit
from adit.lmcache import Connector

KEYS = [f"meta/llama@{0:08x}@0@{number:064x}" for number in range(16)]


@pytest.fixture
def config(place: str) -> dict[str, object]:
    return {"target": place, "size_gb": 0.125}


@pytest.fixture
def connector(config: dict[str, object]) -> Iterator[Connector]:
    connector = Connector(**config)  # type: ignore[arg-type]
    yield connector
    connector.close()


def views(rows: Rows) -> list[memoryview]:
    """Return buffers as LMCache has them: of bytes, over memory of its own."""
    return [memoryview((ctypes.c_ubyte * row.nbytes).from_buffer(row)) for row in rows]


def end(connector: Connector, number: int) -> tuple[bool, str, list[bool] | None]:
    poll = select.poll()
    poll.register(connector.event_fd(), select.POLLIN)
    while True:
        assert poll.poll(30_000), "the eventfd says that it has ended"
        for ended, ok, error, per_key in connector.drain_completions():
            assert ended == number
            return (ok, error, per_key)


@anywhere
def test_batches_end_with_a_result_for_each_key(connector: Connector) -> None:
    rows, back = noise(16, 64 << 10), pool(16, 64 << 10)
    assert end(connector, connector.submit_batch_set(KEYS, views(rows))) == (True, "", [True] * 16)
    exists = end(connector, connector.submit_batch_exists(["none", *KEYS]))
    assert exists == (True, "", [False] + [True] * 16)
    get = end(connector, connector.submit_batch_get([*KEYS[:15], "none"], views(back)))
    assert get == (True, "", [True] * 15 + [False])
    assert (back[:15] == rows[:15]).all() and not back[15].any()
    delete = end(connector, connector.submit_batch_delete([KEYS[0], "none"]))
    assert delete == (True, "", [True, True])
    assert end(connector, connector.submit_batch_exists(KEYS[:2]))[2] == [False, True]
    assert end(connector, connector.submit_batch_set([], [])) == (True, "", [])


@anywhere
def test_a_block_of_another_length_is_a_miss(connector: Connector) -> None:
    end(connector, connector.submit_batch_set(KEYS[:2], views(noise(2, 8192))))
    longer = pool(2, 16_384)
    assert end(connector, connector.submit_batch_get(KEYS[:2], views(longer)))[2] == [False] * 2
    ok, error, loaded = end(connector, connector.submit_batch_get(KEYS[:1], views(longer[:1, :4096])))
    assert (ok, loaded) == (False, [False]) and "8192 bytes" in error


@anywhere
def test_other_configurations_have_other_keys(config: dict[str, object]) -> None:
    for namespace in ("bf16", "fp8"):
        connector = Connector(**config, namespace=namespace)  # type: ignore[arg-type]
        assert end(connector, connector.submit_batch_exists(KEYS[:1]))[2] == [False]
        end(connector, connector.submit_batch_set(KEYS[:1], views(noise(1, 8192))))
        connector.close()


def test_other_weights_at_the_same_path_find_nothing(
    config: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, other = model(tmp_path / "tiny"), model(tmp_path / "other", seed=3)
    # One server has several models, and names one with its layout.
    keys = [f"{name}@00000000@0@01" for name in (folder, f"{folder}##lmcache-dcp-layout-v1-d2", other, "remote/x")]

    def found(**params: object) -> list[bool] | None:
        connector = Connector(**config, **params)  # type: ignore[arg-type]
        per_key = end(connector, connector.submit_batch_exists(keys))[2]
        connector.close()
        return per_key

    connector = Connector(**config)  # type: ignore[arg-type]
    for _ in range(2):
        end(connector, connector.submit_batch_set(keys, views(noise(4, 4096))))
    connector.close()
    assert caplog.text.count("keys have the name of 'remote/x' alone") == 1, "once, and no other"
    assert found() == [True] * 4
    shutil.rmtree(folder)
    model(folder, seed=7)
    assert found() == [False, False, True, True]
    # Given, they are those of all models.
    assert found(weights=str(other)) == [False, False, True, False]
    assert found(weights="") == [False, False, False, True]


def test_keys_of_weights_that_are_not_found_are_those_of_before(config: dict[str, object]) -> None:
    connector = Connector(**config, namespace="bf16")  # type: ignore[arg-type]
    assert connector.keys.of(KEYS[:1]) == [f"lmcache/bf16/{KEYS[0]}".encode()]
    connector.close()


def test_models_are_tenants_and_long_keys_are_kept(connector: Connector) -> None:
    keys = ["a@0@0@1", "b@0@0@1", "a@0@0@2", "x" * 100 + "@0@0@1", "y" * 600 + "@0@0@1"]
    assert end(connector, connector.submit_batch_set(keys, views(noise(5, 4096))))[0]
    assert end(connector, connector.submit_batch_exists(keys))[2] == [True] * 5
    assert isinstance(connector.store, adit.Store)
    tenants = connector.store.tenants()
    assert tenants["a"]["objects"] == 2 and tenants["b"]["objects"] == 1 and len(tenants) == 5
    assert end(connector, connector.submit_batch_exists(["z" * 600 + "@0@0@1"]))[2] == [False]


def test_a_key_is_kept_however_long_its_parts_are(connector: Connector) -> None:
    # A salt comes with a request, and may be of any length.
    model, salt = "m" * 600, "s" * 600
    keys = [f"meta/llama@0@0@1@{salt}", f"meta/llama@0@0@2@{salt}", f"{model}@0@0@1@{salt}", "k" * 600]
    assert end(connector, connector.submit_batch_set(keys, views(noise(4, 4096))))[0]
    others = [f"meta/llama@0@0@1@{salt}t", f"meta/llama@0@0@1@{salt[1:]}", f"n{model}@0@0@1@{salt}"]
    found = end(connector, connector.submit_batch_exists([*keys, *others]))[2]
    assert found == [True] * 4 + [False] * 3


def test_a_batch_that_is_refused_leaves_nothing_behind(connector: Connector) -> None:
    row = memoryview(bytearray(8192))
    keys = ["a@0@0@1", "b@0@0@1"]
    with pytest.raises(adit.BadBufferError):
        connector.submit_batch_set(keys, [row[::2], row])
    # The other model's block is being stored.
    ok, error, stored = end(connector, connector.submit_batch_set(keys, [row, row[::2]]))
    assert (ok, stored) == (False, [True, False]) and "contiguous" in error
    with pytest.raises(adit.BadBufferError):
        connector.submit_batch_get(keys[:1], [memoryview(bytes(100))])
    with pytest.raises(adit.InvalidError):
        connector.submit_batch_get(keys, [row])
    assert end(connector, connector.submit_batch_set(keys, [row, row])) == (True, "", [True, True])
    connector.close()
    assert connector._jobs == {}


def test_with_more_models_than_tenants_blocks_are_stored(
    connector: Connector, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"model-{number}@0@0@1" for number in range(300)]
    assert end(connector, connector.submit_batch_set(keys, views(noise(300, 4096))))[0]
    assert end(connector, connector.submit_batch_exists(keys))[2] == [True] * 300
    assert "tenant" in caplog.text


def test_a_quota_that_is_reached_is_an_error_of_its_batch(connector: Connector) -> None:
    assert isinstance(connector.store, adit.Store)
    connector.store.set_quota("meta/llama", 8192)
    ok, error, stored = end(connector, connector.submit_batch_set(KEYS[:4], views(noise(4, 4096))))
    assert not ok and "quota" in error and stored is not None and sum(stored) == 2


def test_what_is_declined_is_not_stored_and_no_error(config: dict[str, object]) -> None:
    connector = Connector(**config, write_bytes_per_day=1)  # type: ignore[arg-type]
    ok, error, stored = end(connector, connector.submit_batch_set(KEYS[:4], views(noise(4, 1 << 20))))
    assert (ok, error, stored) == (True, "", [False] * 4)
    connector.close()


def test_registered_memory_is_not_copied(config: dict[str, object]) -> None:
    connector = Connector(**config, register_l1=True)  # type: ignore[arg-type]
    rows = pool(16, 64 << 10)
    rows[:] = noise(16, 64 << 10)
    end(connector, connector.submit_batch_set(KEYS, views(rows)))
    end(connector, connector.submit_batch_get(KEYS, views(rows)))
    assert connector.store.stats()["copied_bytes"] == 0
    connector.close()


def test_only_mappings_of_their_own_are_registered() -> None:
    from adit import _engine

    rows = pool(4, 4096)
    found = _engine.mapping_of(rows.ctypes.data)
    assert found is not None and found[0] <= rows.ctypes.data < found[0] + found[1]
    assert _engine.mapping_of(0) is None
    with open("/proc/self/maps", encoding="ascii") as maps:
        special = [line.split()[0] for line in maps if line.rstrip().endswith(("[heap]", "[stack]"))]
    assert special
    for bounds in special:
        assert _engine.mapping_of(int(bounds.split("-")[0], 16)) is None


def test_a_corrupt_block_is_a_miss(config: dict[str, object]) -> None:
    rows = noise(2, 64 << 10)
    connector = Connector(**config)  # type: ignore[arg-type]
    end(connector, connector.submit_batch_set(KEYS[:2], views(rows)))
    connector.close()
    damage(config, rows[1].tobytes())
    connector = Connector(**config)  # type: ignore[arg-type]
    back = pool(2, 64 << 10)
    assert end(connector, connector.submit_batch_get(KEYS[:2], views(back)))[:1] == (True,)
    assert end(connector, connector.submit_batch_get(KEYS[:2], views(back)))[2] == [True, False]
    connector.close()


def damage(config: dict[str, object], block: bytes) -> None:
    """Flip a bit of a block on the drive."""
    image = Path(str(config["target"]).removeprefix("uring:"))
    contents = image.read_bytes()
    at = contents.find(block)
    assert at > 0
    with image.open("r+b") as file:
        file.seek(at + 5000)
        file.write(bytes([contents[at + 5000] ^ 4]))


def test_an_engine_of_another_version_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from adit import _engine

    with caplog.at_level(logging.WARNING):
        _engine.check_version("LMCache", "0.5.6", ("0.5.6",))
        assert caplog.text == ""
        _engine.check_version("LMCache", "9.0", ("0.5.5", "0.5.6"))
    assert "LMCache is version 9.0; its adapter was tried with 0.5.5, 0.5.6" in caplog.text


WRITER = """
import ctypes, select, sys
import adit
from adit.lmcache import Connector
connector = Connector(sys.argv[1])
poll = select.poll()
poll.register(connector.event_fd(), select.POLLIN)
number = 0
while True:
    keys = [f"model@0@0@{number + place}" for place in range(8)]
    blocks = [bytearray((f"{number + place}." * 32768)[:32768].encode()) for place in range(8)]
    connector.submit_batch_set(keys, [memoryview(block) for block in blocks])
    poll.poll()
    if connector.drain_completions()[0][1]:
        number += 8
    if number % 80 == 0:
        connector.store.commit()
        print(number, flush=True)
"""


def test_what_an_engine_stored_before_it_was_killed_is_reused(config: dict[str, object]) -> None:
    Connector(**config).close()  # type: ignore[arg-type]
    command = [sys.executable, "-c", WRITER, str(config["target"])]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer, writer.stdout:
        lines = [writer.stdout.readline() for _ in range(4)]
        writer.kill()
        committed = int([*lines, *writer.stdout.read().splitlines()][-1])
    connector = Connector(**config)  # type: ignore[arg-type]
    count = committed + 88
    keys, back = [f"model@0@0@{number}" for number in range(count)], pool(count, 32768)
    ok, _, hits = end(connector, connector.submit_batch_get(keys, views(back)))
    assert ok and hits is not None
    for number in range(count):
        if hits[number]:
            assert back[number].tobytes() == (f"{number}." * 32768)[:32768].encode()
    assert committed >= 320 and all(hits[:committed])
    connector.close()
