"""The connections of async handlers: plain ones that wait in the event loop.

All that waits runs in a greenlet, as SQLAlchemy's async sessions let it: theirs, or the run's own.
While one waits, the loop goes on with other runs.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.pq import TransactionStatus
from sqlalchemy import event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only as await_

from tasks_app.runtime.handler_db.ends import Steps
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.handler_cursors import HandlerCursor

T = TypeVar("T")
CANCELLED_S = 5.0
"""How long the server may take to hear that a statement is to end."""
_READS, _WRITES = 1, 2
"""Bits of what psycopg waits for, and of what it is told to be ready."""
_ROUNDS = 2
"""How often other runs go on before the loop is asked to watch a socket."""
_DIALECT = "tasks_app_loop"


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
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lock = LoopLock()  # type: ignore[assignment]

    def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        if arguments or options:  # notifications, with a time limit
            return await_(waiting.wait_async(gen, self.pgconn.socket, *arguments, **options))
        return await_(self._carry_out(gen))

    async def _carry_out(self, gen: Steps[T]) -> T:
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await _ready(self.pgconn.socket, wanted))
        except StopIteration as end:
            done: T = end.value
            return done
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._end_statement()
            raise
        except OSError as error:  # of a socket that was closed meanwhile
            raise errors.OperationalError("The connection was closed.") from error

    async def _end_statement(self) -> None:
        """Let the server end what is under way, and close: SQLAlchemy would not use it again."""
        self.cancelled = True
        try:
            with suppress(psycopg.Error):
                await self._cancel(CANCELLED_S)
        finally:
            self.pgconn.finish()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        await_(self._cancel(timeout))

    async def _cancel(self: Any, timeout: float) -> None:
        await psycopg.AsyncConnection.cancel_safe(self, timeout=timeout)  # as theirs, in the loop


class _LoopCursor(HandlerCursor):
    async def _async_soft_close(self) -> None:
        """Do nothing: SQLAlchemy calls it before it hands rows on, for cursors that it adapts."""


class LoopConnection(HandlerConnection, _InLoop):
    """For async handlers."""

    @staticmethod
    def _me() -> Any:
        return asyncio.current_task()


async def _ready(socket: int, wanted: int) -> int:
    """Wait until a socket can be read or written as ``wanted``; return for what it is ready.

    Other runs go on first. Often the answer is there then, and the loop need not watch for it,
    which takes half as long as a small statement.
    """
    poll = select.poll()
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
    try:
        if reads:
            loop.add_reader(socket, _tell, answered, _READS)
        if writes:
            loop.add_writer(socket, _tell, answered, _WRITES)
        return await answered
    finally:
        if reads:
            loop.remove_reader(socket)
        if writes:
            loop.remove_writer(socket)


def _tell(answered: asyncio.Future[int], ready: int) -> None:
    if not answered.done():
        answered.set_result(ready)


class LoopDialect(PGDialect_psycopg):
    """SQLAlchemy's, with a driver that need not be adapted."""

    is_async = True
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, _url: URL) -> type[LoopDialect]:
        return cls


registry.register(f"postgresql.{_DIALECT}", __name__, LoopDialect.__name__)


def loop_engine(url: str, **options: Any) -> AsyncEngine:
    """Return an engine whose connections belong to one event loop.

    Its connections are made in threads, where names are resolved, too: in threads of its own, since
    handlers may keep those of the loop busy.
    """
    ours = make_url(url).set(drivername=f"postgresql+{_DIALECT}")
    # looked up late: programs of handlers may have instrumented it
    engine = sqlalchemy_asyncio.create_async_engine(ours, **options)
    threads = ThreadPoolExecutor(4, "tasks_app connects")

    @event.listens_for(engine.sync_engine, "do_connect")
    def connect(_dialect: Any, _entry: Any, arguments: Any, options: Any) -> LoopConnection:
        return await_(_connected(threads, arguments, options))

    return engine


async def _connected(threads: Executor, arguments: Any, options: Any) -> LoopConnection:
    """Connect; who is cancelled does not wait for it."""
    make = partial(LoopConnection.connect, *arguments, cursor_factory=_LoopCursor, **options)
    connecting = asyncio.get_running_loop().run_in_executor(threads, make)
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close)
        raise


def _close(connecting: asyncio.Future[LoopConnection]) -> None:
    if not (connecting.cancelled() or connecting.exception()):
        connecting.result().close()
