"""Each exception, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Served, pool

import adit


def test_every_exception_is_an_error_of_adit() -> None:
    classes = [getattr(adit, name) for name in adit.__all__ if name.endswith("Error")]
    assert len(classes) == 16
    assert all(issubclass(kind, adit.Error) and kind.__doc__ for kind in classes)
    assert issubclass(adit.InvalidError, ValueError)
    assert issubclass(adit.BadBufferError, BufferError)
    assert issubclass(adit.DeadlineError, TimeoutError)


def test_keys_that_are_none(store: adit.Store) -> None:
    for key in ("", b"", "k" * 513, "ü" * 257):
        with pytest.raises(adit.InvalidKeyError, match="use 1 to 512"):
            store.get(key)
    for other in (1, None, ["a"], bytearray(b"a")):
        with pytest.raises(TypeError, match="a key is bytes or str"):
            store.get(other)  # type: ignore[arg-type]
    for one in ("abc", b"abc"):
        with pytest.raises(TypeError, match="this is one key"):
            store.get_many(one)  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        store.get("\ud800")
    store.put("k" * 512, b"x")
    assert store.get("k" * 512) == b"x"


def test_buffers_that_cannot_be_used(store: adit.Store) -> None:
    rows = np.zeros((10, 10), dtype=np.float32)
    with pytest.raises(adit.BadBufferError, match="ascontiguousarray"):
        store.put("key", rows[:, ::2])
    with pytest.raises(adit.BadBufferError, match="contiguous and writable"):
        store.get_into("key", rows.T)
    with pytest.raises(adit.BadBufferError, match="writable"):
        store.get_into("key", b"immutable")
    rows.flags.writeable = False
    with pytest.raises(adit.BadBufferError, match="writable"):
        store.get_into("key", rows)
    with pytest.raises(TypeError):
        store.put("key", "text")  # type: ignore[arg-type]
    store.put("key", rows)
    with pytest.raises(adit.BadBufferError, match="400 bytes and the buffer 399"):
        store.get_into("key", bytearray(399))


def test_arguments_that_make_no_sense(store: adit.Store, target: str) -> None:
    with pytest.raises(adit.InvalidError, match="give one buffer for each"):
        store.put_many(["a", "b"], [b"x"])
    for wrong in (-1.0, float("nan")):
        with pytest.raises(adit.InvalidError, match="seconds"):
            store.put("a", b"x", ttl=wrong)
    with pytest.raises(adit.InvalidError, match="either a prefix or a tenant"):
        store.delete_where()
    with pytest.raises(adit.InvalidError, match="either a prefix or a tenant"):
        store.delete_where(prefix="a", tenant="b")
    with pytest.raises(adit.InvalidError, match="evict-own"):
        store.set_quota("a", 1, "other")  # type: ignore[arg-type]
    with pytest.raises(adit.InvalidError):
        store.put("a", b"x", tenant="t" * 65)
    with pytest.raises(adit.InvalidError, match="use f32"):
        store.layout(layers=1, kv_heads=1, head_dim=1, tokens=1, dtype="f64")  # type: ignore[arg-type]
    with pytest.raises(adit.InvalidError):
        store.layout(layers=0, kv_heads=1, head_dim=1, tokens=1, dtype="f32")
    with pytest.raises(adit.InvalidError):
        store.put("a", bytes(200 << 20))
    for options in (
        {"durability": "some"},
        {"policy": "fifo"},
        {"threads": 1, "cores": [0]},
        {"pool_bytes": 1},
        {"timeout": 0.0},
    ):
        with pytest.raises(adit.InvalidError):
            adit.Store(target, **options)


def test_targets_that_cannot_be_opened(store: adit.Store, target: str, tmp_path: Path) -> None:
    with pytest.raises(adit.InvalidError, match="did you mean"):
        adit.Store("urin:x")
    for none in (b"uring:none", None, 5, [5], [b"uring:none"], {tmp_path}):
        with pytest.raises(TypeError, match="a target is a str such as 'uring:/data/kv.img'"):
            adit.Store(none)  # type: ignore[arg-type]
    with pytest.raises(adit.InvalidError, match="at least one device"):
        adit.Store([])
    with pytest.raises(adit.RefusedError, match="No such file"):
        adit.Store(f"uring:{tmp_path / 'none'}")
    with pytest.raises(adit.RefusedError, match="another process or handle has it open"):
        adit.Store(target)
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    with pytest.raises(adit.MediaError, match="other"):
        adit.Store(f"uring:{tmp_path / 'other'}")
    store.close()
    with pytest.raises(adit.MediaError, match="store"):
        adit.Store.format(target, size=128 << 20)
    adit.Store.format(target, size=128 << 20, force=True)


def test_numbers_that_are_out_of_range(client: adit.Client, target: str, tmp_path: Path) -> None:
    other, own = tmp_path / "other.img", tmp_path / "own.img"
    adit.Store.format(own, size=64 << 20)
    store = adit.Store(own)
    layout = {"layers": 1, "kv_heads": 1, "head_dim": 1, "tokens": 1, "dtype": "f32"}
    writer = store.reserve_blocks(store.layout(layers=1, kv_heads=1, head_dim=64, tokens=16, dtype="f16"), ["b"])
    reader, queue = store.reader("none"), store.queue()
    assert reader is None
    calls: dict[str, list[Callable[[Any], object]]] = {
        "threads": [lambda n: adit.Store(target, threads=n)],
        "cores": [lambda n: adit.Store(target, cores=[n])],
        "pool_bytes": [
            lambda n: adit.Store(target, pool_bytes=n),
            lambda n: adit.connect(tmp_path / "kv.sock", pool_bytes=n),
        ],
        "tier_bytes": [lambda n: adit.Store(target, tier_bytes=n)],
        "capacity_bytes": [lambda n: adit.Store(target, capacity_bytes=n)],
        "capacity_objects": [lambda n: adit.Store(target, capacity_objects=n)],
        "write_bytes_per_day": [lambda n: adit.Store(target, write_bytes_per_day=n)],
        "size": [lambda n: adit.Store.format(other, size=n)],
        "shards": [lambda n: adit.Store.format(other, size=1 << 26, shards=n)],
        "objects_max": [lambda n: adit.Store.format(other, size=1 << 26, objects_max=n)],
        "key_bytes": [lambda n: adit.Store.format(other, size=1 << 26, key_bytes=n)],
        "if_version": [
            lambda n: store.put("a", b"", if_version=n),
            lambda n: store.get("a", if_version=n),
            lambda n: store.delete("a", if_version=n),
            lambda n: client.put_from("a", [], if_version=n),
            lambda n: queue.submit_put(["a"], [b""], if_version=n),
        ],
        "nbytes": [
            lambda n: store.put_from("a", [], n),
            lambda n: client.put_from("a", [], n),
            lambda n: client.allocate(n),
            lambda n: queue.drain(n),
        ],
        "start": [lambda n: store.get("a", n)],
        "stop": [lambda n: store.get("a", 0, n)],
        "cursor": [
            lambda n: store.scan(n),
            lambda n: client.scan(n),
            lambda n: store.removals(n),
            lambda n: client.removals(n),
            lambda n: queue.submit_removals(n),
        ],
        "limit": [lambda n: store.scan(0, n)],
        "quota": [lambda n: store.set_quota("t", n)],
        "layer": [lambda n: writer.put_layer(n, []), lambda n: store.get_layer(n, [], [])],
        "layers": [lambda n: store.layout(**{**layout, "layers": n})],
        "kv_heads": [lambda n: client.layout(**{**layout, "kv_heads": n})],
        "head_dim": [lambda n: store.layout(**{**layout, "head_dim": n})],
        "tokens": [lambda n: store.layout(**{**layout, "tokens": n})],
        "tensors_per_layer": [lambda n: store.layout(**{**layout, "tensors_per_layer": n})],
        "slots": [lambda n: store.layout(**{**layout, "slots": n})],
        "depth": [lambda n: adit.connect(tmp_path / "kv.sock", depth=n)],
    }
    for name, those in calls.items():
        for call in those:
            for number in (-1, -(1 << 70), 1 << 70):
                with pytest.raises(adit.InvalidError, match=f"{name}.*{number}.*whole number from 0 to"):
                    call(number)
            for other_type in ("1", 1.5, float("nan"), float("inf")):
                with pytest.raises(TypeError):
                    call(other_type)
    times: list[Callable[[float], object]] = [
        lambda s: store.put("a", b"", ttl=s),
        lambda s: store.put_many(["a"], [b""], ttl=s),
        lambda s: store.put_from("a", [], ttl=s),
        lambda s: store.touch("a", s),
        lambda s: store.touch_many(["a"], s),
        lambda s: store.lease(["a"], s),
        lambda s: client.lease(["a"], seconds=s),
        lambda s: queue.submit_touch(["a"], s),
        lambda s: queue.submit_put(["a"], [b""], ttl=s),
        lambda s: adit.Store(target, timeout=s),
        lambda s: adit.Store(target, command_timeout=s),
        lambda s: adit.connect(tmp_path / "kv.sock", timeout=s),
    ]
    for call in times:
        for seconds in (-1, -0.5, 1e300, float("nan"), float("inf"), float("-inf")):
            with pytest.raises(adit.InvalidError, match="give seconds, from 0 to 1e19"):
                call(seconds)
    assert not other.exists()


def test_a_format_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "new.img"
    refused: list[dict[str, Any]] = [
        {"size": 4096},
        {"size": 64 << 20, "shards": 0},
        {"size": 64 << 20, "shards": 60_000},
        {"size": 64 << 20, "key_bytes": 513},
        {"size": 64 << 20, "objects_max": 1 << 40},
        {"size": 64 << 20, "label": "l" * 33},
        {"size": 1 << 60},
    ]
    for options in refused:
        with pytest.raises(adit.Error):
            adit.Store.format(path, **options)
        assert not path.exists(), options
        path.write_bytes(b"a note")
        with pytest.raises(adit.Error):
            adit.Store.format(path, force=True, **options)
        assert path.read_bytes() == b"a note", options
        path.unlink()


def test_a_path_is_that_of_a_file(tmp_path: Path) -> None:
    path, other = tmp_path / "kv.img", tmp_path / "other.img"
    adit.Store.format([path, other], size=64 << 20)
    with adit.Store([path, f"uring:{other}"]) as store:
        store.put("a", b"1")
    with adit.Store((path, other)) as store:
        assert store.get("a") == b"1"
    for path in (Path(f"uring:{path}"), Path("vfio:0000:01:00.0"), Path("a,direct=off"), Path("null:")):
        with pytest.raises(adit.InvalidError, match="give that as a str|without commas"):
            adit.Store(path)
        with pytest.raises(adit.InvalidError, match="give that as a str|without commas"):
            adit.Store.format([path], size=64 << 20)


def test_what_objects_say_they_are(target: str, tmp_path: Path, served: Served) -> None:
    path = tmp_path / "own.img"
    adit.Store.format(path, size=64 << 20)
    store = adit.Store(path)
    store.put("a", bytes(10))
    version = store.info("a")
    assert version is not None
    queue, region, lease = store.queue(), store.register(pool(2, 4096)), store.lease(["a"])
    layout = store.layout(layers=4, kv_heads=1, head_dim=64, tokens=32, dtype="f16")
    writer, reader = store.reserve_blocks(layout, ["x", "y"]), store.reader("a")
    assert reader is not None
    pieces = f"Pieces(10 bytes, version {version['version']}"
    assert repr(store) == f"Store(uring:{path}, open)"
    assert repr(queue) == "Queue(of a store, 0 jobs)"
    assert repr(region) == "Region(8192 bytes, open)" and repr(lease) == "Lease(1 objects, held)"
    assert repr(layout) == "Layout(4 layers of 8192 bytes)"
    assert repr(writer) == "BlocksWriter(2 blocks, open)" and repr(reader) == f"Reader({pieces}, open))"
    with store.futures() as futures:
        assert repr(futures) == f"Futures({store!r}, 0 jobs, open)"
    assert repr(futures) == f"Futures({store!r}, 0 jobs, closed)"

    async def serve() -> None:
        async with store.aio() as aio:
            assert repr(aio) == f"Aio({store!r}, 0 jobs, open)"

    asyncio.run(serve())
    for thing in (writer, reader, region, lease):
        thing.release() if isinstance(thing, adit.Lease) else thing.close()
    assert repr(region) == "Region(8192 bytes, closed)" and repr(lease) == "Lease(1 objects, released)"
    assert repr(writer) == "BlocksWriter(2 blocks, closed)" and repr(reader) == f"Reader({pieces}, closed))"
    store.close()
    assert repr(store) == f"Store(uring:{path}, closed)"
    client = adit.connect(served.socket)
    assert repr(client) == f"Client({served.socket}, open)"
    assert repr(client.queue()) == "Queue(of a connection, 0 jobs)"
    client.close()
    assert repr(client) == f"Client({served.socket}, closed)"


def test_a_full_store(target: str) -> None:
    with adit.Store(target, capacity_bytes=4 << 20) as store:
        leases = []
        with pytest.raises(adit.FullError, match="leased"):
            for number in range(40):
                store.put(str(number), bytes(512 << 10))
                leases.append(store.lease([str(number)]))
        assert 4 <= len(leases) <= 8
        for lease in leases:
            lease.release()
        store.put("again", bytes(512 << 10))


def test_a_reservation_beyond_the_write_budget(target: str) -> None:
    with adit.Store(target, write_bytes_per_day=1) as store:
        layout = store.layout(layers=2, kv_heads=2, head_dim=64, tokens=16, dtype="f16")
        assert store.put("a", bytes(1 << 20)) is False
        with pytest.raises(adit.DeclinedError, match="write budget"):
            store.reserve_blocks(layout, ["a"])


def test_a_request_that_cannot_begin_in_time(target: str) -> None:
    store = adit.Store(target, timeout=1e-9)
    with pytest.raises(adit.DeadlineError, match="deadline passed"):
        store.put_many([str(number) for number in range(64)], [b"x"] * 64)
    with pytest.raises(adit.DeadlineError, match="before the store closes"):
        store.close()
    with pytest.raises(adit.ClosedError):
        store.exists("0")


def soft(tmp_path: Path, faults: str) -> str:
    """Return a formatted store on the software controller, which then misbehaves."""
    target = f"soft:file={tmp_path / 'disk.img'},size=64M"
    adit.Store.format(target)
    return f"{target},faults={faults}"


def test_a_device_that_fails(tmp_path: Path) -> None:
    store = adit.Store(soft(tmp_path, "remove@write:n=40"), command_timeout=0.2)
    with pytest.raises(adit.DeviceError, match="device 0 failed"):
        for number in range(100):
            store.put(str(number), bytes(64 << 10))
    assert store.get("0") is None, "its objects are misses"
    with pytest.raises(adit.DeviceError):
        store.close()


def test_a_device_without_space(tmp_path: Path) -> None:
    with adit.Store(soft(tmp_path, "status(0:81)@write:lba=40000-120000")) as store:
        with pytest.raises(adit.NoSpaceError, match="no space is left"):
            for number in range(100):
                store.put(str(number), bytes(256 << 10))


def test_a_closed_store(store: adit.Store) -> None:
    rows = bytearray(10)
    queue, region = store.queue(), None
    store.close()
    store.close()
    for call in (
        lambda: store.put("a", b"x"),
        lambda: store.get("a"),
        lambda: store.get_into("a", rows),
        lambda: store.exists("a"),
        lambda: store.lease(["a"]),
        lambda: store.stats(),
        lambda: store.commit(),
        lambda: store.queue(),
        lambda: store.register(rows),
        lambda: queue.submit_get(["a"]),
    ):
        with pytest.raises(adit.ClosedError):
            call()
    assert region is None
