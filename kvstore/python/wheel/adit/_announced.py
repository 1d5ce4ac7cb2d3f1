"""Announcements of a store's keys to others, and of their removals."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ._adit import Queue
    from ._engine import Trouble

# Seconds between two queries of the store's removals, unless the last one returned some.
INTERVAL = 0.05
# Seconds without queries after a failed one.
PAUSE = 1.0
# Maximum keys of one query.
KEYS_MAX = 1024


class Announced:
    """Keys that are announced when the store has them, and withdrawn when it no longer has them.

    The store reports removed objects. Their keys are checked before they are withdrawn: a key that has an object again
    stays. If the store reports that some removals were missed, all keys are checked, some in each step. No call waits;
    at most one query of each kind is in flight.

    Parameters
    ----------
    queue : Queue
        The queue for queries. Its owner passes the answers that ``drain`` returns to ``heard`` and ``asked``, by token.
    space : bytes
        The prefix of the objects' names; the rest is the key.
    storing : collection of bytes
        Keys whose objects are being stored; they are announced once stored.
    trouble : Trouble
    """

    def __init__(
        self, queue: Queue, space: bytes, storing: Collection[bytes], trouble: Trouble
    ) -> None:
        self._queue, self._space, self._storing, self._trouble = queue, space, storing, trouble
        self._count = itertools.count(1)
        # For each key, the number of its last store.
        self._stored: dict[bytes, int] = {}
        # Keys last stored under a lower number must be announced again.
        self._news_from = 0
        # Keys that may be gone.
        self._doubted: dict[bytes, None] = {}
        self._cursor: int | None = None
        self._next = self._paused_until = 0.0
        self._is_hearing = self._is_asking = False

    def __contains__(self, key: bytes) -> bool:
        return key in self._stored

    def stored(self, keys: Collection[bytes]) -> list[bytes]:
        """Record that the store has keys; return those to announce."""
        number = next(self._count)
        news = [key for key in keys if self._stored.get(key, -1) < self._news_from]
        self._stored.update(dict.fromkeys(keys, number))
        return news

    def forget_what_was_told(self) -> None:
        """Announce keys again when they are stored again, because consumers may have dropped all of them."""
        self._news_from = next(self._count)

    def step(self) -> None:
        """Query the store's removals, and check keys in doubt."""
        now = time.monotonic()
        if now < self._paused_until:
            return
        if not self._is_hearing and now >= self._next:
            self._is_hearing = self._ask(
                self._queue.submit_removals,
                self._cursor,
                prefix=self._space,
                token=("removals", self._cursor),
            )
        if self._doubted and not self._is_asking:
            self._ask_doubted()

    def _ask_doubted(self) -> None:
        asked: dict[bytes, int] = {}
        for key in list(itertools.islice(self._doubted, KEYS_MAX)):
            # A key being stored is checked afterwards.
            del self._doubted[key]
            if key in self._storing:
                self._doubted[key] = None
            elif key in self._stored:
                asked[key] = self._stored[key]
        if not asked:
            return
        names = [self._space + key for key in asked]
        if self._ask(self._queue.submit_exists, names, token=("doubt", asked)):
            self._is_asking = True
        else:
            self._doubted.update(dict.fromkeys(asked))

    def _ask(self, submit: Callable[..., int], *arguments: object, **options: object) -> bool:
        try:
            submit(*arguments, **options)
        except Error as why:
            self._trouble.log("asking what went", why)
            self._pause()
            return False
        return True

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + PAUSE

    def heard(self, cursor: int | None, results: list[Any]) -> None:
        """Process the answer of a query of removals."""
        self._is_hearing = False
        self._next = time.monotonic() + INTERVAL
        if results[0] is None:
            self._pause()
            return
        names, self._cursor, missed_some = results[0]
        if missed_some or cursor is None:
            # The store's log does not cover keys stored before it began for this reader, or after it was dropped.
            self._doubted.update(dict.fromkeys([*self._stored, *self._storing]))
        keys = (name[len(self._space) :] for name in names)
        self._doubted.update((key, None) for key in keys if key in self._stored or key in self._storing)
        if self._cursor != cursor:
            self._next = 0.0

    def asked(self, asked: dict[bytes, int], results: list[bool | None]) -> list[bytes]:
        """Process the answer of a check of keys; return those that are gone, to be withdrawn."""
        self._is_asking = False
        gone = []
        for (key, number), is_there in zip(asked.items(), results):
            if is_there or self._stored.get(key) != number:
                # The key has an object, or has been stored since.
                continue
            if is_there is None:
                self._pause()
            if is_there is None or key in self._storing:
                self._doubted[key] = None
            else:
                del self._stored[key]
                gone.append(key)
        return gone
