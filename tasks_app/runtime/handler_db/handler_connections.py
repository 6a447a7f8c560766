"""psycopg's connections and cursors as handlers have them: one object for each run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident, main_thread
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.runtime.handler_db.driver_internals import IS_PSYCOPG_3_2, generators
from tasks_app.runtime.handler_db.ends import OutcomeRefusedError, RunEnd, Steps
from tasks_app.runtime.handler_db.handler_driver import (
    UNFINISHED,
    RunDriver,
    UnusableConnectionError,
)
from tasks_app.runtime.handler_db.statements import COMMITS_LATER

T = TypeVar("T")
BREAK_OFF_S = 0.25
"""How long a thread at work has to notice that its statement was cancelled, or its line ended."""
CANCEL_S = 2.0  # how long the server may take to cancel a statement, and then to end it
_IDLE = TransactionStatus.IDLE
_MAIN = main_thread().ident
_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}


def by_bytecode(gen: Steps[T]) -> Steps[T]:
    """Carry out steps so that an exception set from another thread is raised between them.

    psycopg waits in C, for up to 0.1 s at a time, and a generator that delegates is not looked at.
    """
    try:
        wanted = next(gen)
        while True:
            wanted = gen.send((yield wanted))
    except StopIteration as end:
        done: T = end.value
        return done


def end_statement(raw: psycopg.Connection[Any]) -> None:
    """Cancel what the server does for a wait that a limit or a cancel broke off.

    Then the handler may roll back and go on. A connection that does not answer is closed.
    """
    if raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            raw.cancel_safe(timeout=CANCEL_S)
            psycopg.Connection.wait(raw, _rest_of_answer(raw.pgconn))
        if raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            raw.close()


def _rest_of_answer(pgconn: PGconn) -> Steps[None]:
    gen, ends = generators.fetch_many(pgconn), time.monotonic() + CANCEL_S
    with suppress(StopIteration):
        wanted = next(gen)
        while True:
            ready = yield wanted
            if time.monotonic() > ends:
                raise psycopg.OperationalError
            wanted = gen.send(ready)


def make_interruptible(raw: psycopg.Connection[Any]) -> None:
    """Let waits on a connection that is not ours end as those of ours do."""
    wait = type(raw).wait

    def interruptible(gen: Steps[T], *arguments: Any, **options: Any) -> T:
        try:
            return wait(raw, by_bytecode(gen), *arguments, **options)
        except psycopg.Error:
            raise
        except BaseException:
            end_statement(raw)
            raise

    raw.wait = interruptible  # type: ignore[method-assign]


class HandlerConnection(RunDriver, psycopg.Connection[Any]):
    """For plain handlers; ``loop_connection`` has the one of async handlers."""

    def wait(self, gen: Steps[T], *arguments: Any, **options: Any) -> T:
        """Carry out a step, unless the run is over."""
        before = self._begin_wait()
        try:
            if self.unread:
                super().wait(self._begin_gen())
                before = self.pgconn.transaction_status
            done = super().wait(self.steps(gen), *arguments, **options)
        except psycopg.Error as error:
            if not isinstance(error, errors.InFailedSqlTransaction):  # which comes behind another
                self._broken_by = error.diag.message_primary or self._broken_by
            raise
        except BaseException:  # a limit or a cancel was raised in here
            self.end_statement()
            raise
        finally:
            self._note_state(before)
        self.answered = True
        return done

    @staticmethod
    def steps(gen: Steps[T]) -> Steps[T]:
        """Return steps between which this thread can be interrupted."""
        return gen if get_ident() == _MAIN else by_bytecode(gen)

    def end_statement(self) -> None:
        end_statement(self)

    def as_executor(self, do: Callable[[], T]) -> T:
        self._ends = True
        try:
            return do()
        finally:
            self._ends = False

    def commit(self) -> None:
        """Commit what the permit allows; a commit that fails leaves no transaction open."""
        permit = self.take_permit()
        self.as_executor(lambda: self._commit(permit))
        permit.stands = True

    def _commit(self, permit: RunEnd) -> None:
        try:
            if not permit.settlements:
                super().commit()
                return
            if not self.takes_along(permit.writes):
                for write in permit.writes:
                    write.send(self.cursor())
                permit.writes, self.sent_unproven = (), True
            with self.lock:
                self.wait(self.end(permit))
        except (psycopg.Error, OutcomeRefusedError):
            if self.pgconn.transaction_status in _OPEN:
                super().rollback()
            raise

    def rollback(self) -> None:
        """Roll back, which handlers may do too; a BEGIN alone leaves nothing in the session."""
        self.permit, used = None, self.needs_check
        if self._rolls_back():
            self.as_executor(super().rollback)
            self.needs_check = used

    def seal(self) -> None:
        """Let only the calling thread use it from here on, if no other is at work on it."""
        if not self.lock.acquire(blocking=False):
            raise UnusableConnectionError(UNFINISHED)
        self._owner = self._me()
        self.lock.release()

    def break_off(self) -> None:
        """Seal it, and cancel what is under way, but not while another thread reads the socket."""
        if self._over or self.closed:
            return
        if not self.lock.acquire(blocking=False):
            self.is_spoiled = True
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=BREAK_OFF_S)
            if not self.lock.acquire(timeout=BREAK_OFF_S):
                self.cut_off()
                return
        self._owner = self._me()
        self.lock.release()

    def cut_off(self) -> None:
        """Close it although another thread may be at work: the end of the socket stops that first.

        libpq crashes if it is closed while a thread is in it. A stream that was left holds the lock
        for ever, although no thread is at work.
        """
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)
        is_out = self.lock.acquire(timeout=BREAK_OFF_S)
        self.close()
        if is_out:
            self.lock.release()

    def end_use(self) -> None:
        """End a run's use of it: roll back, and check what stays in the session.

        Behind a pooler it would check another session.
        """
        self.rollback()
        if self.prepare_threshold is None:
            self.needs_check = False
        elif not self.closed:
            with self.lock:
                self.wait(self.check_leftovers())

    def ping(self) -> None:
        """Raise psycopg's error if the server does not answer, before a run begins."""
        with self.lock:
            self.wait(self.ping_steps())
        self.answered = False

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  psycopg's
        if value:
            raise RuntimeError(COMMITS_LATER)
        super().set_autocommit(value)

    def transaction(self, *arguments: Any, **options: Any) -> Any:
        """Return a savepoint within the run's transaction."""
        if self.pgconn.transaction_status == _IDLE:
            self.execute("SELECT")
        return super().transaction(*arguments, **options)


class HandlerCursor(psycopg.Cursor[Any]):
    if IS_PSYCOPG_3_2:  # it cannot go back

        def set_result(self, index: int) -> Self:
            self._select_current_result(index)
            return self

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        connection: Any = self.connection
        connection.check_statement(query)
        try:
            done = super().execute(query, *arguments, **options)
        except psycopg.Error as error:
            connection.note_results((), error)
            raise
        if len(results := _results(self)) > 1:
            self.set_result(0)
        if connection.note_results(results):
            with connection.lock:
                connection.wait(connection.lock_if_snapshot())
        return done

    def executemany(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.check_statement(query)
        return super().executemany(query, *arguments, **options)

    def stream(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.check_statement(query)
        return super().stream(query, *arguments, **options)

    def copy(self: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        self.connection.check_statement(statement)
        return super().copy(statement, *arguments, **options)


def _results(cursor: Any) -> list[PGresult]:
    """Return the results of a string of statements; of several, the cursor ends at the last."""
    results = [] if cursor.pgresult is None else [cursor.pgresult]
    while cursor.nextset():
        results.append(cursor.pgresult)
    return results
