"""The end of a run on its connection: resets, outcome, COMMIT and a look, in one round trip.

Names that are private to psycopg are used here and in ``handler_driver``; ``driver_internals``
checks them at start.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.connection.session_state import BETWEEN_RUNS, FIRE, FIRE_AND_RESET, LOOK, RESETS
from tasks_app.pool.runs.settle_success import LastWord, is_fence_lost, last_word
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, SHARED_SESSIONS, generators
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER, stays_in_session
from tasks_app.runtime.handler_db.late_writes import Sent, Write, blame, sent_as

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
    writes: Sequence[Write] = ()
    """Statements of the handler that are still to be sent."""
    is_unused: bool = False
    """Whether the handler never had the connection: a BEGIN of ours is sent before its writes."""
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
        status = pgconn.transaction_status
        fits = (
            SHARED_SESSIONS.works
            and (LATE_WRITES.works or not permit.writes)
            and (status == TransactionStatus.INTRANS or permit.is_unused)
            and self.prepare_threshold is not None  # None: behind a pooler
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"  # as a last word's
        )
        return last_word(settlement) if fits else None

    def end(self: Any, last: LastWord, permit: Permit) -> Steps[None]:
        """Write, reset, settle, COMMIT, look and perhaps BEGIN, in one round trip.

        Raises:
            OutcomeRefusedError: nothing was committed.
            psycopg.Error: nothing was committed; without an SQLSTATE, that is not known.
        """
        pgconn, begins_next = self.pgconn, permit.begins_next
        writes = [sent_as(self, write) for write in permit.writes]
        if any(stays_in_session(write.query) for write in permit.writes):
            self.is_spoiled = True
        yield from self._prepare(last)
        begins = pgconn.transaction_status == TransactionStatus.IDLE
        try:
            names = self._send(last, writes, begins=begins, begins_next=begins_next)
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
                self.names.update(names[:number])
                for write, sent in zip(permit.writes, writes, strict=True):
                    if sent.name == names[number]:
                        blame(error, write)
                raise self._known(error, is_last=names[number] == last.name)
        if writes:
            self.names.update(names)
        self._learn(look)
        self.begun = begins_next and pgconn.transaction_status == TransactionStatus.INTRANS

    def _known(self, error: psycopg.Error, *, is_last: bool) -> Exception:
        """Return what to raise for an answer; ``is_last``: that of the outcome."""
        if isinstance(error, errors.InvalidSqlStatementName):
            self.names.clear()  # the handler dropped them
        if is_last and is_fence_lost(error):
            refused = OutcomeRefusedError()
            refused.__cause__ = error
            return refused
        return error

    def _until_sync(self) -> Steps[list[PGresult]]:
        answers: list[PGresult] = []
        while (results := (yield from generators.fetch_many(self.pgconn))) and (
            results[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers.append(results[0])
        return answers

    def _send(
        self, last: LastWord, writes: Sequence[Sent], *, begins: bool, begins_next: bool
    ) -> list[bytes]:
        """Return the name of the statement behind each answer up to the COMMIT's."""
        pgconn, names = self.pgconn, list[bytes]()
        pgconn.enter_pipeline_mode()
        if begins:
            pgconn.send_query_prepared(_BEGIN, None)
            names.append(_BEGIN)
        for write in writes:
            is_known = write.name in self.names or write.name in names
            names += self._send_write(write, is_known=is_known)
        for name in _OURS:
            if name is _COMMIT:
                pgconn.send_query_prepared(last.name, last.values)
                names.append(last.name)
            pgconn.send_query_prepared(name, None)
            names.append(name)
        pgconn.pipeline_sync()
        if begins_next:  # behind the sync it is neither skipped nor rolled back with the rest
            pgconn.send_query_prepared(_BEGIN, None)
            pgconn.pipeline_sync()
        return names[:-1]

    def _send_write(self, write: Sent, *, is_known: bool) -> list[bytes]:
        """Send one, and prepare it if the session does not know it yet."""
        name, sql, types, values, formats = write
        if not name:
            self.pgconn.send_query_params(sql, values, param_types=types, param_formats=formats)
            return [name]
        if not is_known:
            self.pgconn.send_prepare(name, sql, types)
        self.pgconn.send_query_prepared(name, values, param_formats=formats)
        return [name] if is_known else [name, name]

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
