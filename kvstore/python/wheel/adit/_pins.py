"""LMCache's pins: leases of the store, one per lookup, released with the last pin of the lookup."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import FullError, RefusedError

if TYPE_CHECKING:
    from ._adit import Client, Lease, Store
    from ._engine import Trouble

# Seconds after which a pin ends that LMCache does not remove.
_SECONDS = 300.0


@dataclass(eq=False)
class _Lookup:
    """The pins of one lookup. LMCache removes each separately."""

    # None if the store had no room for a lease: objects are then not kept, and the pins are only counted.
    lease: Lease | None
    names: list[bytes]
    end: float
    left: int


class Pins:
    """The pins of a store's objects. An object is kept until all its pins are given back, or for 5 minutes."""

    def __init__(self, store: Store | Client, trouble: Trouble) -> None:
        self._store, self._trouble = store, trouble
        self._lock = threading.Lock()
        # Pins by the store's key, in the order in which they are removed.
        self._pins: defaultdict[bytes, deque[_Lookup]] = defaultdict(deque)
        # All lookups, oldest first.
        self._lookups: dict[_Lookup, None] = {}

    def __len__(self) -> int:
        """Return the number of pinned objects."""
        return len(self._pins)

    def take(self, names: list[bytes]) -> int:
        """Pin the objects before the first missing one, and return their number.

        If the store has no room for a lease, pins are only counted, and the objects may be evicted.
        """
        try:
            return self.keep(names)
        except (FullError, RefusedError) as why:
            self._trouble.log("pinning chunks", why)
            found = self._store.lookup_prefix(names)
            self._count(None, names[:found])
            return found

    def keep(self, names: list[bytes]) -> int:
        """Pin like ``take``, but fail if the store has no room for a lease."""
        lease = self._store.lease(names, _SECONDS)
        self._count(lease, names[: lease.count])
        return lease.count

    def give_back(self, name: bytes) -> bool:
        """Remove one pin; return whether there was one."""
        lease = None
        with self._lock:
            if name not in self._pins:
                return False
            lookup = self._pins[name].popleft()
            if not self._pins[name]:
                del self._pins[name]
            lookup.left -= 1
            if lookup.left == 0:
                del self._lookups[lookup]
                lease = lookup.lease
        if lease is not None:
            lease.release()
        return True

    def close(self) -> None:
        """Remove all pins."""
        with self._lock:
            lookups, self._lookups = self._lookups, {}
            self._pins.clear()
        for lookup in lookups:
            if lookup.lease is not None:
                lookup.lease.release()

    def _count(self, lease: Lease | None, names: list[bytes]) -> None:
        """Add a pin to each object, under a lease if there is one."""
        now = time.monotonic()
        new = _Lookup(lease, names, now + _SECONDS, len(names))
        with self._lock:
            # Drop expired pins, which LMCache forgot.
            while self._lookups and (oldest := next(iter(self._lookups))).end < now:
                self._drop(oldest)
            if names:
                self._lookups[new] = None
            for name in names:
                # Pins without a lease are removed first, so that leases last longer.
                if lease is None:
                    self._pins[name].appendleft(new)
                else:
                    self._pins[name].append(new)

    def _drop(self, ended: _Lookup) -> None:
        del self._lookups[ended]
        for name in ended.names:
            if ended in self._pins.get(name, ()):
                self._pins[name].remove(ended)
                if not self._pins[name]:
                    del self._pins[name]
