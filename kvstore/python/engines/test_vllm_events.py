"""The tier's KV events through vLLM's own connector, to a consumer that decodes what vLLM publishes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import (
    OffloadingEventGroupSpec,
    OffloadingEventsTracker,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.request import Request
from vllm_engine import TOKENS, Vllm, adit

CHUNK_BYTES = 64 << 10
ROOM = 16
KIND = OffloadingEventGroupSpec("full_attention", None)


class Router:
    """vLLM's connector and publisher so far as events go, and who knows blocks of the medium STORAGE by them."""

    def __init__(self, engine: Vllm) -> None:
        self.engine, self.blocks = engine, dict[int, list[int]]()
        self.chunk_blocks = engine.spec.blocks_per_chunk
        self.chunk_tokens = self.chunk_blocks * TOKENS
        self._group: Any = GroupOffloadConfig(
            group_idx=0,
            tokens_per_block=TOKENS,
            tokens_per_chunk=self.chunk_tokens,
            hashes_per_chunk=self.chunk_blocks,
            kv_event_group_spec=KIND,
            sliding_window_size_in_chunks=None,
            kv_cache_spec=None,  # type: ignore[arg-type]
            manager_cls=None,  # type: ignore[arg-type]
        )
        # Its scheduler without an engine around it: what it has of the tiers.
        self._connector: Any = object.__new__(OffloadingConnectorScheduler)
        self._connector.manager = engine.manager
        tracker = OffloadingEventsTracker(engine.spec.kv_events_config, {0: KIND})
        self.tracker = self._connector._events_tracker = tracker

    def offload(self, name: str, tokens: list[int]) -> list[bytes]:
        """Offload a request's chunks as the connector does; return their keys."""
        hasher = get_request_block_hasher(TOKENS, sha256_cbor)
        request = Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        hashes = request.block_hashes[self.chunk_blocks - 1 :: self.chunk_blocks]
        keys = [make_offload_key(one, 0) for one in hashes]
        for at, key in enumerate(keys):
            self.tracker.record_store(request, self._group, at, key)
        rows = [torch.full((CHUNK_BYTES,), at, dtype=torch.uint8) for at in range(len(keys))]
        self.engine.offload(keys, rows)
        return keys

    def step(self) -> None:
        """Take what an engine's step publishes, decoded as a consumer does."""
        self.engine.manager.on_schedule_end(ScheduleEndContext((), ()))
        self.engine.manager._maybe_process_finished_jobs()
        events = list(self._connector.take_events())
        published = msgspec.msgpack.encode(KVEventBatch(ts=time.time(), events=events))
        # Numbers in all places of hashes: one with bytes loses the batch.
        raw = msgspec.msgpack.decode(published)[1]
        assert all(isinstance(one, int) for event in raw for one in event["block_hashes"])
        for event in msgspec.msgpack.decode(published, type=KVEventBatch).events:
            if event.medium != "STORAGE":
                continue
            assert event.locality is None and event.ownership is None and event.group_idx == 0
            if isinstance(event, BlockStored):
                assert event.block_size == TOKENS and len(event.token_ids) == len(event.block_hashes) * TOKENS
                assert event.kv_cache_spec_kind == "full_attention"
                for at, block in enumerate(event.block_hashes):
                    self.blocks[block] = event.token_ids[at * TOKENS : (at + 1) * TOKENS]
            else:
                assert isinstance(event, BlockRemoved)
                for block in event.block_hashes:
                    del self.blocks[block]

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end
            self.step()
            time.sleep(0.002)


@pytest.fixture(params=[1, 2])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Vllm]:
    """Return an engine with events and chunks of some blocks, whose store has room for as many chunks as its memory."""
    init_none_hash(sha256_cbor)
    path = tmp_path / "kv.img"
    target = adit(f"uring:{path}", size_gb=0.125, enable_kv_events=True, capacity_objects=ROOM)
    engine = Vllm(target, CHUNK_BYTES, ROOM, blocks_per_chunk=request.param, events=True)
    yield engine
    engine.close()
    path.unlink()


def there(engine: Vllm, keys: list[bytes]) -> list[bool]:
    tier: Any = engine.tier
    found: list[bool] = tier.store.exists_many([tier._space + key for key in keys])
    return found


def test_a_router_knows_the_blocks_that_the_store_has(engine: Vllm) -> None:
    router = Router(engine)
    size = router.chunk_tokens
    requests = [[number * 10_000 + at for at in range(4 * size)] for number in range(12)]
    chunks = dict[bytes, list[int]]()
    for number, tokens in enumerate(requests):
        keys = router.offload(f"request-{number}", tokens)
        chunks |= {key: tokens[at * size : (at + 1) * size] for at, key in enumerate(keys)}
        router.step()
    known = [key for key, is_there in zip(chunks, there(engine, list(chunks))) if is_there]
    assert len(known) == ROOM < len(chunks), "the store evicted"
    want = sorted(chunks[key][at : at + TOKENS] for key in known for at in range(0, size, TOKENS))
    router.until(lambda: len(router.blocks) == len(want))
    assert sorted(router.blocks.values()) == want
    # vLLM keeps the tokens of what is in its memory and, if it needs them to tell of the end, in the store.
    assert len(router.tracker._pending_event_metadata) == ROOM
    store = engine.tier.store  # type: ignore[attr-defined]
    store.delete_where(prefix="")
    router.until(lambda: not router.blocks)


def test_after_a_reset_a_block_is_told_of_when_it_is_stored_again(engine: Vllm) -> None:
    router = Router(engine)
    tokens, count = list(range(4 * router.chunk_tokens)), 4 * router.chunk_blocks
    router.offload("one", tokens)
    router.until(lambda: len(router.blocks) == count)
    puts = engine.tier.store.stats()["puts"]  # type: ignore[attr-defined]
    engine.manager.reset_cache()
    engine.manager.on_reset_flushed()
    router.tracker.reset()
    router.blocks.clear()
    router.offload("two", tokens)
    router.until(lambda: len(router.blocks) == count)
    assert engine.tier.store.stats()["puts"] == puts, "they were there"  # type: ignore[attr-defined]


def test_vllm_passes_touches_on(engine: Vllm) -> None:
    router = Router(engine)
    first = router.offload("first", list(range(router.chunk_tokens)))
    for number in range(1, 6):
        # The primary tier has room for all that is asked of it at a time.
        engine.manager.touch(first, ReqContext("first"))
        tier: Any = engine.tier
        tier._touched_until = 0.0
        router.until(lambda: not tier._is_touching and not tier._to_touch)
        router.offload(f"request-{number}", [number * 10_000 + at for at in range(4 * router.chunk_tokens)])
    assert there(engine, first) == [True]


def test_vllm_hashes_are_the_same_in_each_process() -> None:
    """docs/use/engines.md says so."""
    code = (
        "from vllm.utils.hashing import sha256, sha256_cbor\n"
        "from vllm.v1.core import kv_cache_utils as utils\n"
        "for one in (sha256, sha256_cbor):\n"
        "    utils.init_none_hash(one)\n"
        "    print('hash', utils.NONE_HASH.hex())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    said = [
        [line for line in done.stdout.splitlines() if line.startswith("hash")]
        for done in [
            subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
            for _ in range(2)
        ]
    ]
    assert said[0] == said[1] and len(said[0]) == 2
