"""What a handler's psycopg connection does beside psycopg's own, plain or async.

COMMIT is the executor's. It carries the outcome along, in one round trip with the resets of what
the handler had set. That a transaction ended otherwise is seen by what libpq says.

Private names of psycopg's stand here and in ``handler_connections`` alone.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, TypeVar

import psycopg
from psycopg import IsolationLevel, errors, generators
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq import PGconn as Socket
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.domain.group import Called
from tasks_app.domain.outcome import Fail
from tasks_app.domain.task import Fence, Settlement
from tasks_app.pool.session_state import FIRE, LOOK, RESET, RESETS
from tasks_app.pool.succeed import LastWord, is_fence_lost, last_word, own_row
from tasks_app.runtime.handler_words import COMMITS_LATER, ends_transaction, stays_in_session

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
"""What psycopg carries out between its waits for the server."""

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
_SNAPSHOTS = {IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE}
_SNAPSHOT_NAMES = {level.name.replace("_", " ").lower().encode() for level in _SNAPSHOTS}
_COMMIT = b"tasks_app commits"
_BEFORE = {b"tasks_app fires": FIRE} | {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}
_OURS = {**_BEFORE, _COMMIT: b"COMMIT", b"tasks_app looks": LOOK}
"""What each end says, by the names under which it is prepared."""
_OF_A_RUN = {
    "fence",
    "permit",
    "ended",
    "_refused",
    "is_spoiled",
    "needs_look",
    "_over",
    "_ends",
    "_unread",
}
_ENDING_TAGS = {"COMMIT", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION"}


class FenceLostError(Exception):
    """The outcome was not written, and nothing was committed: another attempt owns the task."""


@dataclass(slots=True)
class Permit:
    """For one COMMIT."""

    settlement: Settlement | None = None
    """What goes with it; None: nothing, for the run goes on."""
    called: list[Called] = field(default_factory=list)
    """Callbacks that it has created."""


_NOBODY = Socket.connect_start(b"=")  # it cannot be read, so that no server is asked
_NOBODY.finish()


class OfRun:
    """What both kinds have in common."""

    pgconn: PGconn
    fence: Fence | None = None
    """Of the run whose it is."""
    permit: Permit | None = None
    ended = False
    """Whether somebody else ended a transaction here."""
    _refused = False
    """Whether somebody else wanted to COMMIT: SQLAlchemy rolls back behind that."""
    rolled_back = False
    """Whether anybody rolled back."""
    is_spoiled = False
    """Whether something stays in the session that the next run would meet."""
    answered = False
    """Whether the server has answered this run."""
    needs_look = False
    """Whether it was used since the session was last looked at."""
    _over = False
    _ends = False
    """Whether it is we who end it."""
    _unread = False
    """Whether an answer to :meth:`send_reset` is to come."""
    _names: set[bytes]
    """Of the statements that are prepared in this session."""
    _template: dict[str, Any]
    """What psycopg and SQLAlchemy keep of the connection while it is new."""

    def be_template(self) -> None:
        """Remember how a new connection is; what is prepared stays with its session."""
        self._names = set()
        self._template = {k: v for k, v in vars(self).items() if k not in _OF_A_RUN}

    def hand_on(self: Any) -> Any:
        """Return what the next run is to have of the session, and be closed."""
        self._over = True
        heir = type(self)(self.pgconn)
        vars(heir)["_template"] = template = self._template
        for name, value in template.items():
            vars(heir)[name] = copy.copy(value) if isinstance(value, list | deque) else value
        adapters = template["_adapters"]
        vars(heir)["_adapters"] = adapters and psycopg.adapt.AdaptersMap(adapters)
        self.pgconn = _NOBODY
        return heir

    @property
    def is_at_work(self) -> bool:
        """Whether a run did something that its end has to see to."""
        return self.ended or self._refused or self.pgconn.transaction_status != _IDLE

    def check(self: Any) -> None:
        """Look whether a run may commit.

        Raises:
            Fail: its transaction was ended: what it wrote must not be written again.
            RuntimeError: it was closed, or something is open.
        """
        if self.ended:
            raise Fail(ENDED)
        if self._refused:
            raise RuntimeError(COMMITS_LATER)
        if self.closed and not self.broken:
            raise RuntimeError(CLOSED)
        pgconn = self.pgconn
        if (
            pgconn.pipeline_status != PipelineStatus.OFF
            or pgconn.transaction_status == TransactionStatus.ACTIVE
        ):
            raise RuntimeError(UNFINISHED)

    def _rolls_back(self) -> bool:
        """Tell whether there is something to roll back; what is at work is broken off.

        Whoever streams, or runs a statement in a thread, holds psycopg's lock; nobody waits for it.
        """
        self.rolled_back = True
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            self.pgconn.finish()
        return self.pgconn.status == ConnStatus.OK and self.pgconn.transaction_status != _IDLE

    def tpc_begin(self, *_: Any) -> NoReturn:
        """Refuse: a prepared transaction is committed by others."""
        raise RuntimeError(COMMITS_LATER)

    def _begin_wait(self) -> int:
        """Return how the transaction stands, before anything is carried out."""
        if self._over:
            raise psycopg.InterfaceError(OVER)
        self.needs_look = True
        return self.pgconn.transaction_status

    def _look(self, before: int) -> None:
        """See whether a transaction was ended by what was just carried out."""
        if before != _IDLE and self.pgconn.transaction_status == _IDLE and not self._ends:
            self.ended = True

    def heed(self: Any, results: Sequence[PGresult], error: psycopg.Error | None = None) -> bool:
        """Look at what a string of statements did; True: an isolation level may have been set.

        psycopg begins a transaction before each statement, so that there is one behind it.
        """
        tags = {(result.command_status or b"").decode() for result in results}
        answered = error is None or error.sqlstate is not None
        if tags & _ENDING_TAGS or (answered and self.pgconn.transaction_status == _IDLE):
            self.ended = True
        return "SET" in tags

    def judge(self, statement: Any) -> None:
        """Refuse what ends the transaction.

        Raises:
            RuntimeError: it does, as far as its words tell.
        """
        if isinstance(statement, bytes):
            statement = statement.decode(errors="replace")
        if isinstance(statement, str):
            if ends_transaction(statement):
                raise RuntimeError(COMMITS_LATER)
            self.is_spoiled = self.is_spoiled or stays_in_session(statement)

    def _take_permit(self) -> Permit:
        permit, self.permit = self.permit, None
        if permit is None:
            self._refused = True
            raise RuntimeError(COMMITS_LATER)
        return permit

    def _word_of(self: Any, permit: Permit) -> LastWord | None:
        """Return the outcome as a prepared statement; None: it cannot be one.

        Not of a member of a group, which is counted by a statement that has an answer.
        """
        settlement = permit.settlement
        if settlement is None or settlement.task is None or settlement.task.in_group:
            return None
        pgconn = self.pgconn
        fits = (
            pgconn.transaction_status == TransactionStatus.INTRANS
            and self.prepare_threshold is not None  # none: a pooler deals out its servers
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"  # as a last word's
        )
        return last_word(settlement) if fits else None

    def _end(self: Any, last: LastWord) -> Steps[None]:
        """Reset, settle, COMMIT and look, in one round trip.

        Raises:
            FenceLostError: nothing was committed.
            psycopg.Error: nothing was committed; without an SQLSTATE nobody knows.
        """
        pgconn = self.pgconn
        yield from self._prepare(last)
        answers: list[PGresult] = []
        try:
            pgconn.enter_pipeline_mode()
            for name in _OURS:
                if name is _COMMIT:
                    pgconn.send_query_prepared(last.name, last.values)
                pgconn.send_query_prepared(name, ())
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            while (results := (yield from generators.fetch_many(pgconn))) and (
                results[0].status != ExecStatus.PIPELINE_SYNC
            ):
                answers.append(results[0])
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()  # nobody knows what is still to come
            raise
        *before_look, look = answers
        for number, answer in enumerate(before_look):
            if answer.status == ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(answer)
                if isinstance(error, errors.InvalidSqlStatementName):
                    self._names.clear()  # somebody dropped them
                if number == len(_BEFORE) and is_fence_lost(error):
                    raise FenceLostError from error
                raise error
        self._learn(look)

    def _prepare(self: Any, last: LastWord) -> Steps[None]:
        """Prepare what each end says, once a session."""
        if last.name in self._names:
            return
        for name, sql, types in [(n, s, ()) for n, s in _OURS.items()] + [last[:3]]:
            self.pgconn.send_prepare(name, sql, types)
            (result,) = yield from generators.execute(self.pgconn)
            if result.status != ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)
        self._names.update(_OURS, (last.name,))

    def _deallocate(self: Any, name: bytes | None) -> Steps[None]:
        """After a ROLLBACK psycopg forgets all that was prepared, by whomever."""
        if name is None:
            self._names.clear()
        yield from super()._deallocate(name)  # type: ignore[misc]  # psycopg's

    def _learn(self, look: PGresult) -> None:
        if look.status != ExecStatus.TUPLES_OK or look.get_value(0, 0) != b"f":
            self.is_spoiled = True
        self.needs_look = False

    def send_reset(self) -> None:
        """Have settings taken back, without waiting: the next wait reads the answer first."""
        if self.pgconn.transaction_status == TransactionStatus.INTRANS:
            self.pgconn.send_query(RESET)
            self.pgconn.flush()
            self._unread = True

    def _leave(self) -> Steps[None]:
        """Look after the end, where that did not come with a COMMIT of ours."""
        self.pgconn.send_query(LOOK)
        (result,) = yield from generators.execute(self.pgconn)
        self._learn(result)

    def _start_query(self: Any) -> Steps[None]:
        begins = self.pgconn.transaction_status == _IDLE
        yield from super()._start_query()  # type: ignore[misc]  # psycopg's
        if begins and self._isolation_level in _SNAPSHOTS and not self._pipeline:
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
