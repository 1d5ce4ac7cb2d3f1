"""Calls of a store: bytes come back as they were put."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import noise

import adit


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64", "complex128"])
def test_arrays_come_back_as_they_were(store: adit.Store, dtype: str) -> None:
    there = noise(1, 80_000)[0].view(dtype).reshape(5, -1)
    assert store.put("array", there) is True
    back = np.empty_like(there)
    assert store.get_into("array", back) == there.nbytes
    assert back.tobytes() == there.tobytes()
    assert store.get("array") == there.tobytes()


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 128 << 10, (128 << 10) + 1, 3_000_001])
def test_objects_of_any_length_come_back(store: adit.Store, length: int) -> None:
    value = noise(1, length)[0].tobytes()
    for given in (value, bytearray(value), memoryview(value)):
        assert store.put(b"key", given)
        assert store.get(b"key") == value
    into = bytearray(length + 10)
    assert store.get_into(b"key", into) == length
    assert into == value + bytes(10)


def test_hot_objects_come_from_memory_in_their_newest_version(target: str) -> None:
    with adit.Store(target, tier_bytes=8 << 20) as store:
        for value in (b"1" * 10_000, b"2" * 9_000):
            assert store.put("key", value)
            for _ in range(3):
                assert store.get("key") == value
        figures = store.stats()
        assert (figures["tier_hits"], figures["tier_objects"], figures["tier_bytes"]) == (4, 1, 8 << 20)
    with pytest.raises(adit.InvalidError, match="tier_bytes"):
        adit.Store(target, tier_bytes=1)


def test_text_and_its_bytes_are_the_same_key(store: adit.Store) -> None:
    store.put("schlüssel", b"1")
    assert store.get("schlüssel".encode()) == b"1"
    assert "schlüssel" in store and b"other" not in store


def test_a_range_is_a_part_of_the_object(store: adit.Store) -> None:
    value = noise(1, 300_000)[0].tobytes()
    store.put("key", value)
    assert store.get("key", 1000, 200_001) == value[1000:200_001]
    assert store.get("key", 299_000, 400_000) == value[299_000:]
    assert store.get("key", 299_000) == value[299_000:]


def test_several_objects_are_put_read_and_removed_at_once(store: adit.Store) -> None:
    rows = noise(100, 5000)
    keys = [f"row/{number}" for number in range(100)]
    assert store.put_many(keys, rows) == [True] * 100
    assert store.get_many([*keys, "none"]) == [*(row.tobytes() for row in rows), None]
    back = np.empty_like(rows)
    assert store.get_many_into(keys, back) == [5000] * 100
    assert np.array_equal(back, rows)
    assert store.exists_many(["none", keys[3]]) == [False, True]
    assert store.delete_many([keys[3], "none"]) == [True, False]
    assert store.lookup_prefix(keys) == 3
    assert store.delete(keys[0]) is True and store.exists(keys[0]) is False
    assert store.lookup_prefix(keys) == 0
    assert store.put_many([], []) == [] and store.get_many([]) == [] and store.lookup_prefix([]) == 0


def test_nothing_is_none(store: adit.Store) -> None:
    untouched = bytearray(b"as it was")
    assert store.get("none") is None
    assert store.get_into("none", untouched) is None
    assert untouched == b"as it was"
    assert store.delete("none") is False


def test_what_was_put_is_there_after_a_restart(target: str) -> None:
    with adit.Store(target) as store:
        store.put("key", b"value")
    with adit.Store(target) as store:
        assert store.get("key") == b"value"
        store.put("key", b"another")
        store.commit()
        assert store.get("key") == b"another"


def test_a_volatile_store_is_empty_after_a_restart(target: str) -> None:
    with adit.Store(target, durability="volatile") as store:
        store.put("key", b"value")
        assert store.exists("key")
    with adit.Store(target, durability="volatile") as store:
        assert not store.exists("key")


def test_objects_expire(store: adit.Store) -> None:
    store.put("brief", b"1", ttl=1)
    store.put("long", b"1", ttl=3600)
    deadline = time.monotonic() + 30
    while store.exists("brief"):
        assert time.monotonic() < deadline, "it expires after a second"
        time.sleep(0.05)
    assert store.exists("long")


def test_a_lease_keeps_objects_while_others_are_evicted(target: str) -> None:
    with adit.Store(target, capacity_bytes=8 << 20) as store:
        keys = [f"old/{number}" for number in range(4)]
        for key in keys:
            store.put(key, bytes(512 << 10))
        with store.lease([*keys, "none", keys[0]]) as lease:
            assert lease.count == 4
            for number in range(40):
                store.put(f"new/{number}", bytes(512 << 10))
            assert store.lookup_prefix(keys) == 4
        lease.release()
        for number in range(40):
            store.put(f"newer/{number}", bytes(512 << 10))
        assert store.lookup_prefix(keys) == 0


def test_a_scan_lists_every_object_once(store: adit.Store) -> None:
    keys = {f"key/{number}".encode() for number in range(500)}
    store.put_many(keys, [b"x" * 7] * 500)
    seen: list[bytes] = []
    cursor: int | None = 0
    while cursor is not None:
        found, cursor = store.scan(cursor, 64)
        assert all(entry[1:] == (7, "") for entry in found)
        seen += [key for key, _, _ in found]
    assert len(seen) == 500 and set(seen) == keys


def test_objects_go_by_prefix_and_by_tenant(store: adit.Store) -> None:
    store.put_many(["a/1", "a/2", "b/1"], [b"x"] * 3)
    store.put_many(["a/3", "c/1"], [b"x"] * 2, tenant="alice")
    assert store.delete_where(prefix="a/") == 3
    assert store.tenants()["alice"]["objects"] == 1
    assert store.delete_where(tenant="alice") == 1
    assert store.delete_where(prefix=b"") == 1
    assert store.stats()["objects"] == 0


def test_a_quota_holds_until_it_is_lifted(store: adit.Store) -> None:
    store.set_quota("alice", 8192)
    store.put_many(["1", "2"], [bytes(4096)] * 2, tenant="alice")
    with pytest.raises(adit.QuotaError, match="alice"):
        store.put("3", bytes(4096), tenant="alice")
    store.set_quota("alice", 8192, "evict-own")
    store.put("3", bytes(4096), tenant="alice")
    assert store.tenants()["alice"]["used_bytes"] <= 8192
    store.set_quota("alice", None)
    assert store.tenants()["alice"]["quota_bytes"] is None
    store.put_many(["4", "5", "6"], [bytes(4096)] * 3, tenant="alice")


def test_counters_count(store: adit.Store) -> None:
    before = store.stats()
    store.put("key", bytes(10_000))
    store.get("key")
    store.get("none")
    after = store.stats()
    grown = {name: after[name] - before[name] for name in after}
    assert (grown["puts"], grown["gets"], grown["hits"], grown["misses"]) == (1, 2, 1, 1)
    assert grown["bytes_written"] == 10_000 and grown["copied_bytes"] == 10_000
    assert after["used_bytes"] == 12_288 and after["objects"] == 1
    assert "adit_kv_puts_total" in store.prometheus()


def test_a_store_on_several_devices_is_one(tmp_path: Path) -> None:
    targets = [f"uring:{tmp_path / name}" for name in ("a.img", "b.img")]
    room = adit.Store.format(targets, size=64 << 20, objects_max=5000, key_bytes=32, label="two")
    assert room["objects_max"] >= 5000 and room["key_bytes"] >= 32
    rows = noise(60, 1 << 20)
    with adit.Store(targets, policy="s3fifo", threads=1) as store:
        store.put_many([str(number) for number in range(60)], rows)
        assert store.get_many([str(number) for number in range(60)]) == [row.tobytes() for row in rows]


def test_the_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = Path(__file__).parents[3] / "README.md"
    (lines,) = re.findall(r"```python\n(import adit.*?)```", readme.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, str(readme), "exec"), {})
    assert (tmp_path / "kv.img").exists()


def test_options_take_effect(target: str) -> None:
    options = {"policy": "s3fifo", "cores": [0], "timeout": 20.0}
    limits = {"capacity_objects": 100, "write_bytes_per_day": 1 << 40, "command_timeout": 5.0}
    with adit.Store(target, **options, **limits) as store:  # type: ignore[arg-type]
        previous = None
        for number in range(300):
            store.put(str(number), b"x" * 100, after=previous)
            previous = str(number)
        assert 0 < store.stats()["objects"] <= 100
        assert store.stats()["evictions"] >= 200 - store.stats()["declined"]
