"""The contract of vLLM's secondary tiers."""

from __future__ import annotations

import importlib
import logging
import mmap
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from conftest import Rows, anywhere, noise, pool
from engines import JobResult, LookupResult, ReqContext, TransferJob
from test_lmcache import damage
from test_weights import model

import adit

KEYS = [bytes([number]) * 32 + bytes(4) for number in range(8)]
ROW = 32 << 10
REQUEST = ReqContext("request")

Make = Callable[..., Any]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, place: str) -> Make:
    """Return what makes tiers on one drive."""
    engines.vllm(monkeypatch)
    tier = importlib.import_module("adit.vllm").AditTier

    def make(rows: Rows, options: dict[str, object] | None = None, **spec: object) -> Any:
        return tier(
            offloading_spec=engines.vllm_spec(**spec),
            primary_kv_view=rows.data,
            tier_type="AditTier",
            target=place,
            size_gb=0.125,
            **(options or {}),
        )

    return make


def job(number: int, keys: list[bytes], chunks: list[int], is_load: bool = False) -> TransferJob:
    return TransferJob(number, keys, np.array(chunks), is_load, REQUEST)


def finished(tier: Any, number: int) -> JobResult:
    """Poll as the scheduler does."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for result in tier.get_finished_jobs():
            assert result.job_id == number
            return result  # type: ignore[no-any-return]
        time.sleep(0.001)
    raise AssertionError("the job ends")


def ask(tier: Any, keys: list[bytes], request: ReqContext = REQUEST) -> list[LookupResult]:
    """Look keys up, step by step, until there is a verdict."""
    for _ in range(10_000):
        verdicts = [tier.lookup(key, request) for key in keys]
        if LookupResult.RETRY not in verdicts:
            return verdicts
        tier.on_schedule_end(None)
        time.sleep(0.001)
    raise AssertionError("the store answers")


def test_a_new_store_has_room_for_as_many_chunks_as_fit(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make(pool(8, 8192)).shutdown()
    assert "for 16384 objects" in caplog.text


@anywhere
def test_chunks_are_stored_found_and_loaded(make: Make) -> None:
    rows, there = pool(8, ROW), noise(8, ROW)
    rows[:] = there
    tier = make(rows)
    assert tier.lookup(KEYS[0], REQUEST) is LookupResult.RETRY, "a lookup does not wait"
    assert ask(tier, KEYS) == [LookupResult.MISS] * 8
    tier.submit_store(job(1, KEYS[:6], [0, 1, 2, 3, 4, 5]))
    assert tier.lookup(KEYS[0], REQUEST) is LookupResult.RETRY, "it is being stored"
    result = finished(tier, 1)
    assert (result.success, result.transfer_bytes) == (True, 6 * ROW)
    assert result.transfer_time is not None and result.transfer_time > 0
    assert ask(tier, KEYS) == [LookupResult.HIT] * 6 + [LookupResult.MISS] * 2
    rows[:] = 0
    tier.submit_load(job(2, KEYS[:6], [7, 6, 5, 4, 3, 2], is_load=True))
    assert finished(tier, 2).success
    assert np.array_equal(rows[2:][::-1], there[:6]) and not rows[:2].any()
    copied = 0 if isinstance(tier.store, adit.Store) else 12 * ROW
    assert tier.store.stats()["copied_bytes"] == copied
    tier.on_request_finished(REQUEST)
    assert not tier._verdicts and not tier._askers
    tier.shutdown()


@anywhere
def test_chunks_that_are_there_are_not_written_again(make: Make) -> None:
    rows = pool(8, ROW)
    rows[:] = noise(8, ROW)
    tier = make(rows)
    tier.submit_store(job(1, KEYS[:4], [0, 1, 2, 3]))
    assert tier.has_pending_work()
    assert finished(tier, 1).success and not tier.has_pending_work()
    tier.submit_store(job(2, KEYS[2:6], [2, 3, 4, 5]))
    assert finished(tier, 2).success
    assert tier.store.stats()["puts"] == 6
    tier.submit_store(job(3, KEYS[:6], [0, 1, 2, 3, 4, 5]))
    assert finished(tier, 3).success and tier.store.stats()["puts"] == 6
    tier.shutdown()


def test_a_chunk_that_is_gone_fails_alone_and_is_a_miss(make: Make) -> None:
    rows, there = pool(8, ROW), noise(8, ROW)
    rows[:] = there
    tier = make(rows)
    tier.submit_store(job(1, KEYS, list(range(8))))
    finished(tier, 1)
    assert ask(tier, KEYS) == [LookupResult.HIT] * 8
    assert tier.store.delete_where(prefix="") == 8
    tier.submit_store(job(2, KEYS[:5], list(range(5))))
    finished(tier, 2)
    tier.submit_load(job(3, KEYS, list(range(8)), is_load=True))
    result = finished(tier, 3)
    assert not result.success and result.successful_keys == tuple(KEYS[:5])
    assert ask(tier, KEYS) == [LookupResult.HIT] * 5 + [LookupResult.MISS] * 3
    tier.shutdown()


def test_a_corrupt_chunk_is_a_miss(make: Make, tmp_path: Path) -> None:
    rows, there = pool(8, ROW), noise(8, ROW)
    rows[:] = there
    tier = make(rows)
    tier.submit_store(job(1, KEYS, list(range(8))))
    finished(tier, 1)
    tier.shutdown()
    damage({"target": f"uring:{tmp_path / 'kv.img'}"}, there[3].tobytes())
    again = pool(8, ROW)
    tier = make(again)
    tier.submit_load(job(2, KEYS, list(range(8)), is_load=True))
    result = finished(tier, 2)
    assert result.successful_keys == tuple(key for number, key in enumerate(KEYS) if number != 3)
    tier.shutdown()


@anywhere
@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"dtype": "bfloat16"},
        {"layout": "HND"},
        {"tp_size": 2, "world_size": 2},
        {"rank": 1},
        {"options": {"namespace": "other"}},
    ],
)
def test_other_configurations_have_other_keys(make: Make, other: dict[str, object]) -> None:
    rows = pool(8, ROW)
    tier = make(rows)
    tier.submit_store(job(1, KEYS, list(range(8))))
    finished(tier, 1)
    tier.shutdown()
    tier = make(rows, **other)
    assert ask(tier, KEYS) == [LookupResult.MISS] * 8
    tier.shutdown()
    tier = make(rows)
    assert ask(tier, KEYS) == [LookupResult.HIT] * 8
    tier.shutdown()
    tier = make(pool(16, ROW // 2))
    assert ask(tier, KEYS) == [LookupResult.MISS] * 8
    tier.shutdown()


@anywhere
def test_other_weights_at_the_same_path_find_nothing(make: Make, tmp_path: Path) -> None:
    rows, folder = pool(8, ROW), model(tmp_path / "tiny")
    tier = make(rows, name=str(folder))
    tier.submit_store(job(1, KEYS, list(range(8))))
    finished(tier, 1)
    tier.shutdown()
    # A copy, on another machine.
    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    model(folder, seed=7)
    for name, options, verdict in (
        (folder, {}, LookupResult.MISS),
        (copy, {}, LookupResult.HIT),
        (folder, {"weights": str(copy)}, LookupResult.HIT),
        (copy, {"weights": ""}, LookupResult.MISS),
    ):
        tier = make(rows, options, name=str(name))
        assert ask(tier, KEYS) == [verdict] * 8, (name, options)
        tier.shutdown()
    with pytest.raises(adit.InvalidError, match="weights is 'meta/none@v1'"):
        make(rows, {"weights": "meta/none@v1"})


@anywhere
def test_draining_waits_for_all_transfers(make: Make) -> None:
    rows = pool(8, ROW)
    tier = make(rows)
    for number in range(8):
        tier.submit_store(job(number, [KEYS[number]], [number]))
    tier.drain_jobs()
    results = list(tier.get_finished_jobs())
    assert sorted(result.job_id for result in results) == list(range(8))
    assert all(result.success for result in results)
    tier.shutdown()


def test_a_full_store_fails_the_job_and_nothing_else(make: Make) -> None:
    rows = pool(8, ROW)
    tier = make(rows, {"capacity_bytes": 4 * ROW})
    with tier.store.lease([]):
        leases = []
        for number in range(4):
            tier.submit_store(job(number, [KEYS[number]], [number]))
            if finished(tier, number).success:
                leases.append(tier.store.lease([tier._space + KEYS[number]]))
        tier.submit_store(job(9, KEYS[4:], [4, 5, 6, 7]))
        assert not finished(tier, 9).success
        assert leases
    tier.shutdown()


@anywhere
def test_a_closed_store_is_misses_and_failed_jobs(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make(pool(8, ROW))
    tier.submit_store(job(1, KEYS[:2], [0, 1]))
    assert finished(tier, 1).success
    assert tier.lookup(KEYS[0], REQUEST) is LookupResult.RETRY
    tier.store.close()
    tier.on_schedule_end(None)
    assert ask(tier, KEYS) == [LookupResult.MISS] * 8
    tier.submit_store(job(2, KEYS, list(range(8))))
    tier.submit_load(job(3, KEYS, list(range(8)), is_load=True))
    tier.drain_jobs()
    results = list(tier.get_finished_jobs())
    assert [(result.job_id, result.success) for result in results] == [(2, False), (3, False)]
    assert not tier.has_pending_work() and not tier._storing and "closed" in caplog.text
    tier.on_request_finished(REQUEST)
    assert not tier._verdicts
    tier.shutdown()


@anywhere
def test_after_the_shutdown_the_memory_can_be_unmapped(make: Make) -> None:
    mapping = mmap.mmap(-1, 8 * ROW)
    rows = np.frombuffer(mapping, dtype=np.uint8).reshape(8, ROW)
    tier = make(rows)
    tier.submit_store(job(1, KEYS[:2], [0, 1]))
    tier.drain_jobs()
    tier.shutdown()
    del rows
    mapping.close()


def test_an_unknown_option_is_refused(make: Make) -> None:
    with pytest.raises(TypeError, match="speed"):
        make(pool(8, ROW), {"speed": 9})
