"""psycopg's connections as handlers have them: one object a run, dead when the run is over.

All runs of a child share a few sessions. So that whoever kept a connection, or a cursor made from
one, does not write into a later run's transaction, each run gets an object of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from tasks_app.pool.connection.session_state import FIRE_AND_RESET
from tasks_app.pool.runs.settle_success import asucceed, succeed
from tasks_app.runtime.handler_db.driver_internals import generators
from tasks_app.runtime.handler_db.end_of_run import FenceLostError, Permit, Steps
from tasks_app.runtime.handler_db.handler_driver import UNFINISHED, OfRun, results_of
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER

T = TypeVar("T")
BREAK_OFF_S = 0.5
"""How long whoever is at work gets to hear that his statement was cancelled."""
_IDLE = TransactionStatus.IDLE
_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}


class HandlerConnection(OfRun, psycopg.Connection[Any]):
    """Of plain handlers."""

    def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        """Carry out what anybody wants, unless the run is over."""
        if self.unread:
            self.unread = False
            super().wait(generators.execute(self.pgconn))
        before = self._begin_wait()
        try:
            done = super().wait(gen, *arguments, **options)
        finally:
            self._look(before)
        self.answered = True
        return done

    def _as_executor(self, do: Callable[[], T]) -> T:
        self._ends = True
        try:
            return do()
        finally:
            self._ends = False

    def commit(self) -> None:
        """Commit with what is permitted; one that fails leaves no transaction.

        Raises:
            RuntimeError: nothing is.
            FenceLostError: the outcome could not be written.
        """
        permit = self.take_permit()
        self._as_executor(lambda: self._commit(permit))

    def _commit(self, permit: Permit) -> None:
        try:
            if (last := self.word_of(permit)) is not None:
                with self.lock:
                    self.wait(self.end(last, begins_next=permit.begins_next))
                return
            if permit.settlement is not None:
                psycopg.Cursor(self).execute(FIRE_AND_RESET)
                if not succeed(self, permit.settlement, permit.called):
                    raise FenceLostError
            super().commit()
        except (psycopg.Error, FenceLostError):
            if self.pgconn.transaction_status in _OPEN:
                super().rollback()
            raise

    def rollback(self) -> None:
        """Roll back, which anybody may."""
        self.permit = None
        if self._rolls_back():
            self._as_executor(super().rollback)

    def seal(self) -> None:
        """Let nobody else use it from here on.

        Raises:
            RuntimeError: somebody is at work on it.
        """
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(UNFINISHED)
        self._owner = self._me()
        self.lock.release()

    def break_off(self) -> None:
        """The same, and end what somebody is at work on: never while he reads the socket."""
        if self._over or self.closed:
            return
        if not self.lock.acquire(blocking=False):
            self.is_spoiled = True
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=BREAK_OFF_S)
            if not self.lock.acquire(timeout=BREAK_OFF_S):
                self.pgconn.finish()  # a stream that was left: nobody reads
                return
        self._owner = self._me()
        self.lock.release()

    def rest(self) -> None:
        """End what was begun for a run that did not come, unless another thread's has it."""
        if self.taken is not None and self.taken.acquire(blocking=False):
            try:
                self._as_executor(super().rollback)
                self.begun = self.needs_look = self.answered = False
            finally:
                self.taken.release()

    def leave(self) -> None:
        """End a run's use of it: roll back what is open, and look what stays.

        Behind a pooler that would be another session's.
        """
        self.rollback()
        if self.prepare_threshold is None:
            self.needs_look = False
        elif not self.closed:
            with self.lock:
                self.wait(self.look_after())

    def ping(self) -> None:
        """Raise psycopg's error if the server is not there, before a run begins."""
        with self.lock:
            self.wait(self.ask())
        self.answered = False

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  psycopg's
        """Refuse to have each statement commit by itself."""
        if value:
            raise RuntimeError(COMMITS_LATER)
        super().set_autocommit(value)

    def transaction(self, *arguments: Any, **options: Any) -> Any:
        """Return a block within the run's transaction: a savepoint."""
        if self.pgconn.transaction_status == _IDLE:
            self.execute("SELECT")
        return super().transaction(*arguments, **options)


class AsyncHandlerConnection(OfRun, psycopg.AsyncConnection[Any]):
    """The same of async handlers."""

    async def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        """Carry out what anybody wants, unless the run is over."""
        before = self._begin_wait()
        try:
            done = await super().wait(gen, *arguments, **options)
        finally:
            self._look(before)
        self.answered = True
        return done

    async def commit(self) -> None:
        """Commit, as above."""
        permit = self.take_permit()
        self._ends = True
        try:
            await self._commit(permit)
        except (psycopg.Error, FenceLostError):
            if self.pgconn.transaction_status in _OPEN:
                await super().rollback()
            raise
        finally:
            self._ends = False

    async def _commit(self, permit: Permit) -> None:
        if (last := self.word_of(permit)) is not None:
            async with self.lock:
                await self.wait(self.end(last, begins_next=False))
            return
        if permit.settlement is not None:
            await psycopg.AsyncCursor(self).execute(FIRE_AND_RESET)
            if not await asucceed(self, permit.settlement, permit.called):
                raise FenceLostError
        await super().commit()

    async def rollback(self) -> None:
        """Roll back, which anybody may."""
        self.permit = None
        if not self._rolls_back():
            return
        self._ends = True
        try:
            await super().rollback()
        finally:
            self._ends = False

    async def leave(self) -> None:
        """End a run's use of it, as above."""
        await self.rollback()
        if self.prepare_threshold is None:
            self.needs_look = False
        elif not self.closed:
            async with self.lock:
                await self.wait(self.look_after())

    @staticmethod
    def _me() -> Any:
        return asyncio.current_task()

    def seal(self) -> None:
        """Let nobody else use it from here on, as above."""
        if self.lock.locked():
            raise RuntimeError(UNFINISHED)
        self._owner = self._me()

    async def break_off(self) -> None:
        """The same, and end what somebody is at work on, as above."""
        if self._over or self.closed:
            return
        if self.lock.locked():
            self.is_spoiled = True
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=BREAK_OFF_S)
            try:
                await asyncio.wait_for(self.lock.acquire(), BREAK_OFF_S)
            except TimeoutError:
                self.pgconn.finish()
                return
            self.lock.release()
        self._owner = self._me()

    async def ping(self) -> None:
        """Do the same, as above."""
        async with self.lock:
            await self.wait(self.ask())
        self.answered = False

    async def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  psycopg's
        """Refuse, as above."""
        if value:
            raise RuntimeError(COMMITS_LATER)
        await super().set_autocommit(value)

    @asynccontextmanager
    async def transaction(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """Open a block within the run's transaction, as above."""
        if self.pgconn.transaction_status == _IDLE:
            await self.execute("SELECT")
        async with super().transaction(*arguments, **options) as block:
            yield block


class HandlerCursor(psycopg.Cursor[Any]):
    """Looks at what handlers say."""

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        """Execute a statement that does not end the transaction."""
        connection: Any = self.connection
        connection.judge(query)
        try:
            done = super().execute(query, *arguments, **options)
        except psycopg.Error as error:
            connection.heed((), error)
            raise
        if len(results := results_of(self)) > 1:
            self.set_result(0)
        if connection.heed(results):
            with connection.lock:
                connection.wait(connection.lock_if_snapshot())
        return done


class AsyncHandlerCursor(psycopg.AsyncCursor[Any]):
    """The same for async handlers."""

    async def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        """Execute a statement that does not end the transaction."""
        connection: Any = self.connection
        connection.judge(query)
        try:
            done = await super().execute(query, *arguments, **options)
        except psycopg.Error as error:
            connection.heed((), error)
            raise
        if len(results := results_of(self)) > 1:
            await self.set_result(0)
        if connection.heed(results):
            async with connection.lock:
                await connection.wait(connection.lock_if_snapshot())
        return done
