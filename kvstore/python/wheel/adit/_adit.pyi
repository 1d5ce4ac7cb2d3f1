from collections.abc import Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict, final, type_check_only

from typing_extensions import Buffer, Self, TypeAlias, disjoint_base

from ._errors import Error
from ._futures import Aio, Futures
from ._streams import Reader

_Key: TypeAlias = bytes | str

# NumPy's arrays declare their buffer only for Python 3.12 and later.
@type_check_only
class _Array(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

# Tensors and the arrays of other libraries have DLPack.
@type_check_only
class _Tensor(Protocol):
    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

_Data: TypeAlias = Buffer | _Array | _Tensor
_Target: TypeAlias = str | PathLike[str]
_Dtype: TypeAlias = Literal["f32", "float32", "f16", "float16", "bf16", "bfloat16", "fp8", "int8"]

__all__ = [
    "BlocksWriter",
    "Calls",
    "Client",
    "Layout",
    "Lease",
    "Pieces",
    "Queue",
    "Region",
    "Scope",
    "Store",
    "__version__",
    "connect",
]

__version__: str

@type_check_only
class _Room(TypedDict):
    objects_max: int
    key_bytes: int

@type_check_only
class _Info(TypedDict):
    bytes: int
    version: int
    stored: float | None
    ttl: int | None
    tenant: str

@type_check_only
class _Tenant(TypedDict):
    quota_bytes: int | None
    objects: int
    used_bytes: int
    puts: int
    gets: int
    hits: int
    evictions: int
    refusals: int

@disjoint_base
class Scope:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
        /,
    ) -> None: ...

@type_check_only
class _Readable(Protocol):
    def read(self, size: int, /) -> _Data: ...

@final
class Pieces:
    @property
    def nbytes(self) -> int: ...
    @property
    def version(self) -> int: ...
    def readinto(self, position: int, buffer: _Data) -> int: ...
    def close(self) -> None: ...

@final
class Layout:
    @property
    def layers(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def layer_bytes(self) -> int: ...

@final
class Lease(Scope):
    @property
    def count(self) -> int: ...
    def release(self) -> None: ...

@final
class BlocksWriter(Scope):
    def put_layer(self, layer: int, buffers: Iterable[_Data]) -> None: ...
    def commit(self) -> list[bool]: ...
    def close(self) -> None: ...

@final
class Region(Scope):
    @property
    def nbytes(self) -> int: ...
    def close(self) -> None: ...

@final
class Queue(Scope):
    def event_fd(self) -> int: ...
    def __len__(self) -> int: ...
    def submit_put(
        self,
        keys: Iterable[_Key],
        values: Iterable[_Data],
        *,
        token: object = None,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> int: ...
    def submit_get(self, keys: Iterable[_Key], *, token: object = None) -> int: ...
    def submit_get_into(
        self, keys: Iterable[_Key], buffers: Iterable[_Data], *, token: object = None
    ) -> int: ...
    def submit_exists(self, keys: Iterable[_Key], *, token: object = None) -> int: ...
    def submit_refresh(self, keys: Iterable[_Key], *, token: object = None) -> int: ...
    def submit_removals(
        self, cursor: int | None = None, *, prefix: _Key | None = None, token: object = None
    ) -> int: ...
    def submit_lookup_prefix(self, keys: Iterable[_Key], *, token: object = None) -> int: ...
    def submit_delete(self, keys: Iterable[_Key], *, token: object = None) -> int: ...
    def submit_touch(
        self, keys: Iterable[_Key], ttl: float, *, token: object = None
    ) -> int: ...
    def submit_commit(self, *, token: object = None) -> int: ...
    def drain(self, nbytes: int | None = None) -> list[tuple[Any, list[Any], Error | None]]: ...
    def close(self) -> None: ...

@disjoint_base
class Calls(Scope):
    def reader(self, key: _Key) -> Reader | None: ...
    def get_many(self, keys: Iterable[_Key]) -> list[bytes | None]: ...
    def get_into(self, key: _Key, buffer: _Data) -> int | None: ...
    def get_many_into(
        self, keys: Iterable[_Key], buffers: Iterable[_Data]
    ) -> list[int | None]: ...
    def get_layer(
        self, layer: int, keys: Iterable[_Key], buffers: Iterable[_Data]
    ) -> list[int | None]: ...
    def exists(self, key: _Key) -> bool: ...
    def exists_many(self, keys: Iterable[_Key]) -> list[bool]: ...
    def refresh_many(self, keys: Iterable[_Key]) -> list[bool]: ...
    def removals(
        self, cursor: int | None = None, *, prefix: _Key | None = None
    ) -> tuple[list[bytes], int, bool]: ...
    def lookup_prefix(self, keys: Iterable[_Key]) -> int: ...
    def get_versioned(self, key: _Key) -> tuple[bytes, int] | None: ...
    def info(self, key: _Key) -> _Info | None: ...
    def delete(self, key: _Key, *, if_version: int | None = None) -> bool: ...
    def touch(self, key: _Key, ttl: float) -> bool: ...
    def touch_many(self, keys: Iterable[_Key], ttl: float) -> list[bool]: ...
    def persist(self, key: _Key) -> bool: ...
    def delete_many(self, keys: Iterable[_Key]) -> list[bool]: ...
    def lease(self, keys: Iterable[_Key], seconds: float = 60.0) -> Lease: ...
    def layout(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        dtype: _Dtype,
        tensors_per_layer: int = 2,
        slots: int | None = None,
    ) -> Layout: ...
    def queue(self) -> Queue: ...
    def futures(self) -> Futures: ...
    def aio(self) -> Aio: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...
    def __contains__(self, key: _Key, /) -> bool: ...

@final
class Store(Calls):
    def __new__(
        cls,
        target: _Target | Sequence[_Target],
        *,
        durability: Literal["restart", "volatile", "durable"] = "restart",
        policy: Literal["auto", "lru", "s3fifo"] = "auto",
        threads: int | None = None,
        cores: Iterable[int] | None = None,
        pool_bytes: int = 67_108_864,
        tier_bytes: int = 0,
        timeout: float = 30.0,
        command_timeout: float = 10.0,
        capacity_bytes: int | None = None,
        capacity_objects: int | None = None,
        write_bytes_per_day: int | None = None,
        keep_outdated: bool = False,
    ) -> Self: ...
    @staticmethod
    def format(
        target: _Target | Sequence[_Target],
        *,
        size: int | None = None,
        shards: int = 1,
        objects_max: int | None = None,
        key_bytes: int = 64,
        label: str = "",
        force: bool = False,
    ) -> _Room: ...
    def put(
        self,
        key: _Key,
        value: _Data,
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> bool: ...
    def put_many(
        self,
        keys: Iterable[_Key],
        values: Iterable[_Data],
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
    ) -> list[bool]: ...
    def put_from(
        self,
        key: _Key,
        source: _Readable | Iterable[_Data],
        nbytes: int | None = None,
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> bool: ...
    def get(
        self,
        key: _Key,
        start: int = 0,
        stop: int | None = None,
        *,
        if_version: int | None = None,
    ) -> bytes | None: ...
    def delete_where(self, *, prefix: _Key | None = None, tenant: str | None = None) -> int: ...
    def reserve_blocks(
        self,
        layout: Layout,
        keys: Iterable[_Key],
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
    ) -> BlocksWriter: ...
    def register(self, buffer: _Data) -> Region: ...
    def scan(
        self, cursor: int = 0, limit: int = 1000, *, prefix: _Key | None = None
    ) -> tuple[list[tuple[bytes, int, str]], int | None]: ...
    def set_quota(
        self,
        tenant: str,
        quota: int | None,
        when_reached: Literal["refuse", "evict-own"] = "refuse",
    ) -> None: ...
    def tenants(self) -> dict[str, _Tenant]: ...
    def stats(self) -> dict[str, int]: ...
    def prometheus(self) -> str: ...

def connect(
    path: str | PathLike[str],
    *,
    tenant: str | None = None,
    pool_bytes: int = 67_108_864,
    depth: int = 256,
    timeout: float = 60.0,
) -> Client: ...
@final
class Client(Calls):
    @property
    def times_connected(self) -> int: ...
    def allocate(self, nbytes: int) -> memoryview: ...
    def put(
        self,
        key: _Key,
        value: _Data,
        *,
        ttl: float | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> bool: ...
    def put_many(
        self,
        keys: Iterable[_Key],
        values: Iterable[_Data],
        *,
        ttl: float | None = None,
        layout: Layout | None = None,
    ) -> list[bool]: ...
    def put_from(
        self,
        key: _Key,
        source: _Readable | Iterable[_Data],
        nbytes: int | None = None,
        *,
        ttl: float | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> bool: ...
    def get(self, key: _Key) -> bytes | None: ...
    def scan(
        self, cursor: int = 0, *, prefix: _Key | None = None
    ) -> tuple[list[tuple[bytes, int, int]], int | None]: ...
    def delete_where(self, *, prefix: _Key) -> int: ...
    def stats(self) -> dict[str, int]: ...
