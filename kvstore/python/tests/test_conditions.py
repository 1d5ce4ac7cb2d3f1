"""Conditions, versions, expiries, prefixes and empty objects, of a store and over a connection."""

from __future__ import annotations

import select
import signal
import threading
import time

import numpy as np
import pytest
from conftest import Served

import adit


def test_a_put_may_depend_on_what_is_there(either: adit.Store | adit.Client) -> None:
    assert either.put("k", b"one", if_absent=True)
    found = either.get_versioned("k")
    assert found is not None
    value, version = found
    assert value == b"one"
    with pytest.raises(adit.ConflictError, match=str(version)) as refused:
        either.put("k", b"two", if_absent=True)
    assert refused.value.version == version
    assert either.put("k", b"two", if_version=version)
    with pytest.raises(adit.ConflictError) as refused:
        either.put("k", b"three", if_version=version)
    assert refused.value.version is not None and refused.value.version > version
    with pytest.raises(adit.ConflictError) as refused:
        either.put("other", b"x", if_version=version)
    assert refused.value.version is None
    with pytest.raises(adit.InvalidError):
        either.put("k", b"x", if_version=version, if_absent=True)
    assert either.get("k") == b"two" and either.get_versioned("none") is None
    with pytest.raises(adit.ConflictError):
        either.delete("k", if_version=version)
    info = either.info("k")
    assert info is not None
    assert either.delete("k", if_version=info["version"]) is True
    assert "k" not in either


def test_of_increments_by_many_threads_none_is_lost(either: adit.Store | adit.Client) -> None:
    def work() -> None:
        left = 25
        while left:
            found = either.get_versioned("n")
            try:
                if found is None:
                    either.put("n", b"1", if_absent=True)
                else:
                    either.put("n", str(int(found[0]) + 1).encode(), if_version=found[1])
            except adit.ConflictError:
                continue
            left -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert either.get("n") == b"100"


def test_an_object_tells_its_version_and_when_it_was_stored(either: adit.Store | adit.Client) -> None:
    before = time.time()
    either.put("k", bytes(5000), ttl=1000)
    info = either.info("k")
    assert info is not None and either.info("other") is None
    assert (info["bytes"], info["tenant"]) == (5000, "")
    assert info["stored"] is not None and abs(info["stored"] - before) < 60
    assert info["ttl"] is not None and 900 < info["ttl"] <= 1000


def test_a_range_is_of_the_version_that_it_names(store: adit.Store) -> None:
    value = np.arange(100_000, dtype="uint32").tobytes()
    store.put("k", value)
    found = store.get_versioned("k")
    assert found is not None
    assert store.get("k", 100, 200, if_version=found[1]) == value[100:200]
    store.put("k", value)
    with pytest.raises(adit.ConflictError):
        store.get("k", 200, 300, if_version=found[1])


def test_expiries_are_set_and_lifted(either: adit.Store | adit.Client) -> None:
    keys = [f"k{number}" for number in range(10)]
    for key in keys[:8]:
        either.put(key, b"x")
    assert either.touch_many(keys, 1000) == [True] * 8 + [False] * 2
    assert either.touch("k0", 99.5) is True and either.touch("none", 1) is False
    assert either.persist("k1") is True and either.persist("none") is False

    def ttl(key: str) -> int | None:
        info = either.info(key)
        assert info is not None
        return info["ttl"]

    first, second = ttl("k0"), ttl("k2")
    assert first is not None and 90 < first <= 100
    assert second is not None and 900 < second <= 1000
    assert ttl("k1") is None
    with pytest.raises(adit.InvalidError):
        either.touch("k0", -1)


def test_a_prefix_is_read_in_pages(either: adit.Store | adit.Client) -> None:
    for number in range(40):
        either.put(f"{'ab'[number % 2]}/{number}", b"x")
    wanted: list[tuple[str | bytes | None, int]] = [("a/", 20), (b"", 40), (None, 40), ("c", 0)]
    for prefix, count in wanted:
        found: list[bytes] = []
        cursor: int | None = 0
        while cursor is not None:
            page, cursor = either.scan(cursor, prefix=prefix)
            found.extend(one[0] for one in page)
        assert len(set(found)) == len(found) == count
        start = prefix.encode() if isinstance(prefix, str) else prefix or b""
        assert all(key.startswith(start) for key in found)


def test_an_object_without_bytes_is_an_object(either: adit.Store | adit.Client) -> None:
    for empty in (b"", bytearray(), np.empty(0, dtype="float32")):
        assert either.put("k", empty)
        assert either.get("k") == b"" and "k" in either
    assert either.put_many(["a", "b", "c"], [b"", b"x", b""]) == [True] * 3
    assert either.get_many(["a", "b", "c", "d"]) == [b"", b"x", b"", None]
    into = bytearray(b"old")
    assert either.get_into("a", into) == 0 and into == b"old"
    assert either.get_into("a", bytearray()) == 0
    assert either.exists_many(["a", "b", "d"]) == [True, True, False]


def test_futures_have_conditions_and_expiries(either: adit.Store | adit.Client) -> None:
    with either.futures() as futures:
        assert futures.put("k", b"1", if_absent=True).result(30) is True
        with pytest.raises(adit.ConflictError) as refused:
            futures.put("k", b"2", if_absent=True).result(30)
        assert futures.put("k", b"2", if_version=refused.value.version).result(30) is True
        assert futures.touch("k", 100).result(30) is True
        assert futures.touch_many(["k", "none"], 100).result(30) == [True, False]
    info = either.info("k")
    assert info is not None and info["ttl"] is not None


def test_what_goes_is_told_once(either: adit.Store | adit.Client) -> None:
    keys, cursor, missed = either.removals(prefix="a/")
    assert keys == [] and not missed
    either.put_many([f"{who}/{number}" for who in "ab" for number in range(9)], [b"x"] * 18)
    either.put("a/0", b"replaced")
    assert either.removals(cursor, prefix="a/") == ([], cursor, False)
    either.delete_many(["a/1", "b/1", "a/2", "none"])
    keys, later, missed = either.removals(cursor, prefix="a/")
    assert sorted(keys) == [b"a/1", b"a/2"] and later == cursor + 3 and not missed
    assert either.removals(later, prefix=b"a/") == ([], later, False)
    with either.queue() as queue:
        number = queue.submit_removals(cursor)
        select.select([queue.event_fd()], [], [], 30)
        ((landed, ((keys, end, missed),), failure),) = queue.drain()
    assert (landed, sorted(keys), end, missed, failure) == (number, [b"a/1", b"a/2", b"b/1"], later, False, None)
    # A position of another opening, or of none.
    assert either.removals(7)[2] and not either.removals(later)[2]


def test_a_cursor_from_before_the_server_was_started_again_missed_some(served: Served) -> None:
    with adit.connect(served.socket) as client:
        _, cursor, _ = client.removals()
        client.put("k", b"x")
        client.delete("k")
    served.end(signal.SIGTERM)
    again = Served(served.target, served.socket)
    with adit.connect(again.socket) as client:
        keys, later, missed = client.removals(cursor)
        assert keys == [] and missed and client.removals(later) == ([], later, False)
    again.stop()


def test_a_use_that_reads_nothing_changes_no_expiry(either: adit.Store | adit.Client) -> None:
    either.put("k", b"x", ttl=1000)
    assert either.refresh_many(["k", "none", "k"]) == [True, False, True] and either.refresh_many([]) == []
    info = either.info("k")
    assert info is not None and info["ttl"] is not None and info["ttl"] > 900
    assert either.stats()["gets"] == 0
