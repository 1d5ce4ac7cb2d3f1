"""Returns memory that a client shares with its server as a buffer."""

from __future__ import annotations

from ._engine import overlay


def view(memory: object, address: int, nbytes: int) -> memoryview:
    """Return the bytes at an address as a buffer, which keeps ``memory`` alive."""
    array = overlay(address, nbytes)
    # Each buffer and array derived from `array` keeps it alive, and with it this attribute.
    array._memory = memory  # type: ignore[attr-defined]
    return memoryview(array).cast("B")
