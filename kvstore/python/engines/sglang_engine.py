"""SGLang's hierarchical cache on a CPU: its host pool, its storage factory and its controller's transfers."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory

LAYERS, HEADS, HEAD_DIM = 4, 2, 128
TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_DIM * torch.bfloat16.itemsize


def adit(target: str, **params: object) -> dict[str, Any]:
    """Return the extra configuration of the store as storage backend."""
    return {
        "backend_name": "adit",
        "module_path": "adit.sglang",
        "class_name": "AditStorage",
        "interface_v1": 1,
        "target": target,
        **params,
    }


class Sglang:
    """A controller with a host pool of pages, over the storage backend of a name."""

    def __init__(
        self,
        backend: str,
        extra: dict[str, Any],
        block_bytes: int,
        blocks: int,
        model: str = "model",
        dtype: torch.dtype = torch.bfloat16,
        rank: int = 0,
        world: int = 1,
        layout: str = "page_first",
    ) -> None:
        self.block_bytes, self.page_size = block_bytes, block_bytes // TOKEN_BYTES
        assert self.page_size * TOKEN_BYTES == block_bytes and dtype.itemsize == 2
        self.pool = _pool(blocks * self.page_size, self.page_size, dtype, layout)
        config = _config(model, rank, world, layout, extra)
        # The order of calls is that of `attach_storage_backend`, which needs the engine's process groups.
        controller: Any = HiCacheController.__new__(HiCacheController)
        controller.storage_backend = StorageBackendFactory.create_backend(
            backend, config, self.pool
        )
        controller.storage_backend.register_mem_pool_host(self.pool)
        controller.storage_backend.on_host_pools_registered()
        controller.storage_host_pool, controller.page_size = self.pool, self.page_size
        has_v1 = backend == "dynamic" and bool(extra.get("interface_v1", 0))
        self._set = controller._page_set_zero_copy if has_v1 else controller._generic_page_set
        self._get = controller._page_get_zero_copy if has_v1 else controller._generic_page_get
        self.backend = controller.storage_backend

    def store(self, blocks: dict[int, torch.Tensor]) -> list[int]:
        """Store pages; return those that SGLang holds stored."""
        for place, content in enumerate(blocks.values()):
            self.fill(place, content)
        return list(blocks) if self.set_pages(list(blocks)) else []

    def load(self, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        """Load each page on its own, as SGLang loads a prefix up to its first miss; return what was loaded."""
        contents = {}
        for number in numbers:
            self.fill(0, torch.zeros(self.block_bytes, dtype=torch.uint8))
            if self.backend.batch_exists([_key(number)]) == 1 and self.get_pages([number]) == 1:
                contents[number] = self.pool.get_data_page(0).view(torch.uint8).clone()
        return contents

    def fill(self, place: int, content: torch.Tensor) -> None:
        """Write a page of the host pool."""
        page = content.view(self.pool.dtype)
        self.pool.set_from_flat_data_page(place * self.page_size, page)

    def set_pages(self, numbers: Sequence[int]) -> bool:
        """Store the first pages of the host pool by the controller's call."""
        return bool(self._set([_key(number) for number in numbers], self._indices(len(numbers))))

    def get_pages(self, numbers: Sequence[int]) -> int:
        """Load pages into the first of the host pool by the controller's call; return how many came."""
        operation = types.SimpleNamespace(request_id="request", is_terminated=lambda: False)
        keys = [_key(number) for number in numbers]
        return int(self._get(operation, keys, self._indices(len(numbers))))

    def close(self) -> None:
        """Close the backend, if it can be closed."""
        getattr(self.backend, "close", lambda: None)()

    def _indices(self, pages: int) -> torch.Tensor:
        return torch.arange(pages * self.page_size)


def _key(number: int) -> str:
    return number.to_bytes(32, "big").hex()


def _pool(tokens: int, page_size: int, dtype: torch.dtype, layout: str) -> Any:
    device = torch.device("cpu")
    kv = tuple(torch.zeros(page_size, HEADS, HEAD_DIM, dtype=dtype) for _ in range(LAYERS))
    pointers = torch.tensor([tensor.data_ptr() for tensor in kv], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=kv, v=kv, k_data_ptrs=pointers, v_data_ptrs=pointers, layout=KVBufferLayout.NHD
        ),
        page_size=page_size,
        head_num=HEADS,
        head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        dtype=dtype,
        device=device,
    )
    return MHATokenToKVPoolHost(
        info,
        host_to_device_ratio=1.0,
        host_size=0,
        page_size=page_size,
        layout=layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=page_size,
        start_layer=0,
        end_layer=LAYERS,
        host_token_capacity=tokens,
    )


def _config(
    model: str, rank: int, world: int, layout: str, extra: dict[str, Any]
) -> HiCacheStorageConfig:
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=world,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first",
        model_name=model,
        extra_config=extra,
    )
