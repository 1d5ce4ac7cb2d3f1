"""Objects of any length as files: read in pieces, and put from files and iterators."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._adit import Pieces


class _Raw(io.RawIOBase):
    """The bytes of an object, read when they are asked for and some MiB ahead."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        read = self.pieces.readinto(self._position, buffer)
        self._position += read
        return read

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.pieces.nbytes}
        position = start[whence] + offset
        if position < 0:
            raise ValueError(f"the position {position} is before the object")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            self.pieces.close()
        super().close()


class Reader(io.BufferedReader):
    """A file to read an object from, returned by ``Store.reader`` and ``Client.reader``.

    It reads in pieces, so the object may be longer than the pool. All are of one version: once the object is replaced or
    removed, reading raises ``ConflictError``.
    """

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(_Raw(pieces))
        self._pieces = pieces

    @property
    def nbytes(self) -> int:
        """Length of the object in bytes."""
        return self._pieces.nbytes

    @property
    def version(self) -> int:
        """Version of the object."""
        return self._pieces.version


class _Chunks:
    """Buffers, one behind the other, with a method ``read``."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks: Iterator[Buffer] = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._rest = memoryview(chunk).cast("B")
        some, self._rest = self._rest[:size], self._rest[size:]
        return some


def readable(source: Any, nbytes: int | None) -> tuple[Any, int | None]:
    """Return what has a method ``read``, and how many bytes it has if that is known."""
    if not hasattr(source, "read"):
        return _Chunks(source), nbytes
    if nbytes is None and hasattr(source, "seekable") and source.seekable():
        begin = source.tell()
        nbytes = max(source.seek(0, io.SEEK_END) - begin, 0)
        source.seek(begin)
    return source, nbytes
