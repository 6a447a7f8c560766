"""What a handler's psycopg connection does beside psycopg's own, plain or async.

COMMIT is the executor's (``end_of_run``). That a transaction ended otherwise is seen by what libpq
says of it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from threading import Lock, get_ident
from typing import Any, NoReturn

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.sql import Composable

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.run import Fence
from tasks_app.pool.runs.settle_success import own_row
from tasks_app.runtime.handler_db.driver_internals import generators
from tasks_app.runtime.handler_db.end_of_run import EndOfRun, Steps
from tasks_app.runtime.handler_db.handler_statements import (
    COMMITS_LATER,
    ends_transaction,
    stays_in_session,
)

OVER = "The task is over; what it left running has no connection any more."
ENDED = (
    "The handler ended the transaction of ctx.session by itself: what it had written by then may "
    "stand without its outcome. Leave the end to the outcome, or use ctx.commit()."
)
UNFINISHED = (
    "The handler left a COPY, a stream, a pipeline or a thread at work on ctx.connection. "
    "End it before the handler returns."
)
CLOSED = (
    "The handler closed ctx.connection, and with it went what it wrote. "
    "Leave it open: it commits with the outcome."
)
_IDLE = TransactionStatus.IDLE
_OPEN = {TransactionStatus.INTRANS, TransactionStatus.INERROR}
_SNAPSHOTS = {IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE}
_SNAPSHOT_NAMES = {level.name.replace("_", " ").lower().encode() for level in _SNAPSHOTS}
_ENDING_TAGS = {"COMMIT", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION"}


_NOBODY = PGconn.connect_start(b"=")  # it cannot be read, so that no server is asked
_NOBODY.finish()


def _another(value: Any) -> Any:
    return AdaptersMap(value) if isinstance(value, AdaptersMap) else copy.copy(value)


def results_of(cursor: Any) -> list[PGresult]:
    """Return what a string of statements brought; of several, the cursor stands at the last."""
    results = [] if cursor.pgresult is None else [cursor.pgresult]
    while cursor.nextset():
        results.append(cursor.pgresult)
    return results


class OfRun(EndOfRun):
    """What both kinds have in common."""

    fence: Fence | None = None
    """Of the run whose it is."""
    ended = False
    """Whether somebody else ended a transaction here."""
    rolled_back = False
    """Whether anybody rolled back."""
    answered = False
    """Whether the server has answered this run."""
    taken: Lock | None = None
    """Whoever uses a transaction that was begun ahead, or ends it, has this first."""
    heir: Any = None
    """Where it was begun ahead, who has it, until its thread has asked: or the dead would keep all
    that came after them."""
    _owner: Any = None
    """Who alone may use it from here on: the thread, or asyncio's task, that ends the run."""
    _was_open = False
    """Whether a transaction was open when something was last carried out."""
    _over = False
    _ends = False
    """Whether it is we who end it."""
    _mutable: tuple[str, ...]
    _dropped = False
    """Whether what is carried out ended a transaction that was begun ahead."""
    _began = False
    """Whether what is carried out began a transaction."""
    _template: dict[str, Any]
    """What psycopg and SQLAlchemy keep of the connection while it is new."""

    def be_template(self: Any) -> None:
        """Remember how a new connection is; what is prepared stays with its session."""
        self.names = set()
        for name in {*vars(OfRun), *vars(EndOfRun)} & {*vars(self)}:
            delattr(self, name)  # SQLAlchemy has looked at the server by it
        kinds = (list, deque, AdaptersMap)
        kept = {n: v for n, v in vars(self).items() if isinstance(v, kinds)}
        self._template = {**vars(self), **{n: _another(v) for n, v in kept.items()}}
        del self._template["lock"]  # who tries a dead one has that one's
        self._template["_mutable"] = self._mutable = tuple(kept)
        self._template["_limits"] = self._limits = (self.prepare_threshold, self.prepared_max)

    def hand_on(self: Any) -> Any:
        """Return what the next run is to have of the session, and be closed."""
        self._over = True
        heir = type(self)(self.pgconn)
        vars(heir)["_template"] = template = self._template
        vars(heir).update(template)
        for name in self._mutable:
            vars(heir)[name] = _another(template[name])
        heir.prepare_threshold, heir.prepared_max = self._limits
        heir.names = self.names
        heir.begun, heir.taken = self.begun, Lock() if self.begun else None
        self.heir = heir if self.begun else None
        self.pgconn = _NOBODY
        return heir

    @property
    def is_at_work(self) -> bool:
        """Whether a run did something that its end has to see to."""
        if self.has_ended() or self.refused:
            return True
        return self.needs_look and self.pgconn.transaction_status != _IDLE

    def check(self: Any) -> None:
        """Look whether a run may commit.

        Raises:
            Fail: its transaction was ended: what it wrote must not be written again.
            RuntimeError: it was closed, or something is open.
        """
        if self.has_ended():
            raise Fail(ENDED)
        if self.refused:
            raise RuntimeError(COMMITS_LATER)
        if self.closed and not self.broken:
            raise RuntimeError(CLOSED)
        pgconn = self.pgconn
        at_work = pgconn.transaction_status == TransactionStatus.ACTIVE and not self.unread
        if at_work or pgconn.pipeline_status != PipelineStatus.OFF:
            raise RuntimeError(UNFINISHED)

    def _rolls_back(self) -> bool:
        """Tell whether there is something to roll back."""
        if self.begun and not self.needs_look:
            return False
        self.rolled_back = True
        if self.unread:
            return True
        return self.pgconn.status == ConnStatus.OK and self.pgconn.transaction_status != _IDLE

    def _check_intrans_gen(self: Any, attribute: str) -> Steps[None]:
        """Let a run choose how its transaction begins, though one was begun ahead."""
        if self.begun and not self.answered:
            yield from self._exec_command(b"ROLLBACK")
            self.begun, self._dropped = False, True
        yield from super()._check_intrans_gen(attribute)  # type: ignore[misc]  # psycopg's

    def tpc_begin(self, *_: Any) -> NoReturn:
        """Refuse: a prepared transaction is committed by others."""
        raise RuntimeError(COMMITS_LATER)

    def _begin_wait(self) -> int:
        """Return how the transaction stands, before anything is carried out."""
        if self._over or self._owner not in {None, self._me()}:
            raise psycopg.InterfaceError(OVER)
        self.needs_look, self._began, self._dropped = True, False, False
        return self.pgconn.transaction_status

    def _look(self, before: int) -> None:
        """See whether a transaction was ended by what was just carried out."""
        was_open = before != _IDLE or self._began
        is_ours = self._ends or self._dropped
        if was_open and not is_ours and self.pgconn.transaction_status == _IDLE:
            self.ended = True
        self._was_open = self.pgconn.transaction_status in _OPEN

    def has_ended(self) -> bool:
        """Tell whether somebody else ended a transaction, by libpq itself, say."""
        if self._was_open and self.pgconn.transaction_status == _IDLE:
            self.ended = True
        return self.ended

    @staticmethod
    def _me() -> Any:
        return get_ident()

    def heed(self: Any, results: Sequence[PGresult], error: psycopg.Error | None = None) -> bool:
        """Look at what a string of statements did; True: an isolation level may have been set.

        psycopg begins a transaction before each statement, so that there is one behind it.
        """
        tags = {(result.command_status or b"").decode() for result in results}
        answered = error is None or error.sqlstate is not None
        unseen = "ROLLBACK" in tags and len(results) > 1  # AND CHAIN, perhaps: what is left?
        if unseen or tags & _ENDING_TAGS or (answered and self.pgconn.transaction_status == _IDLE):
            self.ended = True
        return "SET" in tags

    def judge(self, statement: Any) -> None:
        """Refuse what ends the transaction.

        Raises:
            RuntimeError: it does, as far as its words tell.
        """
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
        word = own_row(self.fence)
        self.pgconn.send_query_params(word.sql, word.values, param_types=word.types)
        (result,) = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)

    def lock_if_snapshot(self) -> Steps[None]:
        """Lock the own row if a statement chose an isolation that needs it; SHOW takes none."""
        if self.pgconn.transaction_status == TransactionStatus.INTRANS:
            self.pgconn.send_query(b"SHOW transaction_isolation")
            (result,) = yield from generators.execute(self.pgconn)
            if result.get_value(0, 0) in _SNAPSHOT_NAMES:
                yield from self._lock_own_row()
