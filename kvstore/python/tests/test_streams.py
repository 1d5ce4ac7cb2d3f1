"""Objects longer than the pool, as files and from what can be read."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import adit
from conftest import Served

POOL_BYTES = 8 << 20
# Longer than the pool.
LONG = (20 << 20) + 321
DATA = np.random.default_rng(1).integers(0, 256, LONG, dtype=np.uint8).tobytes()


@pytest.fixture
def store(target: str) -> Iterator[adit.Store]:
    """Return an open store with a small pool."""
    with adit.Store(target, pool_bytes=POOL_BYTES) as store:
        yield store


@pytest.fixture
def client(served: Served) -> Iterator[adit.Client]:
    """Return a connection with a small pool."""
    with adit.connect(served.socket, pool_bytes=POOL_BYTES) as client:
        yield client


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def test_an_object_longer_than_the_pool_is_a_file(either: adit.Store | adit.Client) -> None:
    assert either.put_from("long", io.BytesIO(DATA)) is True
    with pytest.raises((adit.InvalidError, adit.BadBufferError), match="reader"):
        either.get("long")
    with pytest.raises(adit.InvalidError, match="put_from"):
        either.put("other", DATA)
    reader = either.reader("long")
    assert reader is not None
    with reader:
        assert reader.nbytes == LONG
        assert reader.read(10) == DATA[:10]
        assert reader.seek(-100, io.SEEK_END) == LONG - 100
        assert reader.read() == DATA[-100:]
        reader.seek(0)
        assert reader.read() == DATA
        assert reader.read(1) == b""
        with pytest.raises(ValueError, match="before the object"):
            reader.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)
    assert either.reader("missing") is None


def test_an_object_is_put_from_files_and_iterators(
    either: adit.Store | adit.Client, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        file.seek(100)
        assert either.put_from("file", file)
        file.seek(100)
        assert either.put_from("some", file, 50)
    assert either.put_from("chunks", chunks(DATA[100:], 300_001))
    assert either.put_from("known", (c for c in chunks(DATA[:150], 7)), 150)
    assert either.put_from("empty", [])
    expected = {"file": DATA[100:], "some": DATA[100:150], "chunks": DATA[100:], "known": DATA[:150], "empty": b""}
    for key, data in expected.items():
        reader = either.reader(key)
        assert reader is not None and reader.read() == data, key


def test_what_is_not_read_to_its_end_is_not_put(either: adit.Store | adit.Client) -> None:
    with pytest.raises(adit.InvalidError, match="fewer bytes"):
        either.put_from("key", io.BytesIO(DATA[:100]), 101)

    def broken() -> Iterator[bytes]:
        yield DATA[:9_000_000]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        either.put_from("key", broken())
    with pytest.raises(KeyError, match="mine"):
        either.put_from("key", broken(), LONG)
    with pytest.raises(TypeError):
        either.put_from("key", 5)  # type: ignore[arg-type]
    assert either.reader("key") is None
    assert either.put_from("key", [b"first"])
    with pytest.raises(adit.ConflictError):
        either.put_from("key", io.BytesIO(DATA), if_absent=True)


def test_a_replaced_object_ends_its_reader(either: adit.Store | adit.Client) -> None:
    either.put_from("key", io.BytesIO(DATA))
    reader = either.reader("key")
    assert reader is not None
    assert reader.read(10) == DATA[:10]
    info = either.info("key")
    assert info is not None and reader.version == info["version"]
    either.put("key", b"another")
    with pytest.raises(adit.ConflictError, match="read it again from its beginning"):
        reader.read()


def test_a_reader_serves_what_reads_files(store: adit.Store, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("a", "b"):
            member = tarfile.TarInfo(name)
            member.size = 5_000_000
            tar.addfile(member, io.BytesIO(name.encode() * 5_000_000))
    archive.seek(0)
    store.put_from("tar", archive)
    reader = store.reader("tar")
    assert reader is not None
    with reader, tarfile.open(fileobj=reader) as tar:
        file = tar.extractfile("b")
        assert file is not None and file.read() == b"b" * 5_000_000
