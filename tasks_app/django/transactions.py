"""How a Django project's plain handlers run: in atomic(), on Django's connection."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error as DjangoError
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection

from tasks_app.django.connection_reset import release_others, reset_connection, run_hooks
from tasks_app.django.creating import NON_ATOMIC
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_conflict, mark_ours, spares_handlers
from tasks_app.runtime.db.transaction import Transaction, as_sqlalchemy_raises, of_commit
from tasks_app.runtime.execution.invocation import ProcessGuard, SyncLane
from tasks_app.runtime.handler_db.ends import OutcomeRefusedError, RunEnd, end_on
from tasks_app.runtime.handler_db.handler_connections import make_interruptible
from tasks_app.runtime.handler_db.handler_driver import UNFINISHED, UnusableConnectionError
from tasks_app.runtime.handler_db.lending import keep_from_fork
from tasks_app.runtime.handler_db.statements import (
    Write,
    ends_transaction,
    stays_in_session,
    write_of,
)
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.hints import HINTS, hints_of_started


class DjangoLane(SyncLane):
    """Of one child; each of its threads has Django's connections of its own."""

    def __init__(self, database: Database, guard: ProcessGuard, alias: str = "default") -> None:
        super().__init__(database, guard)
        self._alias = alias
        self._next = threading.local()

    def transaction(self, fence: Fence) -> Transaction:
        made = DjangoTransaction(super().transaction(fence), self._alias)
        self._next.transaction = made
        return made

    def call(
        self, spec: HandlerSpec, arguments: tuple[Any, ...], limit: float | None, run: ActiveRun
    ) -> Any:
        made: DjangoTransaction = vars(self._next).pop("transaction")
        if getattr(spec.function, NON_ATOMIC, False):
            return super().call(spec, arguments, limit, run)
        try:
            made.open()
        except DjangoError as error:
            raise judged(error, refused=True) from error
        try:
            return super().call(spec, arguments, limit, run)
        except DjangoError as error:
            db = connections[self._alias]
            if not (db.errors_occurred or db.connection is None or db.connection.closed):
                raise  # of another database
            if (known := judged(error)) is error:
                raise
            raise known from error


log = quiet_logger(__name__)
BOTH = (
    "The handler used Django's connection and ctx.session, which are two transactions. "
    "Use one of them, also for what it only reads."
)
OPEN = "The handler left an atomic() block open. Leave it before the handler returns, or raise."
BROKEN = (
    "The handler swallowed a database error that broke its transaction, or called "
    "set_rollback(True). Let the error out, or catch it outside of a nested atomic()."
)
CLOSED = (
    "The handler closed Django's connection, perhaps by close_old_connections(), and with it went "
    "what it wrote. Leave it open: the worker looks after it."
)
ENDED = (
    "The handler ended the transaction of Django's connection by itself: what it had written by "
    "then may stand without its outcome. Leave the end to the outcome, or use ctx.commit()."
)
NESTED = "ctx.commit() was called within a nested atomic(). Call it when that is left."


class DjangoTransaction:
    """Of one run, in its thread. Until :meth:`open` it is only the one of ``plain``."""

    is_async = False

    def __init__(self, plain: Transaction, alias: str) -> None:
        self._plain = plain
        self._alias = alias
        self._db: BaseDatabaseWrapper | None = None
        self._atomic: Any = None
        self._sent = self._answered = self._keeps = False
        self._writes: list[Write] = []

    def open(self) -> None:
        """Begin; nothing is sent before the handler's first statement.

        Raises:
            django.db.utils.Error: the database gave no connection.
        """
        self._db = db = connections[self._alias]
        raw = db.connection
        if raw is not None and (raw.closed or db.in_atomic_block or not db.get_autocommit()):
            reset_connection(db)
        self._begin(db)
        keep_from_fork(db.connection)
        make_interruptible(db.connection)
        db.close_at = None  # CONN_MAX_AGE, which is 0 by default, would reconnect at every run

    def _begin(self, db: BaseDatabaseWrapper) -> None:
        atomic = transaction.atomic(using=self._alias, durable=True)
        atomic.__enter__()
        self._atomic = atomic
        db.execute_wrappers.append(self._watch)

    def _watch(self, execute: Callable[..., Any], sql: Any, *others: Any) -> Any:
        """Django calls it around each statement."""
        statement = str(sql)
        if ends_transaction(statement):
            raise RuntimeError(COMMITS_LATER)
        self._sent = True
        self._keeps = self._keeps or keeps_something(statement)
        answer = execute(sql, *others)
        self._answered = True
        return answer

    # -- what the runtime asks

    @property
    def session(self) -> Any:
        return self._plain.session

    @property
    def connection(self) -> Connection:
        return self._plain.connection

    def read(self, find: Callable[[Connection], Any]) -> Any:
        """Read on the connection of ``plain``, which is not used by that."""
        used = self._plain.active
        found = self._plain.read(find)
        if not used:
            self._plain.session.rollback()
        return found

    def write(self, query: str, parameters: Any) -> None:
        self._writes.append(write_of(query, parameters))

    @property
    def active(self) -> bool:
        return self._is_used or self._plain.active or bool(self._writes)

    @property
    def late_writes(self) -> tuple[Write, ...]:
        if self._is_used:
            return ()
        self._pass_writes_on()
        return self._plain.late_writes

    @property
    def ended(self) -> bool:
        return self._plain.ended

    @property
    def untried(self) -> bool:
        if not self._sent:
            return self._plain.untried
        return not (self._answered or self._plain.active)

    @property
    def _is_used(self) -> bool:
        """Whether the handler did anything here, if only ``on_commit()``."""
        db = self._db
        if db is None or self._atomic is None:
            return False
        if self._sent or db.closed_in_transaction or db.needs_rollback or db.run_on_commit:
            return True
        raw = db.connection
        return raw is None or raw.info.transaction_status != TransactionStatus.IDLE

    def keep(self, save: Callable[[Connection], None]) -> None:
        """Commit what was done so far, ``save`` last.

        Raises:
            RuntimeError: a nested ``atomic()`` is open, or both transactions were written to.
        """
        if not self._is_used:
            self._pass_writes_on()
            self._plain.keep(save)
            return
        db = self._usable(NESTED)
        try:
            self._send_writes(db)
            save(on_psycopg(db.connection))
        except psycopg.Error as error:
            raise judged(error) from error
        hooks = self._commit(db)
        self._sent = False
        run_hooks(hooks)
        self._begin(db)

    def conclude(self, *settlements: Settlement) -> State | None:
        """Settle and commit on Django's connection, then call what waits for its commit."""
        if not self._is_used:
            self._pass_writes_on()
            return self._plain.conclude(*settlements)
        db, ending = self._usable(OPEN), RunEnd(settlements)
        try:
            self._send_writes(db)
        except psycopg.Error as error:
            raise judged(error) from error
        hooks, db.run_on_commit = db.run_on_commit, []
        try:
            with db.wrap_database_errors:  # as Django's COMMIT would raise them
                end_on(db.connection, ending, resets=self._keeps)
        except OutcomeRefusedError:
            self.abandon()
            return None
        except (DjangoError, psycopg.Error) as error:
            raise of_commit(judged(error)) from error
        self._commit(db)
        HINTS.offer(hints_of_started(ending.started))
        run_hooks(hooks)
        return State.SUCCEEDED

    def _pass_writes_on(self) -> None:
        while self._writes:
            self._plain.write(*self._writes.pop(0))

    def _send_writes(self, db: BaseDatabaseWrapper) -> None:
        """Send and remove each: a handler that swallows an error meets it again."""
        while self._writes:
            write = self._writes[0]
            keeps, self._keeps = self._keeps or keeps_something(write.query), True
            write.send(db.connection.cursor())
            self._keeps = keeps
            del self._writes[0]

    def _usable(self, if_nested: str) -> BaseDatabaseWrapper:
        db = self._db
        assert db is not None  # noqa: S101  it is used
        if self._plain.active:
            raise RuntimeError(BOTH)
        if db.closed_in_transaction or db.connection is None or db.connection.closed:
            raise RuntimeError(CLOSED)
        status = db.connection.info.transaction_status
        if status == TransactionStatus.ACTIVE:
            raise UnusableConnectionError(UNFINISHED)
        if len(db.atomic_blocks) != 1 or db.savepoint_ids:
            raise transaction.TransactionManagementError(if_nested)
        if db.needs_rollback or status == TransactionStatus.INERROR:
            raise transaction.TransactionManagementError(BROKEN)
        if self._sent and status == TransactionStatus.IDLE:
            raise Fail(ENDED)
        with suppress(ValueError):  # ours, and what the handler has left behind it
            del db.execute_wrappers[db.execute_wrappers.index(self._watch) :]
        return db

    def _commit(self, db: BaseDatabaseWrapper) -> list[Any]:
        """Commit; return what is to be called after that.

        Django would call it within the COMMIT, whose errors could not be told from theirs.
        """
        hooks: list[Any] = db.run_on_commit
        db.run_on_commit = []
        db.needs_rollback = True  # until it is answered: behind a failure Django would autocommit
        try:
            with db.wrap_database_errors:
                db.connection.commit()
        except (DjangoError, psycopg.Error) as error:
            raise of_commit(judged(error)) from error
        db.needs_rollback = False
        atomic, self._atomic = self._atomic, None
        atomic.__exit__(None, None, None)
        return hooks

    def abandon(self) -> None:
        """Roll back; never raises. A time limit may have struck within Django's own bookkeeping."""
        self._writes.clear()
        try:
            if self._db is not None and (self._atomic is not None or self._keeps):
                reset_connection(self._db, close=self._keeps)
            self._atomic, self._keeps = None, False
            release_others(self._alias)
        except BaseException as error:
            kind = type(error).__name__
            log.error("Django's connection was not given back: %s", kind)  # noqa: TRY400
        self._plain.abandon()


COMMITS_LATER = (
    "The transaction of a handler commits together with the task's outcome, when the handler has "
    "returned. Use ctx.commit() for what is to stand whatever becomes of the rest."
)
_KEEPS = re.compile(
    r"\A\s*(set\s+(?!constraints|transaction)|listen\b|prepare\b|declare\b.*\bwith\s+hold\b"
    r"|create\s+((global|local)\s+)?temp)|\b(set_config|pg_(try_)?advisory_lock\w*)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


@lru_cache(1024)
def keeps_something(statement: str) -> bool:
    """Whether something may stay in the session: a setting, a lock, a temporary table."""
    bare = _COMMENTS.sub(" ", statement)
    return _KEEPS.search(bare) is not None or stays_in_session(statement)


def judged(error: BaseException, *, refused: bool = False) -> BaseException:
    """Return the error, or what SQLAlchemy would have raised, if it is no fault of the task.

    Of these the runtime knows what to do: run the task again, uncharged. All others stay what they
    are, so that handlers' rules and the error pool have Django's names.
    """
    origin = error if isinstance(error, psycopg.Error) else error.__cause__
    if not isinstance(origin, psycopg.Error):
        return error
    known = as_sqlalchemy_raises(origin)
    if not (spares_handlers(known) or is_conflict(known)):
        mark_ours(error, refused=False)
        return error
    mark_ours(known, refused=refused)
    return known
