"""vLLM's offloading connector on a CPU: its tiering spec, manager and primary tier, driven as its scheduler does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

TOKENS = 16
# Longer than any transfer takes on a slow disk.
PATIENCE = 60.0


def adit(target: str, **params: object) -> dict[str, Any]:
    """Return the configuration of the store as a secondary tier."""
    return {"type": "AditTier", "module_path": "adit.vllm", "target": target, **params}


class Vllm:
    """An engine's offloading: blocks go through the primary tier as if a GPU had written them."""

    def __init__(
        self,
        tier: dict[str, Any],
        block_bytes: int,
        blocks: int,
        model: str = "model",
        dtype: str = "bfloat16",
        rank: int = 0,
        world: int = 1,
        engine_id: str = "adit-test",
        blocks_per_chunk: int = 1,
        events: bool = False,
    ) -> None:
        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(TOKENS, ("layers.0", "layers.1"), 0),),
            # A row has the parts of all workers.
            worker_kv_bytes_per_block=block_bytes // world // blocks_per_chunk,
            enable_kv_cache_events=events,
            extra_config={
                "cpu_bytes_to_use": block_bytes * blocks,
                "secondary_tiers": [tier],
                "self_describing_kv_events": events,
            },
            engine_id=engine_id,
            model=OffloadingModelConfig(model, dtype),
            cache=OffloadingCacheConfig(TOKENS, blocks_per_chunk),
            parallel=_parallel(rank, world),
        )
        self.block_bytes = block_bytes
        self.spec: Any = TieringOffloadingSpec(config)
        self._manager: Any = self.spec.get_manager()
        # Bytes, which are signed in vLLM.
        view = self._manager.primary_tier.get_kv_memoryview()
        self._view = np.asarray(view).view(np.uint8)
        self._requests = self._jobs = 0
        assert self._view.shape[1] == block_bytes

    @property
    def manager(self) -> Any:
        """vLLM's manager of the tiers."""
        return self._manager

    @property
    def tier(self) -> SecondaryTierManager:
        """The secondary tier that vLLM's factory made."""
        return self._manager.secondary_tiers[0]

    def store(self, blocks: dict[int, torch.Tensor]) -> list[int]:
        """Store blocks in the primary tier, which hands them on; return those that the secondary tier has."""
        keys = [_key(number) for number in blocks]
        self.offload(keys, list(blocks.values()))
        there = self._look_up(self._request(), keys, self.tier.lookup)
        return [number for number, key in zip(blocks, keys) if there[key] is LookupResult.HIT]

    def offload(self, keys: list[bytes], contents: Sequence[torch.Tensor]) -> None:
        """Store chunks in the primary tier, which hands them on."""
        context = self._request()
        output = self._manager.prepare_store(keys, context)
        assert output is not None and output.keys_to_store == keys
        for chunk, content in zip(output.store_spec.chunk_ids, contents):
            self._view[int(chunk)] = content.numpy()
        self._manager.complete_store(keys, context)
        self._finish(context)

    def load(self, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        """Load blocks from the secondary tier alone; return what was loaded."""
        self._forget()
        context = self._request()
        keys = {_key(number): number for number in numbers}
        found = self._look_up(context, list(keys), self._manager.lookup)
        hits = [key for key, result in found.items() if result is LookupResult.HIT]
        contents = {}
        if hits:
            spec = self._manager.prepare_load(hits, context)
            for key, chunk in zip(hits, spec.chunk_ids):
                contents[keys[key]] = torch.from_numpy(self._view[int(chunk)].copy())
            self._manager.complete_load(hits, context)
        self._finish(context)
        return contents

    def transfer(self, numbers: Sequence[int], chunks: Sequence[int], is_load: bool) -> bool:
        """Move blocks between rows of the primary tier and the secondary tier in one job of vLLM's."""
        self._jobs += 1
        keys = [_key(number) for number in numbers]
        rows = np.array(chunks, dtype=np.int32)
        job = TransferJob(self._jobs, keys, rows, is_load, ReqContext("transfer"))
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        self.tier.drain_jobs()
        results = list(self.tier.get_finished_jobs())
        assert [result.job_id for result in results] == [self._jobs]
        return bool(results[0].success)

    def rows(self) -> Any:
        """Return the primary tier's rows."""
        return self._view

    def close(self) -> None:
        """Shut down as vLLM does."""
        del self._view
        self._manager.shutdown()

    def _request(self) -> ReqContext:
        self._requests += 1
        context = ReqContext(f"request-{self._requests}")
        self._manager.on_new_request(context)
        return context

    def _look_up(self, context: ReqContext, keys: list[bytes], ask: Any) -> dict[bytes, Any]:
        """Ask for keys, step after step, until each is a hit or a miss."""
        found: dict[bytes, Any] = {}
        end = time.monotonic() + PATIENCE
        while len(found) < len(keys):
            assert time.monotonic() < end, "the tier does not answer"
            for key in keys:
                if key not in found:
                    result = ask(key, context)
                    if result in (LookupResult.HIT, LookupResult.MISS):
                        found[key] = result
            self._step(context)
        return {key: found[key] for key in keys}

    def _step(self, context: ReqContext) -> None:
        self._manager.on_schedule_end(ScheduleEndContext((context.req_id,), ()))
        time.sleep(0.0005)

    def _finish(self, context: ReqContext) -> None:
        """End a request, and wait for what it left to be done."""
        self._manager.on_request_finished(context)
        end = time.monotonic() + PATIENCE
        while self._manager.has_pending_work():
            assert time.monotonic() < end, "the tier does not finish"
            self._step(context)

    def _forget(self) -> None:
        """Empty the primary tier, so that blocks can come from the secondary tier only."""
        self._manager.reset_cache()
        self._manager.on_reset_flushed()


def _key(number: int) -> Any:
    return make_offload_key(number.to_bytes(32, "big"), 0)


def _parallel(rank: int, world: int) -> OffloadingParallelConfig:
    return OffloadingParallelConfig(
        rank=rank,
        world_size=world,
        tp_size=world,
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        is_parallelism_agnostic=False,
    )
