"""The connections of async handlers: plain ones that wait in the event loop.

All that waits runs in a greenlet, as SQLAlchemy's async sessions let it: theirs, or the run's own.
While one waits, the loop goes on with other runs.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.pq import TransactionStatus
from sqlalchemy import AsyncAdaptedQueuePool, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.runtime.handler_db.ends import Steps
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection, HandlerCursor
from tasks_app.runtime.handler_db.handler_driver import NO_CONNECTION

T = TypeVar("T")
CANCELLED_S = 5.0  # how long the server may take to accept the cancellation of a statement
_READS, _WRITES = 1, 2  # bits of what psycopg waits for, and of what it is told to be ready
_ROUNDS = 2  # how often other runs go on before the loop is asked to watch a socket
_INTERVAL_S = 0.1  # without one psycopg asks again at once, and keeps the loop busy
_DIALECT = "tasks_app_loop"
_OUTSIDE = (
    "The connection of an async handler waits in its event loop. "
    "Use it in a function, and call that by await connection.run_sync(function)."
)


class LoopLock:
    """psycopg's lock of a connection. A thread that is blocked would stop all runs."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        if not self._held:
            self._held = True
            return True
        return blocking and bool(await_(self._wait(timeout)))

    async def _wait(self, timeout: float) -> bool:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(None if timeout < 0 else timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came in the same moment
                self.release()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # it stays held
                return
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _InLoop(psycopg.Connection[Any]):
    _watched: tuple[asyncio.AbstractEventLoop, int, asyncio.Future[int]] | None = None
    """The loop that watches its socket, and the future that it sets when that is ready."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lock = LoopLock()  # type: ignore[assignment]

    def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        try:
            if arguments or options:  # notifications, with a time limit
                return await_(self._wait_as_psycopg(gen, *arguments, **options))
            return await_(self._carry_out(gen))
        except MissingGreenlet:
            raise MissingGreenlet(_OUTSIDE) from None

    async def _wait_as_psycopg(
        self, gen: Steps[T], interval: float = _INTERVAL_S, **options: Any
    ) -> T:
        """Let psycopg wait, on a file descriptor of its own: it does not learn of a close."""
        number = os.dup(self.pgconn.socket)
        try:
            return await waiting.wait_async(gen, number, interval, **options)
        finally:
            os.close(number)

    async def _carry_out(self, gen: Steps[T]) -> T:
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await self._readiness(wanted))
        except StopIteration as end:
            done: T = end.value
            return done
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._end_statement()
            raise

    async def _readiness(self, wanted: int) -> int:
        """Wait until the socket can be read or written as ``wanted``; return for what it is ready.

        Other runs go on first. Often the answer is there then, and the loop need not watch for it,
        which takes half as long as a small statement.
        """
        poll, socket = select.poll(), self.pgconn.socket
        reads, writes = bool(wanted & _READS), bool(wanted & _WRITES)
        poll.register(socket, select.POLLIN * reads | select.POLLOUT * writes)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
            if events := poll.poll(0):
                (_, event_mask), *_ = events
                readable = reads and bool(event_mask & ~select.POLLOUT)  # a broken one, too
                return _READS * readable | _WRITES * bool(event_mask & select.POLLOUT)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[int] = loop.create_future()
        self._watched = loop, socket, answered
        if reads:
            loop.add_reader(socket, _set_ready, answered, _READS)
        if writes:
            loop.add_writer(socket, _set_ready, answered, _WRITES)
        try:
            return await answered
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watched is not None:
            (loop, socket, answered), self._watched = self._watched, None
            loop.remove_reader(socket)
            loop.remove_writer(socket)
            if not answered.done():
                answered.set_exception(errors.OperationalError("The connection was closed."))

    def close(self) -> None:
        """Stop the wait first: another socket may get the number soon."""
        self._unwatch()
        super().close()

    async def _end_statement(self) -> None:
        """Cancel what is under way, and close: SQLAlchemy would not use it again."""
        try:
            with suppress(psycopg.Error):
                await self._cancel(CANCELLED_S)
        finally:
            self.close()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        await_(self._cancel(timeout))

    async def _cancel(self: Any, timeout: float) -> None:
        await psycopg.AsyncConnection.cancel_safe(self, timeout=timeout)  # as theirs, in the loop


class LoopCursor(HandlerCursor):
    """For async handlers."""

    async def _async_soft_close(self) -> None:
        """Do nothing: SQLAlchemy calls it before it hands rows on, for cursors that it adapts."""


class LoopConnection(HandlerConnection, _InLoop):
    """For async handlers."""

    @staticmethod
    def steps(gen: Steps[T]) -> Steps[T]:
        return gen

    def end_statement(self) -> None:
        """Do nothing: the wait in the loop has done so."""

    @staticmethod
    def _me() -> Any:
        try:
            return asyncio.current_task()
        except RuntimeError:  # a thread without a loop: its wait raises
            return None


def _set_ready(answered: asyncio.Future[int], ready: int) -> None:
    if not answered.done():
        answered.set_result(ready)


class LoopDialect(PGDialect_psycopg):
    """SQLAlchemy's, with a driver that need not be adapted."""

    is_async = True
    poolclass = AsyncAdaptedQueuePool
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, _url: URL) -> type[LoopDialect]:
        return cls


registry.register(f"postgresql.{_DIALECT}", __name__, LoopDialect.__name__)


def loop_engine(url: str, **options: Any) -> AsyncEngine:
    """Return an engine whose connections belong to one event loop."""
    ours = make_url(url).set(drivername=f"postgresql+{_DIALECT}")
    # looked up late: programs of handlers may have instrumented it
    engine = sqlalchemy_asyncio.create_async_engine(ours, **options)
    event.listen(engine.sync_engine, "do_connect", connect)
    return engine


def connect(_dialect: Any, _entry: Any, arguments: Any, options: Any) -> LoopConnection:
    return await_(_connected(arguments, options))


async def _connected(arguments: Any, options: Any) -> LoopConnection:
    """Connect in the loop, as psycopg's own async connections do, and take the session over."""
    found = await psycopg.AsyncConnection.connect(*arguments, **options)
    made = LoopConnection(found.pgconn)
    made._adapters, made.prepare_threshold = found._adapters, found.prepare_threshold  # noqa: SLF001
    made.cursor_factory = LoopCursor
    found.pgconn = NO_CONNECTION
    return made
