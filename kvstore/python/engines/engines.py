"""The engines by name, over stores on files; as a program, an engine that stores blocks until it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

# An engine's blocks, as tests store them: small, and of several pages.
BLOCK_BYTES = {
    "lmcache": 256 << 10,
    "lmcache-l2": 256 << 10,
    "lmcache-plugin": 256 << 10,
    "vllm": 128 << 10,
    "sglang": 64 << 10,
}
BLOCKS = 16
STORE_BYTES = 192 << 20


class Engine(Protocol):
    """An engine's cache over a storage backend, driven by the engine's own calls."""

    def store(self, blocks: dict[int, torch.Tensor]) -> list[int]: ...
    def load(self, numbers: Sequence[int]) -> dict[int, torch.Tensor]: ...
    def close(self) -> None: ...


def content(name: str, number: int) -> torch.Tensor:
    """Return the bytes of a block: noise that its number determines."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (BLOCK_BYTES[name],), dtype=torch.uint8, generator=generator)


def contents(name: str, numbers: Sequence[int]) -> dict[int, torch.Tensor]:
    """Return the blocks of some numbers."""
    return {number: content(name, number) for number in numbers}


def start(name: str, place: Path | str, durability: str = "restart", **changes: Any) -> Engine:
    """Start an engine on the store in a file, which is made if it is not there, or on that of a server's target."""
    if isinstance(place, str):
        options: dict[str, Any] = {"target": place}
    else:
        room = STORE_BYTES / (1 << 30)
        options = {"target": f"uring:{place}", "size_gb": room, "durability": durability}
    if name in ("lmcache", "lmcache-l2"):
        return _lmcache(name, options, **changes)
    if name == "lmcache-plugin":
        return _lmcache_plugin(options, **changes)
    if name == "vllm":
        return _vllm(options, **changes)
    return _sglang(options, **changes)


def _lmcache(name: str, options: dict[str, Any], dtype: str = "bf16", **changes: Any) -> Engine:
    from lmcache_engine import LMCache, adit, adit_l2

    # LMCache's keys do not tell the type: the configuration does.
    kind = adit if name == "lmcache" else adit_l2
    return LMCache(kind(**options, namespace=dtype), BLOCK_BYTES[name], BLOCKS, **changes)


def _lmcache_plugin(options: dict[str, Any], dtype: str = "bfloat16", **changes: Any) -> Engine:
    from lmcache_plugin_engine import LMCachePlugin, config

    changes["dtype"] = getattr(torch, dtype)
    return LMCachePlugin(config(**options), BLOCK_BYTES["lmcache-plugin"], **changes)


def _vllm(options: dict[str, Any], **changes: Any) -> Engine:
    from vllm_engine import Vllm, adit

    # The name of the primary tier's shared memory.
    engine_id = f"adit-{os.getpid()}"
    return Vllm(adit(**options), BLOCK_BYTES["vllm"], BLOCKS, engine_id=engine_id, **changes)


def _sglang(options: dict[str, Any], dtype: str = "bfloat16", **changes: Any) -> Engine:
    from sglang_engine import Sglang, adit

    changes["dtype"] = getattr(torch, dtype)
    own = {name: options[name] for name in ("target", "size_gb") if name in options}
    own["store_options"] = {name: options[name] for name in options if name not in own}
    return Sglang("dynamic", adit(**own), BLOCK_BYTES["sglang"], BLOCKS, **changes)


def forget(name: str, process: int) -> None:
    """Remove what an engine of a killed process leaves in shared memory."""
    if name == "vllm":
        Path(f"/dev/shm/vllm_offload_adit-{process}.mmap").unlink(missing_ok=True)


def _store_for_ever(name: str, image: Path, durability: str) -> None:
    engine = start(name, image, durability)
    number = 0
    while True:
        batch = range(number, number + 4)
        print("begun", *batch, flush=True)
        print("stored", *engine.store(contents(name, batch)), flush=True)
        number += 4


if __name__ == "__main__":
    _store_for_ever(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
