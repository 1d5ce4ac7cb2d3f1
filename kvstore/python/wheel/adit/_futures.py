"""The calls of a store, or of a connection to one, as futures. One eventfd signals all of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import select
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._errors import ClosedError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import TypeAlias

    from ._adit import Client, Layout, Store, _Data

    _Key: TypeAlias = bytes | str

# Approximate bytes of values copied before others get their turn.
_TURN_NBYTES = 1 << 20

F = TypeVar("F", bound="asyncio.Future[Any] | concurrent.futures.Future[Any]")


class _Calls(Generic[F]):
    """The calls of both kinds of futures.

    Each makes its requests at once and returns a future of the result of ``Store``'s call with the same name. Buffers
    must not change until then. Futures of a connection end within its timeout, and with ``LostError`` if the server is
    lost; later ones work once it is back.
    """

    def __init__(self, store: Store | Client) -> None:
        self._store = repr(store)
        self._queue = store.queue()
        self._closed = False
        # Threads in calls that have passed the check for closing but not made their requests: closing waits for them.
        # They hold no lock meanwhile, so that several threads copy values at once.
        self._asking: list[int] = []
        self._lock = threading.Lock()
        self._asked = threading.Condition(self._lock)

    def _make(self) -> F:
        """Return a new future."""
        raise NotImplementedError

    def _ask(
        self, is_one: bool, submit: Callable[..., int], *arguments: object, **options: object
    ) -> F:
        with self._lock:
            if self._closed:
                raise ClosedError("the futures are closed")
            self._asking.append(threading.get_ident())
        try:
            future = self._make()
            try:
                submit(*arguments, token=(future, is_one), **options)
            except BaseException:
                future.cancel()
                raise
        finally:
            with self._lock:
                self._asking.remove(threading.get_ident())
                if self._closed:
                    self._asked.notify_all()
        return future

    def _shut(self) -> None:
        """Refuse new calls, and wait until calls in progress have made their requests."""
        with self._lock:
            if threading.get_ident() in self._asking:
                raise InvalidError(
                    "these futures are closed by what one of their calls reads its keys or buffers from, and would wait for "
                    "that call: close them after it"
                )
            self._closed = True
            self._asked.wait_for(lambda: not self._asking)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"{type(self).__name__}({self._store}, {len(self._queue)} jobs, {state})"

    def put(
        self,
        key: _Key,
        value: _Data,
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> F:
        """Store an object."""
        return self._ask(
            True,
            self._queue.submit_put,
            (key,),
            (value,),
            ttl=ttl,
            tenant=tenant,
            after=after,
            layout=layout,
            if_absent=if_absent,
            if_version=if_version,
        )

    def put_many(
        self,
        keys: Iterable[_Key],
        values: Iterable[_Data],
        *,
        ttl: float | None = None,
        tenant: str | None = None,
        after: _Key | None = None,
        layout: Layout | None = None,
    ) -> F:
        """Store several objects."""
        put = self._queue.submit_put
        return self._ask(
            False, put, keys, values, ttl=ttl, tenant=tenant, after=after, layout=layout
        )

    def get(self, key: _Key) -> F:
        """Read an object."""
        return self._ask(True, self._queue.submit_get, (key,))

    def get_many(self, keys: Iterable[_Key]) -> F:
        """Read several objects."""
        return self._ask(False, self._queue.submit_get, keys)

    def get_into(self, key: _Key, buffer: _Data) -> F:
        """Read an object into a buffer."""
        return self._ask(True, self._queue.submit_get_into, (key,), (buffer,))

    def get_many_into(self, keys: Iterable[_Key], buffers: Iterable[_Data]) -> F:
        """Read several objects into buffers."""
        return self._ask(False, self._queue.submit_get_into, keys, buffers)

    def exists(self, key: _Key) -> F:
        """Check whether an object exists."""
        return self._ask(True, self._queue.submit_exists, (key,))

    def exists_many(self, keys: Iterable[_Key]) -> F:
        """Check which objects exist."""
        return self._ask(False, self._queue.submit_exists, keys)

    def lookup_prefix(self, keys: Iterable[_Key]) -> F:
        """Count the objects before the first miss."""
        return self._ask(True, self._queue.submit_lookup_prefix, keys)

    def delete(self, key: _Key) -> F:
        """Remove an object."""
        return self._ask(True, self._queue.submit_delete, (key,))

    def delete_many(self, keys: Iterable[_Key]) -> F:
        """Remove several objects."""
        return self._ask(False, self._queue.submit_delete, keys)

    def touch(self, key: _Key, ttl: float) -> F:
        """Let an object expire after ``ttl`` seconds."""
        return self._ask(True, self._queue.submit_touch, (key,), ttl)

    def touch_many(self, keys: Iterable[_Key], ttl: float) -> F:
        """Let several objects expire after ``ttl`` seconds."""
        return self._ask(False, self._queue.submit_touch, keys, ttl)

    def commit(self) -> F:
        """Make everything acknowledged survive a power cut."""
        return self._ask(True, self._queue.submit_commit)

    def _drain(self) -> None:
        for (future, is_one), results, failure in self._queue.drain(_TURN_NBYTES):
            if future.done():
                continue  # The future was cancelled.
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(results[0] if is_one else results)


class Futures(_Calls["concurrent.futures.Future[Any]"]):
    """A store's calls with futures of ``concurrent.futures``, returned by ``Store.futures`` and ``Client.futures``.

    A separate thread completes them and runs their callbacks. Leave the ``with`` statement, or call ``close``, to end
    it.
    """

    def __init__(self, store: Store | Client) -> None:
        super().__init__(store)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="adit-futures", daemon=True)
        self._thread.start()

    def _make(self) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        # A request cannot be stopped once made, so its future cannot be cancelled.
        future.set_running_or_notify_cancel()
        return future

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._queue.event_fd(), select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        is_open = True
        while is_open or len(self._queue) > 0:
            if is_open and any(fd == self._stop for fd, _ in poll.poll()):
                poll.unregister(self._stop)
                is_open = False
            elif not is_open:
                poll.poll()
            self._drain()

    def close(self) -> None:
        """Wait for pending futures, and end the thread. Closing twice does nothing.

        Raises
        ------
        InvalidError
            If a callback of one of the futures calls it: callbacks run on the thread that would end.
        """
        if threading.current_thread() is self._thread:
            raise InvalidError(
                "a callback of these futures closes them, and would wait for the thread that it runs on: close them on "
                "another thread"
            )
        self._shut()
        # A signal may have ended an earlier call at any point.
        with self._lock:
            if self._stop >= 0:
                os.eventfd_write(self._stop, 1)
        self._thread.join()
        with self._lock:
            stop, self._stop = self._stop, -1
            if stop >= 0:
                os.close(stop)

    def __enter__(self) -> Futures:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Aio(_Calls["asyncio.Future[Any]"]):
    """A store's calls with futures of the running event loop, returned by ``Store.aio`` and ``Client.aio``.

    They complete on the loop, without another thread. Values are copied about 1 MiB at a time, so that the loop serves
    others in between. Leave the ``async with`` statement, or await ``close``, before the loop ends.
    """

    def __init__(self, store: Store | Client) -> None:
        super().__init__(store)
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._loop.add_reader(self._queue.event_fd(), self._turn)

    def _make(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def _turn(self) -> None:
        self._drain()
        self._drained.set()

    async def close(self) -> None:
        """Await pending futures, and leave the loop. Closing twice does nothing.

        Raises
        ------
        InvalidError
            If another loop runs.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidError("these futures belong to another event loop: close them there")
        self._shut()
        # Requests of cancelled futures continue. If this call is cancelled, the loop still completes the others.
        while len(self._queue) > 0:
            self._drained.clear()
            await self._drained.wait()
        self._loop.remove_reader(self._queue.event_fd())
        self._queue.close()

    async def __aenter__(self) -> Aio:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
