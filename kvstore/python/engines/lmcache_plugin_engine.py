"""LMCache in the engine's process: its storage manager, which makes the storage plug-in, on a CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager

try:
    from lmcache.inprocess.v1.event_manager import EventManager
except ModuleNotFoundError:
    # Where it was before 0.5.7.
    from lmcache.v1.event_manager import EventManager

NAME = "adit"
LAYERS, HEADS, HEAD_DIM = 4, 8, 128
TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_DIM * torch.bfloat16.itemsize
# Longer than a batch takes on a slow disk.
PATIENCE = 60.0
# LMCache's memory, and what it makes of it.
MEMORY_GB = 0.0625


def config(**params: object) -> LMCacheEngineConfig:
    """Return LMCache's configuration with the store as its only storage."""
    return LMCacheEngineConfig.from_defaults(
        local_cpu=False,
        max_local_cpu_size=MEMORY_GB,
        storage_plugins=[NAME],
        extra_config={
            f"storage_plugin.{NAME}.module_path": "adit.lmcache_plugin",
            f"storage_plugin.{NAME}.class_name": "AditBackend",
            "adit": params,
        },
    )


class LMCachePlugin:
    """A storage manager over the plug-in."""

    # Its thread would keep the interpreter from its end, after a test that failed too.
    running: ClassVar[set[LMCachePlugin]] = set()

    def __init__(
        self,
        settings: LMCacheEngineConfig,
        block_bytes: int,
        model: str = "model",
        dtype: torch.dtype = torch.bfloat16,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        tokens = block_bytes // TOKEN_BYTES
        assert tokens * TOKEN_BYTES == block_bytes and dtype.itemsize == 2
        self.metadata = LMCacheMetadata(
            model_name=model,
            world_size=world,
            local_world_size=world,
            worker_id=rank,
            local_worker_id=rank,
            kv_dtype=dtype,
            kv_shape=(LAYERS, 2, tokens, HEADS, HEAD_DIM),
            role="worker",
            chunk_size=tokens,
        )
        self.manager = StorageManager(settings, self.metadata, EventManager())
        self.running.add(self)
        self.backend: Any = self.manager.storage_backends.get(NAME)

    def store(self, blocks: dict[int, torch.Tensor]) -> list[int]:
        """Store chunks; return those that the plug-in has afterwards."""
        keys = [self.key(number) for number in blocks]
        objects = [self._filled(content) for content in blocks.values()]
        self.manager.batched_put(keys, objects)
        end = time.monotonic() + PATIENCE
        while any(self.backend.exists_in_put_tasks(key) for key in keys):
            assert time.monotonic() < end, "the plug-in does not end"
            time.sleep(0.001)
        return [number for number, key in zip(blocks, keys) if self.manager.contains(key) == NAME]

    def load(self, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        """Load each chunk on its own, as LMCache loads a prefix up to its first miss; return what was loaded."""
        contents = {}
        for number in numbers:
            # LMCache asks the storage that its lookup names.
            (loaded,) = self.manager.batched_get([self.key(number)], NAME)
            if loaded is not None:
                contents[number] = loaded.tensor.flatten().view(torch.uint8).clone()
                loaded.ref_count_down()
        return contents

    def key(self, number: int) -> CacheEngineKey:
        """Return the key of a chunk."""
        meta = self.metadata
        return CacheEngineKey(
            meta.model_name, meta.world_size, meta.worker_id, number + 1, meta.kv_dtype
        )

    def close(self) -> None:
        """Close the manager."""
        self.running.discard(self)
        self.manager.close()

    def allocate(self, tokens: int) -> Any:
        """Return memory for a chunk of some tokens."""
        shapes, dtypes = self.metadata.get_shapes(tokens), self.metadata.get_dtypes()
        held = self.manager.batched_allocate(shapes, dtypes, 1, MemoryFormat.KV_2LTD)
        assert held is not None
        return held[0]

    def _filled(self, content: torch.Tensor) -> Any:
        held = self.allocate(content.numel() // TOKEN_BYTES)
        held.tensor.flatten().view(torch.uint8).copy_(content)
        return held
