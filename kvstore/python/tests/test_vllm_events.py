"""KV events of vLLM's tier: what it tells of what the store has and has no more, and that it keeps chunks hot."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import pytest
from conftest import Rows, anywhere, noise, pool, until
from engines import Medium, OffloadingEvent
from test_vllm import REQUEST, ROW, Make, ask, finished, job, make

import adit

__all__ = ["make"]

KEYS = [number.to_bytes(32, "big") + bytes(4) for number in range(64)]
ON = {"events": True, "self_describing": True}


class Told:
    """Who reads a tier's events, and what they come to."""

    def __init__(self, tier: Any) -> None:
        self.tier, self.blocks, self.events = tier, set[bytes](), list[OffloadingEvent]()

    def step(self) -> None:
        """Do as vLLM does in a step."""
        self.tier.on_schedule_end(None)
        list(self.tier.get_finished_jobs())
        for event in self.tier.take_events():
            assert event.medium is Medium.STORAGE and event.ownership is None and event.locality is None
            assert not event.metadata_only and not event.removal_expected
            keys = set(event.keys)
            assert len(keys) == len(event.keys) > 0
            if event.removed:
                assert keys <= self.blocks, "only what was announced is removed"
                self.blocks -= keys
            else:
                assert not keys & self.blocks, "told once"
                self.blocks |= keys
            self.events.append(event)

    def until(self, blocks: set[bytes]) -> None:
        """Take steps until these blocks are known."""

        def is_so() -> bool:
            self.step()
            return self.blocks == blocks

        until(is_so)

    def settle(self) -> None:
        """Take steps until the store has been asked what went since now."""
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            self.step()
            time.sleep(0.002)


@pytest.fixture
def tier(make: Make) -> Any:
    """Return a tier that has events, with room for 64 chunks in vLLM's memory."""
    rows: Rows = pool(64, ROW)
    rows[:] = noise(64, ROW)
    tier = make(rows, {"enable_kv_events": True}, **ON)
    yield tier
    tier.shutdown()


def store(tier: Any, number: int, keys: list[bytes]) -> None:
    tier.submit_store(job(number, keys, [KEYS.index(key) for key in keys]))
    assert finished(tier, number).success


@anywhere
def test_what_is_stored_and_what_goes_is_told_once(tier: Any) -> None:
    told = Told(tier)
    store(tier, 1, KEYS[:8])
    told.until(set(KEYS[:8]))
    store(tier, 2, KEYS[4:12])
    told.until(set(KEYS[:12]))
    assert [len(event.keys) for event in told.events] == [8, 4]
    tier.store.delete_many([tier._space + key for key in KEYS[:3]] + ["other"])
    told.until(set(KEYS[3:12]))
    tier.store.put(tier._space + KEYS[4], b"replaced")
    store(tier, 3, KEYS[:2])
    told.settle()
    assert told.blocks == {*KEYS[:2], *KEYS[3:12]}, "what was replaced is there"
    tier.store.delete_where(prefix=tier._space)
    told.until(set())
    told.settle()
    assert len(told.events) == 5 and not tier._announced._stored


def test_what_the_store_evicts_is_told(make: Make) -> None:
    rows = pool(64, ROW)
    rows[:] = noise(64, ROW)
    tier = make(rows, {"enable_kv_events": True, "capacity_objects": 16}, **ON)
    told = Told(tier)
    for number, key in enumerate(KEYS):
        store(tier, number, [key])
        told.step()
    names = [tier._space + key for key in KEYS]
    there = {key for key, is_there in zip(KEYS, tier.store.exists_many(names)) if is_there}
    assert len(there) == 16
    told.until(there)
    tier.shutdown()


def test_a_chunk_that_comes_back_before_it_was_told_of_stays(tier: Any) -> None:
    told = Told(tier)
    for number in range(20):
        store(tier, number, KEYS[:4])
        tier.store.delete_where(prefix=tier._space)
        store(tier, 100 + number, KEYS[:4])
        told.step()
    told.settle()
    assert told.blocks == set(KEYS[:4]) and len(told.events) == 1


@anywhere
def test_after_removals_that_were_missed_all_are_asked_for(tier: Any) -> None:
    told = Told(tier)
    store(tier, 1, KEYS)
    told.until(set(KEYS))
    told.settle()
    # As after a server that was started again: its positions are others.
    tier._announced._cursor = 1
    tier._announced._next = 0.0
    tier.store.delete_many([tier._space + key for key in KEYS[:40]])
    told.until(set(KEYS[40:]))


@anywhere
def test_what_goes_while_its_job_stores_the_rest_is_asked_for(tier: Any) -> None:
    told = Told(tier)
    tier.store.put(tier._space + KEYS[0], b"there")
    tier.submit_store(job(1, KEYS[:2], [0, 1]))

    def is_checked() -> bool:
        tier._drain()
        return not tier.has_pending_work()

    until(is_checked)
    tier.store.delete(tier._space + KEYS[0])
    # The answer about removals comes before that of the job, and knows of none before now.
    _, cursor, _ = tier.store.removals(None, prefix=tier._space)
    tier._announced.heard(1, [([], cursor, True)])
    told.until({KEYS[1]})


def test_a_job_that_stores_some_is_told_of_these(make: Make) -> None:
    rows = pool(64, ROW)
    tier = make(rows, {"enable_kv_events": True, "capacity_bytes": 8 * ROW}, **ON)
    told = Told(tier)
    names = [tier._space + key for key in KEYS[:16]]
    tier.store.put_many(names, list(rows[:16]))
    there = {key for key, is_there in zip(KEYS, tier.store.exists_many(names)) if is_there}
    leases = [tier.store.lease([tier._space + key]) for key in there]
    tier.submit_store(job(2, KEYS[:32], list(range(32))))
    assert not finished(tier, 2).success
    told.settle()
    assert 4 <= len(told.blocks) < 16 and there <= told.blocks
    names = [tier._space + key for key in KEYS]
    assert told.blocks == {key for key, is_there in zip(KEYS, tier.store.exists_many(names)) if is_there}
    for lease in leases:
        lease.release()
    tier.shutdown()


def test_a_reset_has_chunks_told_of_again(tier: Any) -> None:
    told = Told(tier)
    store(tier, 1, KEYS[:4])
    told.until(set(KEYS[:4]))
    tier.drain_jobs()
    told.blocks.clear()
    store(tier, 2, KEYS[:2])
    told.until(set(KEYS[:2]))
    told.settle()
    assert [len(event.keys) for event in told.events] == [4, 2]


def test_without_events_nothing_is_asked(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    for options, spec, text in [
        ({}, ON, ""),
        ({"enable_kv_events": False}, {}, ""),
        ({"enable_kv_events": True}, {}, "vLLM publishes none: set enable_kv_cache_events"),
    ]:
        caplog.clear()
        tier = make(pool(64, ROW), options, **spec)
        store(tier, 1, KEYS[:4])
        tier.on_schedule_end(None)
        assert list(tier.take_events()) == [] and tier._announced is None
        assert text in caplog.text and bool(text) == ("enable_kv_events" in caplog.text)
        tier.shutdown()


def test_events_that_a_router_cannot_use_are_logged_and_refused_on_demand(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    on: dict[str, object] = {"enable_kv_events": True}
    with caplog.at_level(logging.WARNING):
        make(pool(8, ROW), on, events=True).shutdown()
    assert "self_describing_kv_events is not set: set it to true in kv_connector_extra_config" in caplog.text
    assert "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0" in caplog.text
    insists = on | {"self_describing_kv_events": True}
    with pytest.raises(adit.InvalidError, match="kv_connector_extra_config, beside secondary_tiers"):
        make(pool(8, ROW), insists, events=True)
    make(pool(8, ROW), insists, **ON).shutdown()


def test_a_lost_store_is_asked_again_and_tells_nothing(tier: Any, caplog: pytest.LogCaptureFixture) -> None:
    told = Told(tier)
    store(tier, 1, KEYS[:4])
    told.until(set(KEYS[:4]))
    tier.store.close()
    tier._announced._doubted.update(dict.fromkeys(KEYS[:4]))
    told.settle()
    assert told.blocks == set(KEYS[:4]) and "asking what went failed" in caplog.text
    assert tier._announced._paused_until > time.monotonic(), "it is not asked in each step"


@anywhere
def test_chunks_that_vllm_touches_stay_and_keep_their_expiry(tier: Any) -> None:
    store(tier, 1, KEYS[:2])
    names = [tier._space + key for key in KEYS[:2]]
    tier.store.touch(names[0], 1000)
    before = tier.store.stats()
    tier.touch(KEYS[:4], REQUEST)
    tier.touch(KEYS[:4], REQUEST)
    assert len(tier._to_touch) == 4
    tier.on_schedule_end(None)
    until(lambda: list(tier.get_finished_jobs()) == [] and not tier._is_touching)
    infos = [tier.store.info(name) for name in names]
    assert infos[0]["ttl"] > 900 and infos[1]["ttl"] is None
    after = tier.store.stats()
    assert (after["gets"], after["puts"]) == (before["gets"], before["puts"])
    tier._touched_until = time.monotonic() + 60
    tier.touch(KEYS[:4], REQUEST)
    assert tier._to_touch == [], "they were touched lately"
    tier._touched_until = 0.0
    tier.on_schedule_end(None)
    tier.touch(KEYS[:1], REQUEST)
    assert tier._to_touch == KEYS[:1]


def test_chunks_that_vllm_touches_outlive_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pool(64, ROW)
    rows[:] = noise(64, ROW)
    tier = make(rows, {"capacity_objects": 16})
    # They may be touched again in each step.
    monkeypatch.setattr(sys.modules["adit.vllm"], "TOUCHED_S", 0.0)
    tier._touched_until = 0.0
    for number, key in enumerate(KEYS):
        store(tier, number, [key])
        tier.touch([KEYS[0]], REQUEST)
        tier.on_schedule_end(None)
        until(lambda: list(tier.get_finished_jobs()) == [] and not tier._is_touching)
    assert [verdict.name for verdict in ask(tier, KEYS[:2])] == ["HIT", "MISS"]
    tier.shutdown()


def test_touches_are_bounded(tier: Any) -> None:
    tier.touch([number.to_bytes(36, "big") for number in range(40_000)], REQUEST)
    assert len(tier._to_touch) == len(tier._touched) == 16384
