"""Exceptions of the store. Each text names the remedy."""

from __future__ import annotations


class Error(Exception):
    """Any failure of a store.

    Attributes
    ----------
    index : int or None
        In a call with several keys, the position of the failed one.
    """

    index: int | None = None


class InvalidError(Error, ValueError):
    """An argument or a setting is invalid."""


class InvalidKeyError(InvalidError):
    """A key is empty or too long."""


class BadBufferError(Error, BufferError):
    """A buffer cannot be used: it is not contiguous, read-only, too short or not in registered memory."""


class RefusedError(Error):
    """The system refuses: rights are missing, a limit is too low, or another process has the device."""


class MediaError(Error):
    """A device holds no store, a store of another version, or other contents."""


class DeviceError(Error):
    """A device failed."""


class DeadlineError(Error, TimeoutError):
    """A request did not begin or end in time."""


class FullError(Error):
    """The store is full, and nothing may be evicted."""


class NoSpaceError(FullError):
    """The file system or the device has no space left for the data."""


class QuotaError(FullError):
    """A tenant has reached its quota."""


class DeclinedError(Error):
    """Admission or the write budget declined a reservation."""


class ConflictError(Error):
    """The condition of a put, a removal or a read does not hold. Nothing was changed.

    Attributes
    ----------
    version : int or None
        The version of the present object; ``None`` if there is none.
    """

    version: int | None = None


class ClosedError(Error):
    """The store is closed."""


class LostError(Error, ConnectionError):
    """The process that serves the store is gone. Connections return once it runs again."""


class ForkedError(Error):
    """This process was forked from the one that opened the store or connected to it."""
