"""The parts of inference engines that the adapters use, as far as their contracts go."""

from __future__ import annotations

import ctypes
import enum
import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    """Have an engine's module, and the packages that it is in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules or end == len(parts):
            made = types.ModuleType(path)
            made.__path__ = []
            monkeypatch.setitem(sys.modules, path, made)
    vars(sys.modules[name]).update(contents)


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    STORAGE = "STORAGE"


@dataclass
class OffloadingEvent:
    keys: list[bytes]
    medium: Medium
    removed: bool
    locality: object = None
    ownership: str | None = None
    removal_expected: bool = False
    metadata_only: bool = False


@dataclass
class ReqContext:
    req_id: str


@dataclass
class TransferJob:
    job_id: int
    keys: list[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: ReqContext


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: tuple[bytes, ...] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    medium: ClassVar[Medium | None] = None

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, detector: Any = None
    ) -> None:
        self.tier_type, self.bp_detector = tier_type, detector
        assert primary_kv_view.strides is not None
        self.block_size_bytes = primary_kv_view.strides[0]


def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have vLLM's tiers."""
    contents: dict[str, object] = {
        "LookupResult": LookupResult,
        "Medium": Medium,
        "OffloadingEvent": OffloadingEvent,
        "ReqContext": ReqContext,
        "RequestOffloadingContext": type("RequestOffloadingContext", (), {}),
        "ScheduleEndContext": type("ScheduleEndContext", (), {}),
    }
    module(monkeypatch, "vllm.v1.kv_offload.base", **contents)
    module(
        monkeypatch,
        "vllm.v1.kv_offload.tiering.base",
        JobResult=JobResult,
        SecondaryTierManager=SecondaryTierManager,
        TransferJob=TransferJob,
    )
    monkeypatch.delitem(sys.modules, "adit.vllm", raising=False)


def vllm_spec(**changes: object) -> Any:
    """Return vLLM's configuration of a small model."""
    parallel: dict[str, object] = dict.fromkeys(("tp_size", "pp_size", "pcp_size", "dcp_size"), 1)
    parallel |= {"world_size": 1, "rank": 0, "data_parallel_index": 0}
    parallel |= {"is_parallelism_agnostic": False}
    values: dict[str, Any] = {"name": "tiny", "dtype": "float16", "layout": "NHD", **changes}
    parallel |= {key: values[key] for key in parallel if key in values}
    group = types.SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a", "b"))
    config = types.SimpleNamespace(
        groups=(group,),
        model=types.SimpleNamespace(name=values["name"], dtype=values["dtype"]),
        cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=types.SimpleNamespace(**parallel),
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout=values["layout"],
    )
    events = types.SimpleNamespace(
        enable_kv_cache_events=values.get("events", False),
        self_describing_kv_events=values.get("self_describing", False),
    )
    return types.SimpleNamespace(config=config, kv_events_config=events)


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    block_pages: int = 0
    group_pages: int = 0


@dataclass(frozen=True)
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools = {host_pool_name: host_pool}


def sglang(monkeypatch: pytest.MonkeyPatch, model: Any = None) -> None:
    """Have SGLang's storage, and its settings of the model if it has published them."""
    module(
        monkeypatch,
        "sglang.srt.mem_cache.hicache_storage",
        HiCacheStorage=HiCacheStorage,
        PoolHitPolicy=PoolHitPolicy,
        PoolName=PoolName,
        PoolTransferResult=PoolTransferResult,
    )

    def get_model() -> Any:
        if model is None:
            raise ValueError("config namespace 'model' not published")
        return model

    module(monkeypatch, "sglang.srt.runtime_context", get_model=get_model)
    monkeypatch.delitem(sys.modules, "adit.sglang", raising=False)


@dataclass
class HiCacheStorageConfig:
    extra_config: dict[str, Any]
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    model_name: str = "tiny"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


class Tensor:
    """What the adapter asks of a tensor, over an array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array))


class HostPool:
    """A pool of pages of keys and values in host memory."""

    page_size = 4
    start_layer, end_layer = 0, 3
    storage_format_tag = None

    def __init__(self, array: Any, layout: str = "page_first", dtype: str = "float16") -> None:
        # [2, pages, bytes of a page's half]
        self.array, self.layout, self.dtype = array, layout, dtype
        self.kv_buffer = Tensor(array)
        # Views of it, as SGLang's are.
        self.k_buffer, self.v_buffer = Tensor(array[0]), Tensor(array[1])

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        assert len(indices) % self.page_size == 0
        pages = [index // self.page_size for index in indices.tolist()[:: self.page_size]]
        halves = [self.array[half, page] for page in pages for half in (0, 1)]
        return [half.ctypes.data for half in halves], [half.nbytes for half in halves]

    def get_dummy_flat_data_page(self) -> Tensor:
        return Tensor(np.zeros(2 * self.array.shape[2], dtype=np.uint8))

    def get_data_page(self, index: int, flat: bool = True) -> Tensor:
        return Tensor(self.array[:, index // self.page_size].reshape(-1))

    def set_from_flat_data_page(self, index: int, page: Tensor) -> None:
        self.array[:, index // self.page_size] = page.array.reshape(2, -1)


@dataclass
class LlamaState:
    input_ids: Any
    scores: Any
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class ContextParams(ctypes.Structure):
    """Some of llama.cpp's settings of a context."""

    _fields_ = [
        ("n_ctx", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("rope_freq_base", ctypes.c_float),
        ("callback", ctypes.CFUNCTYPE(None)),
        ("type_k", ctypes.c_int),
    ]


@dataclass
class Llama:
    """A model with its settings."""

    n_ctx: int = 64
    n_threads: int = 4
    rope_freq_base: float = 0.0
    metadata: dict[str, str] = field(default_factory=lambda: {"general.name": "tiny"})
    kv_overrides: dict[str, int] | None = None
    model_path: str = "tiny.gguf"
    lora_path: str | None = None
    _logits_all: bool = True

    @property
    def context_params(self) -> ContextParams:
        return ContextParams(
            n_ctx=self.n_ctx, n_threads=self.n_threads, rope_freq_base=self.rope_freq_base, type_k=1
        )

    def n_vocab(self) -> int:
        return 32


def llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have llama-cpp-python's state."""
    module(monkeypatch, "llama_cpp.llama", LlamaState=LlamaState)
    monkeypatch.delitem(sys.modules, "adit.llama_cpp", raising=False)


class MemoryFormat(enum.Enum):
    KV_2LTD = 1
    KV_T2D = 2
    KV_MLA_FMT = 3


class StoragePluginInterface:
    def __init__(
        self, dst_device: str, config: Any, metadata: Any, local_cpu_backend: Any, loop: Any
    ) -> None:
        self.config, self.metadata, self.local_cpu_backend = config, metadata, local_cpu_backend


@dataclass
class ChunkKey:
    """LMCache's key of a chunk."""

    number: int
    model: str = "tiny"

    def to_string(self) -> str:
        return f"{self.model}@1@0@{self.number:x}@half"

    def __hash__(self) -> int:
        return hash(self.to_string())


class Chunk:
    """Memory of LMCache's that goes back to it with the last reference."""

    def __init__(self, home: LocalCpu, array: Any, form: MemoryFormat) -> None:
        self._home, self.array, self._format, self._count = home, array, form, 1
        home.used += 1

    @property
    def byte_array(self) -> memoryview:
        kind = ctypes.c_ubyte * self.array.nbytes
        return memoryview(kind.from_address(self.array.ctypes.data))

    def get_size(self) -> int:
        return int(self.array.nbytes)

    def get_memory_format(self) -> MemoryFormat:
        return self._format

    def ref_count_up(self) -> None:
        self._count += 1

    def ref_count_down(self) -> None:
        self._count -= 1
        assert self._count >= 0
        self._home.used -= self._count == 0


class LocalCpu:
    """LMCache's CPU backend: room for some chunks."""

    def __init__(self, room: int = 8) -> None:
        self.room, self.used = room, 0

    def allocate(
        self,
        shapes: list[tuple[int, ...]],
        dtypes: list[str],
        form: MemoryFormat = MemoryFormat.KV_2LTD,
        busy_loop: bool = True,
    ) -> Chunk | None:
        if self.used == self.room:
            assert not busy_loop, "it would wait for ever"
            return None
        return Chunk(self, np.zeros(shapes[0], dtype=dtypes[0]), form)


@dataclass
class LMCacheMetadata:
    """LMCache's description of a worker and its chunks."""

    model_name: str = "tiny"
    worker_id: int = 0
    layers: int = 3
    dtype: str = "float16"
    use_mla: bool = False
    chunk_size: int = 16

    def get_shapes(self, tokens: int | None = None) -> list[tuple[int, ...]]:
        return [(2, self.layers, self.chunk_size if tokens is None else tokens, 64)]

    def get_dtypes(self) -> list[np.dtype[Any]]:
        return [np.dtype(self.dtype)]


def lmcache_config(use_layerwise: bool = False, **params: object) -> Any:
    """Return LMCache's configuration, with those of the plug-in."""
    return types.SimpleNamespace(use_layerwise=use_layerwise, extra_config={"adit": params})


def lmcache_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have LMCache's interface of storage plug-ins."""
    module(monkeypatch, "lmcache.v1.memory_management", MemoryFormat=MemoryFormat)
    interface = "lmcache.v1.storage_backend.abstract_backend"
    module(monkeypatch, interface, StoragePluginInterface=StoragePluginInterface)
    monkeypatch.delitem(sys.modules, "adit.lmcache_plugin", raising=False)


class Bitmap:
    """LMCache's bits."""

    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, place: int) -> None:
        self.bits[place] = True


class MemoryResidency(str, enum.Enum):
    LOCAL = "local"
    REMOTE = "remote"


class MemorySegment(str, enum.Enum):
    STORAGE = "storage"


@dataclass(frozen=True)
class MemoryTags:
    segment: MemorySegment
    residency: MemoryResidency


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str = "meta/llama"
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""

    def to_encoded_object_key(self) -> ObjectKey:
        return self


@dataclass(frozen=True)
class KeyEntry:
    key: ObjectKey
    size_bytes: int


@dataclass(frozen=True)
class KeyListPage:
    entries: tuple[KeyEntry, ...]
    next_page_token: str | None


@dataclass(frozen=True)
class AdapterUsage:
    total_bytes_used: int
    total_capacity_bytes: int


class L2StoreResult(int):
    def __new__(cls, success: bool, nbytes: int) -> L2StoreResult:
        return super().__new__(cls, nbytes if success else -1)


class L2AdapterInterface:
    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self._shared, self._used, self._capacity = False, 0, max_capacity_bytes
        self.told: list[tuple[str, list[ObjectKey]]] = []

    def set_backend_identity(self, name: str, shared: bool = False) -> None:
        self._shared = shared

    def _notify_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        assert len(keys) == len(sizes)
        self._used += sum(sizes)
        self.told.append(("stored", keys))

    def _notify_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self.told.append(("accessed", keys))

    def _notify_keys_deleted(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        assert len(keys) == len(sizes)
        self._used -= sum(sizes)
        self.told.append(("deleted", keys))

    def get_usage(self) -> AdapterUsage:
        return AdapterUsage(self._used, self._capacity)


def lmcache_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have LMCache's interface of L2 adapters."""
    api = "lmcache.v1.distributed.api"
    base = "lmcache.v1.distributed.l2_adapters.base"
    tags: dict[str, object] = {"MemoryResidency": MemoryResidency, "MemorySegment": MemorySegment}
    keys: dict[str, object] = {"KeyEntry": KeyEntry, "KeyListPage": KeyListPage, "ObjectKey": ObjectKey}
    module(monkeypatch, "lmcache.lmcache_native", Bitmap=Bitmap)
    module(monkeypatch, api, MemoryTags=MemoryTags, **tags, **keys)
    module(monkeypatch, "lmcache.v1.distributed.internal_api", L2StoreResult=L2StoreResult)
    module(monkeypatch, base, AdapterUsage=AdapterUsage, L2AdapterInterface=L2AdapterInterface)
    monkeypatch.delitem(sys.modules, "adit.lmcache_l2", raising=False)
