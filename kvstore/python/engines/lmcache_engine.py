"""LMCache's multi-process server: an L2 adapter made by its factory, fed from its allocator."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from memory import room

ALIGN = 4096
# Longer than any task takes on a slow disk.
PATIENCE_MS = 60_000


def adit(target: str, **params: object) -> dict[str, Any]:
    """Return the configuration of the store as an L2 adapter."""
    return {
        "type": "native_plugin",
        "module_path": "adit.lmcache",
        "class_name": "Connector",
        "adapter_params": {"target": target, **params},
    }


def adit_l2(target: str, **params: object) -> dict[str, Any]:
    """Return the configuration of the store as an L2 adapter that is no connector."""
    return {
        "type": "plugin",
        "module_path": "adit.lmcache_l2",
        "class_name": "AditAdapter",
        "adapter_params": {"target": target, **params},
    }


class LMCache:
    """An L2 adapter with as much L1 memory as it needs."""

    def __init__(
        self,
        config: dict[str, Any],
        block_bytes: int,
        blocks: int,
        model: str = "model",
        rank: int = 0,
        world: int = 1,
        pages: str = "huge",
    ) -> None:
        kind = get_l2_adapter_config_class(config["type"])
        self.adapter = create_l2_adapter(kind.from_dict(config))
        self.block_bytes, self._model = block_bytes, model
        self._kv_rank = ObjectKey.ComputeKVRank(world, rank, world, rank)
        # LMCache has huge pages on a machine with a GPU.
        memory = torch.from_numpy(room(block_bytes * blocks, pages))
        self._allocator = TensorMemoryAllocator(memory, ALIGN)
        self._shape = torch.Size([block_bytes // 2])
        self._free = [self._allocate() for _ in range(blocks)]

    def store(self, blocks: dict[int, torch.Tensor]) -> list[int]:
        """Store blocks; return those that LMCache holds stored."""
        objects = self._take(len(blocks))
        for held, content in zip(objects, blocks.values()):
            held.tensor.view(torch.uint8).copy_(content)
        is_stored = self.store_objects(list(blocks), objects)
        self._free += objects
        return list(blocks) if is_stored else []

    def load(self, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        """Look blocks up and load those that are there; return what was loaded."""
        there = self.lookup(numbers)
        objects = self._take(len(there))
        for held in objects:
            held.tensor.zero_()
        loaded = self.load_objects(there, objects)
        contents = {
            number: held.tensor.view(torch.uint8).clone()
            for number, held, is_loaded in zip(there, objects, loaded)
            if is_loaded
        }
        self._free += objects
        return contents

    def lookup(self, numbers: Sequence[int]) -> list[int]:
        """Return the blocks that the adapter says are there."""
        keys = self.keys(numbers)
        task = self.adapter.submit_lookup_and_lock_task(keys, {0: self._layout()})
        event = self.adapter.get_lookup_and_lock_event_fd()
        bits = _wait(event, lambda: self.adapter.query_lookup_and_lock_result(task))
        self.adapter.submit_unlock([key for place, key in enumerate(keys) if bits.test(place)])
        return [number for place, number in enumerate(numbers) if bits.test(place)]

    def objects(self, count: int) -> list[MemoryObj]:
        """Return objects of L1, which the caller keeps."""
        return self._take(count)

    def store_objects(self, numbers: Sequence[int], objects: list[MemoryObj]) -> bool:
        """Store objects of L1 as blocks."""
        task = self.adapter.submit_store_task(self.keys(numbers), objects)
        event = self.adapter.get_store_event_fd()
        done = _wait(event, lambda: self.adapter.pop_completed_store_tasks() or None)
        return bool(done[task].is_successful())

    def load_objects(self, numbers: Sequence[int], objects: list[MemoryObj]) -> list[bool]:
        """Load blocks into objects of L1; say of each whether it was there."""
        task = self.adapter.submit_load_task(self.keys(numbers), objects)
        event = self.adapter.get_load_event_fd()
        bits = _wait(event, lambda: self.adapter.query_load_result(task))
        return [bits.test(place) for place in range(len(numbers))]

    def delete(self, numbers: Sequence[int]) -> None:
        """Remove blocks."""
        self.adapter.delete(self.keys(numbers))

    def close(self) -> None:
        """Close the adapter, and give back its memory."""
        self.adapter.close()
        for held in self._free:
            held.ref_count_down()

    def keys(self, numbers: Sequence[int]) -> list[ObjectKey]:
        """Return the keys of blocks."""
        return [
            ObjectKey(number.to_bytes(32, "big"), self._model, self._kv_rank) for number in numbers
        ]

    def _layout(self) -> MemoryLayoutDesc:
        return MemoryLayoutDesc(shapes=[self._shape], dtypes=[torch.bfloat16])

    def _allocate(self) -> MemoryObj:
        held = self._allocator.allocate(self._shape, torch.bfloat16, MemoryFormat.KV_2LTD)
        assert held is not None and held.get_size() == self.block_bytes
        return held

    def _take(self, count: int) -> list[MemoryObj]:
        assert count <= len(self._free)
        taken, self._free = self._free[:count], self._free[count:]
        return taken


def _wait(event: int, ask: Callable[[], Any]) -> Any:
    """Ask after each event until there is an answer."""
    poll = select.poll()
    poll.register(event, select.POLLIN)
    while (answer := ask()) is None:
        assert poll.poll(PATIENCE_MS), "the adapter does not answer"
        _consume(event)
    return answer


def _consume(event: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)
