"""What LMCache pins by its lookups: leases of the store, which end when all that a lookup found is given back."""

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

# How long a pin lasts that LMCache does not take away.
_SECONDS = 300.0


@dataclass(eq=False)
class _Lookup:
    """The pins of one lookup, each of which LMCache takes away by itself."""

    # None if the store had no room for it: nothing is kept then, and the pins are counted.
    lease: Lease | None
    names: list[bytes]
    end: float
    left: int


class Pins:
    """The pins of a store's objects. One is kept until it is given back as often as it was taken, or for minutes."""

    def __init__(self, store: Store | Client, trouble: Trouble) -> None:
        self._store, self._trouble = store, trouble
        self._lock = threading.Lock()
        # By the store's key, in the order in which they are taken away.
        self._pins: defaultdict[bytes, deque[_Lookup]] = defaultdict(deque)
        # All of them, the oldest first.
        self._lookups: dict[_Lookup, None] = {}

    def __len__(self) -> int:
        """Return how many objects are pinned."""
        return len(self._pins)

    def take(self, names: list[bytes]) -> int:
        """Pin the objects before the first that is not there, and return how many these are.

        If the store has no room for a lease they are counted, and may be evicted.
        """
        try:
            return self.keep(names)
        except (FullError, RefusedError) as why:
            self._trouble.log("pinning chunks", why)
            found = self._store.lookup_prefix(names)
            self._count(None, names[:found])
            return found

    def keep(self, names: list[bytes]) -> int:
        """Pin as ``take`` does, or fail if the store has no room for a lease."""
        lease = self._store.lease(names, _SECONDS)
        self._count(lease, names[: lease.count])
        return lease.count

    def give_back(self, name: bytes) -> bool:
        """Take one pin away; say whether there was one."""
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
        """Take all pins away."""
        with self._lock:
            lookups, self._lookups = self._lookups, {}
            self._pins.clear()
        for lookup in lookups:
            if lookup.lease is not None:
                lookup.lease.release()

    def _count(self, lease: Lease | None, names: list[bytes]) -> None:
        """Count a pin of each object, which a lease keeps."""
        now = time.monotonic()
        new = _Lookup(lease, names, now + _SECONDS, len(names))
        with self._lock:
            # Those that LMCache forgot have ended.
            while self._lookups and (oldest := next(iter(self._lookups))).end < now:
                self._drop(oldest)
            if names:
                self._lookups[new] = None
            for name in names:
                # Those without a lease go first: what the others keep, they keep for longer.
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
