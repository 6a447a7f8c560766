"""The end of a run on its connection: resets, outcome, COMMIT and a look, in one round trip.

Names that are private to psycopg are used here and in ``handler_driver``; ``driver_internals``
checks them at start.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.connection.session_state import BETWEEN_RUNS, FIRE, FIRE_AND_RESET, LOOK, RESETS
from tasks_app.pool.runs.settle_success import LastWord, is_fence_lost, last_word
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS, generators
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
"""What psycopg carries out, waiting for the server at each yield."""

_COMMIT = b"tasks_app COMMIT"
_BEFORE = {b"tasks_app fires": FIRE} | {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}
_OURS = {**_BEFORE, _COMMIT: b"COMMIT", b"tasks_app looks": LOOK}
"""The statements of each end, by the names under which they are prepared."""
_BEGIN = b"tasks_app begins"
_PREPARED = {**_OURS, _BEGIN: b"BEGIN ISOLATION LEVEL READ COMMITTED"}


class OutcomeRefusedError(Exception):
    """The outcome was not written, and nothing was committed: another attempt owns the task."""


@dataclass(slots=True)
class Permit:
    """What one COMMIT may take along."""

    settlement: Settlement | None = None
    """The outcome that commits with it; None: none, because the run goes on."""
    begins_next: bool = False
    """Another run of this thread follows at once: its BEGIN is sent along."""
    called: list[Called] = field(default_factory=list)
    """Callbacks of groups that it has created."""


class EndOfRun:
    """Of plain and async connections."""

    pgconn: PGconn
    permit: Permit | None = None
    refused = False
    """Whether the handler tried to COMMIT: SQLAlchemy rolls back after that."""
    is_spoiled = False
    """Whether something stays in the session that the next run would see."""
    needs_look = False
    """Whether it was used since the session was last looked at."""
    begun = False
    """Whether a transaction was begun for a run that has sent nothing yet."""
    unread = False
    """Whether the answer to :meth:`send_reset` was not read yet."""
    names: set[bytes]
    """Names of the statements that are prepared in this session."""

    def take_permit(self) -> Permit:
        """Return the permit of the COMMIT that is asked for, and use it up.

        Raises:
            RuntimeError: there is none.
        """
        permit, self.permit = self.permit, None
        if permit is None:
            self.refused = True
            raise RuntimeError(COMMITS_LATER)
        return permit

    def word_of(self: Any, permit: Permit) -> LastWord | None:
        """Return the outcome as a prepared statement; None: it cannot be one.

        A member of a group is counted by a statement whose answer is needed.
        """
        settlement = permit.settlement
        if settlement is None or settlement.task is None or settlement.task.in_group:
            return None
        pgconn = self.pgconn
        fits = (
            SHARED_SESSIONS.works
            and pgconn.transaction_status == TransactionStatus.INTRANS
            and self.prepare_threshold is not None  # None: behind a pooler
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"  # as a last word's
        )
        return last_word(settlement) if fits else None

    def end(self: Any, last: LastWord, *, begins_next: bool) -> Steps[None]:
        """Reset, settle, COMMIT, look and perhaps BEGIN, in one round trip.

        Raises:
            OutcomeRefusedError: nothing was committed.
            psycopg.Error: nothing was committed; without an SQLSTATE, that is not known.
        """
        pgconn = self.pgconn
        yield from self._prepare(last)
        try:
            self._send(last, begins_next=begins_next)
            yield from generators.send(pgconn)
            answers = yield from self._until_sync()
            if begins_next:
                yield from self._until_sync()
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()  # what is still to come is not known
            raise
        *before_look, look = answers
        for number, answer in enumerate(before_look):
            if answer.status == ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(answer)
                if isinstance(error, errors.InvalidSqlStatementName):
                    self.names.clear()  # the handler dropped them
                if number == len(_BEFORE) and is_fence_lost(error):
                    raise OutcomeRefusedError from error
                raise error
        self._learn(look)
        self.begun = begins_next and pgconn.transaction_status == TransactionStatus.INTRANS

    def _until_sync(self) -> Steps[list[PGresult]]:
        answers: list[PGresult] = []
        while (results := (yield from generators.fetch_many(self.pgconn))) and (
            results[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers.append(results[0])
        return answers

    def _send(self, last: LastWord, *, begins_next: bool) -> None:
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        for name in _OURS:
            if name is _COMMIT:
                pgconn.send_query_prepared(last.name, last.values)
            pgconn.send_query_prepared(name, None)
        pgconn.pipeline_sync()
        if begins_next:  # behind the sync it is neither skipped nor rolled back with the rest
            pgconn.send_query_prepared(_BEGIN, None)
            pgconn.pipeline_sync()

    def _prepare(self: Any, last: LastWord) -> Steps[None]:
        """Prepare the statements of an end, once a session: its search_path decides the tables."""
        if last.name in self.names:
            return
        self.pgconn.send_query(FIRE_AND_RESET)
        for result in (yield from generators.execute(self.pgconn)):
            if result.status == ExecStatus.FATAL_ERROR:
                raise errors.error_from_result(result)
        ours = [(n, s, None) for n, s in _PREPARED.items() if n not in self.names]
        for name, sql, types in [*ours, last[:3]]:
            self.pgconn.send_prepare(name, sql, types)
            (result,) = yield from generators.execute(self.pgconn)
            if result.status != ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)
        self.names.update(_PREPARED, (last.name,))

    def _deallocate(self: Any, name: bytes | None) -> Steps[None]:
        """Forget what is prepared: after a ROLLBACK psycopg deallocates all of it."""
        if name is None:
            self.names.clear()
        yield from super()._deallocate(name)  # type: ignore[misc]  # psycopg's

    def _learn(self, look: PGresult) -> None:
        if look.status != ExecStatus.TUPLES_OK or look.get_value(0, 0) != b"f":
            self.is_spoiled = True
        self.needs_look = False

    def send_reset(self) -> None:
        """Reset the settings without waiting: the next wait reads the answer first.

        If a deferred trigger fails, the next statement fails with it.
        """
        if self.pgconn.transaction_status == TransactionStatus.INTRANS:
            self.pgconn.send_query(BETWEEN_RUNS)
            self.pgconn.flush()
            self.unread = True

    def look_after(self) -> Steps[None]:
        """Look at the session after an end that came without a COMMIT of ours."""
        self.pgconn.send_query(LOOK)
        (result,) = yield from generators.execute(self.pgconn)
        self._learn(result)

    def ask(self) -> Steps[None]:
        """Ask the server, outside of any transaction, whether it answers.

        Raises:
            psycopg.Error: it does not.
        """
        self.pgconn.send_query(b"")
        (result,) = yield from generators.execute(self.pgconn)
        if result.status != ExecStatus.EMPTY_QUERY:
            raise errors.error_from_result(result)
        self.needs_look = False
