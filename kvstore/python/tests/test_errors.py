"""Each exception, and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
    for none in (tmp_path / "none", b"uring:none", None, 5, [tmp_path]):
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
