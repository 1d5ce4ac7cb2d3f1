"""What others were told that a store has, and what of that has gone."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ._adit import Queue
    from ._engine import Trouble

# Seconds between two questions to the store about removals, unless the last one told of some.
INTERVAL = 0.05
# Seconds without questions after one that failed.
PAUSE = 1.0
# Most keys that one question names.
KEYS_MAX = 1024


class Announced:
    """Keys that are announced when the store has them, and withdrawn when it no longer has them.

    The store says which objects went, and the keys among them are asked for before they are withdrawn: one that has an
    object again stays. If the store says that there were more, all keys are asked for, some in each step.
    Nothing waits; at most one question of each kind is on its way.

    Parameters
    ----------
    queue : Queue
        Where questions are asked. Its owner passes what ``drain`` returns for the tokens of ``heard`` and ``asked``.
    space : bytes
        What the objects' names begin with; the rest is the key.
    storing : collection of bytes
        Keys whose objects are being stored, which are announced at the end of that.
    trouble : Trouble
    """

    def __init__(
        self, queue: Queue, space: bytes, storing: Collection[bytes], trouble: Trouble
    ) -> None:
        self._queue, self._space, self._storing, self._trouble = queue, space, storing, trouble
        self._count = itertools.count(1)
        # Of each key the number of the last time that it was stored.
        self._stored: dict[bytes, int] = {}
        # Keys that were last stored under a lower number are news.
        self._news_from = 0
        # Keys that may have gone.
        self._doubted: dict[bytes, None] = {}
        self._cursor: int | None = None
        self._next = self._paused_until = 0.0
        self._is_hearing = self._is_asking = False

    def __contains__(self, key: bytes) -> bool:
        return key in self._stored

    def stored(self, keys: Collection[bytes]) -> list[bytes]:
        """Note that the store has keys; return those that are to be told of."""
        number = next(self._count)
        news = [key for key in keys if self._stored.get(key, -1) < self._news_from]
        self._stored.update(dict.fromkeys(keys, number))
        return news

    def forget_what_was_told(self) -> None:
        """Have keys told of again when they are stored again: those who were told may have dropped all."""
        self._news_from = next(self._count)

    def step(self) -> None:
        """Ask the store what went, and whether keys in doubt are there."""
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
            # One that is being stored is asked for afterwards.
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
        """Take the answer of a question about removals."""
        self._is_hearing = False
        self._next = time.monotonic() + INTERVAL
        if results[0] is None:
            self._pause()
            return
        names, self._cursor, missed_some = results[0]
        if missed_some or cursor is None:
            # What was stored before the store kept an account for this reader, or after it stopped.
            self._doubted.update(dict.fromkeys([*self._stored, *self._storing]))
        keys = (name[len(self._space) :] for name in names)
        self._doubted.update((key, None) for key in keys if key in self._stored or key in self._storing)
        if self._cursor != cursor:
            self._next = 0.0

    def asked(self, asked: dict[bytes, int], results: list[bool | None]) -> list[bytes]:
        """Take the answer of a question about keys; return those that are gone, which are to be told of."""
        self._is_asking = False
        gone = []
        for (key, number), is_there in zip(asked.items(), results):
            if is_there or self._stored.get(key) != number:
                # It is there, or has been stored since.
                continue
            if is_there is None:
                self._pause()
            if is_there is None or key in self._storing:
                self._doubted[key] = None
            else:
                del self._stored[key]
                gone.append(key)
        return gone
