"""What a handler's psycopg connection does beside psycopg's own.

COMMIT is the executor's (``ends``). libpq's transaction status shows when a transaction was
ended in another way.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NoReturn

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.sql import Composable

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.run import Fence
from tasks_app.pool.runs.settle_success import lock_row_statement
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, generators
from tasks_app.runtime.handler_db.ends import BEGIN_TEXT, EndsRuns, RunEnd, Steps
from tasks_app.runtime.handler_db.statements import (
    COMMITS_LATER,
    ENDED,
    ENDING_TAGS,
    PROVEN,
    UNDER_OWN,
    Write,
    ends_transaction,
    stays_in_session,
)

OVER = "The task is over; what it left running has no connection any more."
UNFINISHED = (
    "The handler left a COPY, a stream, a pipeline or a thread at work on its connection. "
    "End it before the handler returns."
)
CLOSED = (
    "The handler closed ctx.connection, or gave up a statement on it and went on: what was not "
    "committed is gone. Leave it open; after a cancellation or a timeout call "
    "ctx.session.rollback() first."
)
BROKEN = (
    "The handler swallowed a database error that broke its transaction: {error}. "
    "Let it out, or catch it outside of a savepoint, as ctx.session.begin_nested() makes one."
)
_IDLE = TransactionStatus.IDLE
_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}
_SNAPSHOTS = {IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE}
_SNAPSHOT_NAMES = {level.name.replace("_", " ").lower().encode() for level in _SNAPSHOTS}
_FORGETTING = ("DEALLOCATE", "DISCARD", "LOAD")
"""Command tags of what no rollback takes back, and no check finds."""

NO_CONNECTION = PGconn.connect_start(b"=")  # libpq cannot parse this, and asks no server
NO_CONNECTION.finish()


class UnusableConnectionError(RuntimeError):
    """The handler left its connection closed, or at work."""


def _another(value: Any) -> Any:
    return AdaptersMap(value) if isinstance(value, AdaptersMap) else copy.copy(value)


class RunDriver(EndsRuns):
    """Keeps a run's transaction to the executor's end."""

    permit: RunEnd | None = None
    """What the next COMMIT may take along; None: it is a handler's, and refused."""
    refused = False  # whether the handler tried to COMMIT: SQLAlchemy rolls back after that
    fence: Fence | None = None  # of its run
    ended = False  # whether the handler ended a transaction here
    answered = False  # whether the server answered this run
    unread = False  # whether the answer to a BEGIN was not read yet
    _broken_by = "one of its statements failed"
    """The server's message about the last error that may have broken a transaction."""
    _owner: Any = None
    """The thread, or asyncio's task, that ends the run: from then on no other may use it."""
    _was_open = False  # whether a transaction was open after the last step
    _over = False
    _ends = False  # whether the executor is ending it
    _mutable: tuple[str, ...]
    _began = False  # whether the current step began a transaction
    _has_set = False
    _template: dict[str, Any]  # what psycopg and SQLAlchemy keep of the connection while it is new

    def save_template(self: Any) -> None:
        """Save the state of a new connection; prepared statements stay with the session."""
        self.names = set()
        ours = {*vars(RunDriver), *vars(EndsRuns)}
        for name in ours & {*vars(self)}:
            delattr(self, name)  # left from SQLAlchemy's first use of it
        kinds = (list, deque, AdaptersMap)
        kept = {n: v for n, v in vars(self).items() if isinstance(v, kinds)}
        self._template = {**vars(self), **{n: _another(v) for n, v in kept.items()}}
        del self._template["lock"]  # or a dead connection would block the living one
        self._template["_mutable"] = self._mutable = tuple(kept)
        self._template["_limits"] = self._limits = (self.prepare_threshold, self.prepared_max)

    def hand_over(self: Any) -> Any:
        """Return the next run's connection on the same session, and close this one."""
        self._over = True
        after = type(self)(self.pgconn)
        vars(after)["_template"] = template = self._template
        vars(after).update(template)
        for name in self._mutable:
            vars(after)[name] = _another(template[name])
        after.prepare_threshold, after.prepared_max = self._limits
        after.names = self.names
        self.pgconn = NO_CONNECTION
        return after

    @property
    def is_at_work(self) -> bool:
        """Whether a run did something that its end has to commit or roll back."""
        if self.has_ended() or self.refused:
            return True
        return self.needs_check and self.pgconn.transaction_status != _IDLE

    def take_permit(self) -> RunEnd:
        permit, self.permit = self.permit, None
        if permit is None:
            self.refused = True
            raise RuntimeError(COMMITS_LATER)
        return permit

    def takes_along(self, writes: Sequence[Write]) -> bool:
        """Whether these may be sent together with the COMMIT."""
        return LATE_WRITES.works and all(write.query in PROVEN for write in writes)

    @property
    def is_closed_here(self: Any) -> bool:
        """Whether it was closed by this process, and not lost."""
        return bool(self.closed and not self.broken)

    def check_whole(self) -> None:
        if self.pgconn.transaction_status == TransactionStatus.INERROR:
            raise RuntimeError(BROKEN.format(error=self._broken_by))

    def check(self: Any) -> None:
        """Pass if the run may commit. If it ended a transaction, it must not run again."""
        if self.has_ended():
            raise Fail(ENDED)
        if self.refused:
            raise RuntimeError(COMMITS_LATER)
        if self.is_closed_here:
            raise UnusableConnectionError(CLOSED)
        pgconn = self.pgconn
        at_work = pgconn.transaction_status == TransactionStatus.ACTIVE and not self.unread
        if at_work or pgconn.pipeline_status != PipelineStatus.OFF:
            raise UnusableConnectionError(UNFINISHED)

    def _rolls_back(self) -> bool:
        """Whether there is something to roll back."""
        return self.pgconn.status == ConnStatus.OK and self.pgconn.transaction_status != _IDLE

    def begin(self: Any) -> None:
        """Send BEGIN; the first step reads its answer, and raises its error."""
        chosen = self.isolation_level in _SNAPSHOTS or self.read_only or self.deferrable
        if chosen or not self.lock.acquire(blocking=False):
            return
        try:
            if self.pgconn.transaction_status == _IDLE:
                self.pgconn.send_query(BEGIN_TEXT)
                self.unread = True
                self.pgconn.flush()
        except psycopg.OperationalError:
            self.unread = False
        finally:
            self.lock.release()

    def _begin_gen(self) -> Steps[None]:
        self.unread = False
        (result,) = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)

    def tpc_begin(self, *_: Any) -> NoReturn:
        """Refuse: another session could commit a prepared transaction."""
        raise RuntimeError(COMMITS_LATER)

    def _begin_wait(self) -> int:
        """Return the transaction's status, unless the run is over."""
        if self._over or self._owner not in {None, self._me()}:
            raise psycopg.InterfaceError(OVER)
        self.needs_check, self._began = True, False
        return self.pgconn.transaction_status

    def _note_state(self, before: int) -> None:
        """Note whether the last step ended a transaction."""
        was_open = before != _IDLE or self._began
        if was_open and not self._ends and self.pgconn.transaction_status == _IDLE:
            self.ended = True
        self._was_open = self.pgconn.transaction_status in _OPEN

    def has_ended(self) -> bool:
        """Whether the handler ended a transaction, by libpq itself for example."""
        if self._was_open and self.pgconn.transaction_status == _IDLE:
            self.ended = True
        return self.ended

    @staticmethod
    def _me() -> Any:
        return get_ident()

    def note_results(
        self: Any, results: Sequence[PGresult], error: psycopg.Error | None = None
    ) -> bool:
        """Note what a string of statements did; True: an isolation level may have been set.

        psycopg begins a transaction before each statement, so that one is open after it.
        """
        tags = {(result.command_status or b"").decode() for result in results}
        answered = error is None or error.sqlstate is not None
        self._has_set = self._has_set or "SET" in tags
        if error is not None:
            setattr(error, UNDER_OWN, self._has_set)
        unseen = "ROLLBACK" in tags and len(results) > 1  # perhaps ROLLBACK AND CHAIN
        if unseen or tags & ENDING_TAGS or (answered and self.pgconn.transaction_status == _IDLE):
            self.ended = True
        if any(tag.startswith(_FORGETTING) for tag in tags):
            self.is_spoiled = True
        return "SET" in tags

    def check_statement(self, statement: Any) -> None:
        """Raise RuntimeError if its text ends the transaction."""
        if isinstance(statement, Composable):
            statement = statement.as_string(None)
        if isinstance(statement, bytes):
            statement = statement.decode(errors="replace")
        if isinstance(statement, str):
            if ends_transaction(statement):
                raise RuntimeError(COMMITS_LATER)
            self.is_spoiled = self.is_spoiled or stays_in_session(statement)

    def _start_query(self: Any) -> Steps[None]:
        begins = self.pgconn.transaction_status == _IDLE
        yield from super()._start_query()  # type: ignore[misc]  # psycopg's
        self._began = begins and self.pgconn.pipeline_status == PipelineStatus.OFF
        if self._began and self.isolation_level in _SNAPSHOTS:
            yield from self._lock_own_row()

    def _lock_own_row(self) -> Steps[None]:
        if self.fence is None:
            return
        word = lock_row_statement(self.fence)
        self.pgconn.send_query_params(word.sql, word.values, param_types=word.types)
        (result,) = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)

    def lock_if_snapshot(self) -> Steps[None]:
        """Lock the run's own row if a statement chose an isolation level that needs it."""
        if self.pgconn.transaction_status == TransactionStatus.INTRANS:
            self.pgconn.send_query(b"SHOW transaction_isolation")
            (result,) = yield from generators.execute(self.pgconn)
            if result.get_value(0, 0) in _SNAPSHOT_NAMES:
                yield from self._lock_own_row()

    def ping_steps(self) -> Steps[None]:
        """Ask the server, outside of a transaction, whether it answers."""
        self.pgconn.send_query(b"")
        (result,) = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.EMPTY_QUERY:
            raise errors.error_from_result(result)
        self.needs_check = False
