"""Reads objects of any length as files, in pieces, and puts them from files and iterators."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ._errors import InvalidError

if TYPE_CHECKING:
    from ._adit import Pieces, _Data


class _Raw(io.RawIOBase):
    """The bytes of an object, read on demand and some MiB ahead."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: _Data, /) -> int:
        read = self.pieces.readinto(self._position, buffer)
        self._position += read
        return read

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.pieces.nbytes}
        position = start[whence] + offset
        if position < 0:
            raise InvalidError(f"the position {position} is before the object: give 0 or more")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            self.pieces.close()
        super().close()


class Reader(io.BufferedReader):
    """A file that reads an object, returned by ``Store.reader`` and ``Client.reader``.

    It reads in pieces, so the object may be longer than the pool. All pieces are of one version: once the object is
    replaced or removed, reading raises ``ConflictError``.
    """

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(_Raw(pieces))
        self._pieces = pieces

    def __repr__(self) -> str:
        return f"Reader({self._pieces!r})"

    def readinto(self, buffer: _Data, /) -> int:
        """Fill a buffer or a tensor, unless the object ends before; return the number of bytes read."""
        position = self.tell()
        read = self._pieces.readinto(position, buffer)
        self.seek(position + read)
        return read

    readinto1 = readinto

    @property
    def nbytes(self) -> int:
        """Length of the object in bytes."""
        return self._pieces.nbytes

    @property
    def version(self) -> int:
        """Version of the object."""
        return self._pieces.version


def measured(source: Any) -> int | None:
    """Return the number of bytes from a file's position to its end, or ``None`` if it is unknown before the end."""
    if not (hasattr(source, "read") and hasattr(source, "seekable") and source.seekable()):
        return None
    begin: int = source.tell()
    nbytes: int = max(source.seek(0, io.SEEK_END) - begin, 0)
    source.seek(begin)
    return nbytes
