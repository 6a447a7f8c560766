"""The end of runs on a connection: writes, resets, outcome, COMMIT, a check, in one round trip.

One run ends on the connection that its handler had. Runs whose handlers only asked to write end
many at once, each in a transaction of its own. Names that are private to psycopg are used here;
``driver_internals`` checks them at start.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.domain.groups import StartedTask
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.connection.sessions import (
    FIND_LEFTOVERS,
    FIRE,
    FIRE_AND_RESET,
    FLUSH,
    NO_TABLES,
    RESETS,
    SAME_ENCODING,
    UNFLUSHED,
)
from tasks_app.pool.runs.settle_success import (
    SuccessStatement,
    is_fence_lost,
    started_by_answer,
    success_statements,
)
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS, generators
from tasks_app.runtime.handler_db.statements import Sent, Write, note_query, sent_as

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
"""What psycopg carries out, waiting for the server at each yield."""

BEGIN_TEXT = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN, COMMIT = b"tasks_app begins", b"tasks_app COMMIT"
_CHECKS, _FLUSHES = b"tasks_app checks for leftovers", b"tasks_app flushes"
_ENCODED, _SETS_UTF8 = b"tasks_app checks the encoding", b"tasks_app sets UTF-8"
_SHARES = b"tasks_app checks, does not flush"
UNDOING = {b"tasks_app fires": FIRE} | {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}
_OURS = {
    **UNDOING,
    _ENCODED: SAME_ENCODING,
    _SETS_UTF8: b"SET LOCAL client_encoding TO 'UTF8'",
    _SHARES: UNFLUSHED + b", " + NO_TABLES.removeprefix(b"SELECT "),
    COMMIT: b"COMMIT",
    _CHECKS: FIND_LEFTOVERS,
    _FLUSHES: FLUSH,
    _BEGIN: BEGIN_TEXT,
}
"""The statements of each end, by the names under which they are prepared."""
_OF_WHAT_IS_PREPARED = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)


class OutcomeRefusedError(Exception):
    """The outcome was not written, and nothing was committed: another attempt owns the task."""


class NotTriedError(Exception):
    """Nothing of it was done, because of one before it in the same round trip."""


def in_time(steps: Steps[T], patience_s: float) -> Steps[T]:
    """Carry out steps that get an error where they wait if they take longer.

    They end their connection then, which the server notices (``client_connection_check_interval``).
    psycopg asks ten times a second, so the error may be 0.1 s late.
    """
    ends = time.monotonic() + patience_s
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready or time.monotonic() < ends:
                wanted = steps.send(ready)
            else:
                late = f"The server did not answer within {patience_s:g} s."
                wanted = steps.throw(errors.OperationalError(late))
    except StopIteration as end:
        done: T = end.value
        return done


@dataclass(slots=True)
class RunEnd:
    """What one COMMIT takes along."""

    settlements: Sequence[Settlement] = ()
    """The outcomes that commit with it; of several tasks, if one call ran them. Empty: none,
    because the run goes on."""
    writes: Sequence[Write] = ()  # statements of the handler that were not sent yet
    started: list[StartedTask] = field(default_factory=list)  # callbacks of groups that it created
    stands: bool = False
    """Whether a run's own COMMIT was answered: an error after it changes nothing."""


class _Ready(NamedTuple):
    """The same in the words of libpq."""

    ending: RunEnd
    last: Sequence[SuccessStatement]  # of all outcomes
    sent: Sequence[Sent]


class EndsRuns:
    """What a connection of psycopg's does to end runs."""

    pgconn: PGconn
    is_spoiled = False  # whether something stays in the session that the next run would see
    needs_check = False  # whether it was used since the session was last checked for leftovers
    sent_unproven = False
    """Whether a late write of unknown kind was sent, which may have dropped what is prepared."""
    resets = True  # whether what its handler has set is taken back
    names: set[bytes]  # names of the statements that are prepared in this session

    @property
    def keeps_statements(self: Any) -> bool:
        """Whether its session keeps what is prepared, which a pooler's does not."""
        dropped = self.sent_unproven or self.is_spoiled  # or may be, by DEALLOCATE ALL say
        return SHARED_SESSIONS.works and self.prepare_threshold is not None and not dropped

    def end(self, ending: RunEnd) -> Steps[None]:
        """End the run whose transaction is open here, or that wrote nothing before.

        If it raises, nothing was committed; psycopg's errors without an SQLSTATE leave that open.
        """
        (error,) = yield from self._end([self._made_ready(ending)], shares=False)
        if error is not None:
            raise error

    def end_each(self, endings: Sequence[RunEnd]) -> Steps[list[Exception | None]]:
        """End each run in a transaction of its own, all in one round trip, which flushes the log.

        Returns:
            Why each did not commit; None: it did, and is on disk.

        Raises:
            psycopg.Error: the connection was lost, and nothing is known of any; or none was tried.
        """
        ready, unready = list[_Ready](), list[Exception]()
        for ending in endings:
            try:
                ready.append(self._made_ready(ending))
            except (Exception, SystemExit):  # a dumper of the user's may raise anything
                behind = len(endings) - len(ready) - 1
                unready = [RuntimeError("Its parameters cannot be read.")]
                unready += [NotTriedError() for _ in range(behind)]
                break
        ended = yield from self._end(ready, shares=True)
        return [*ended, *unready]

    def _made_ready(self: Any, ending: RunEnd) -> _Ready:
        """Raise psycopg.Error if parameters are missing, or of types that psycopg does not know."""
        assert ending.settlements  # noqa: S101  else nothing ends
        sent = [sent_as(self, write) for write in ending.writes]
        if not self.keeps_statements:
            sent = [one._replace(name=b"") for one in sent]
        return _Ready(ending, success_statements(ending.settlements), sent)

    def _end(self: Any, ready: Sequence[_Ready], *, shares: bool) -> Steps[list[Exception | None]]:
        """Send all, then read all; ``shares``: each begins here, and all are flushed together."""
        for last in (each for one in ready for each in one.last):
            yield from self._prepare(last)
        pgconn, keeps = self.pgconn, self.keeps_statements
        ended, answers = list[Exception | None](), list[PGresult]()
        try:
            named = self._send_all(ready, shares=shares)
            yield from generators.send(pgconn)
            for one, names in zip(ready, named, strict=True):
                answers = yield from self._until_sync()
                ended.append(self._failure(one, names, answers))
            flushed = (yield from self._until_sync())[0] if shares else None
            if keeps and shares:
                answers = yield from self._until_sync()
            leftovers = answers[-1] if keeps else None  # of one run it came behind its COMMIT
            pgconn.exit_pipeline_mode()
            if flushed is not None:
                yield from self._check_flushed(flushed)
        except BaseException:
            pgconn.finish()  # what is still to come is not known
            raise
        if leftovers is not None and not any(ended):
            self._note_leftovers(leftovers)
        elif self.prepare_threshold is None:  # the next statement meets another session
            self.needs_check = False
        return ended

    def _send_all(self, ready: Sequence[_Ready], *, shares: bool) -> list[list[bytes]]:
        """Return for each run the names of the statements behind its answers.

        The flush and the check for leftovers come last.
        """
        pgconn, known = self.pgconn, {*self.names}
        begins = shares or pgconn.transaction_status == TransactionStatus.IDLE
        pgconn.enter_pipeline_mode()
        named = list[list[bytes]]()
        for one in ready:
            named.append(self._send(one, known, begins=begins, shares=shares))
            if shares:
                pgconn.pipeline_sync()
        if shares:
            self._send_ours(_FLUSHES)
            pgconn.pipeline_sync()
        if self.keeps_statements:
            self._send_ours(_CHECKS)
        if self.keeps_statements or not shares:
            pgconn.pipeline_sync()
        return named

    def _prepare(self: Any, last: SuccessStatement) -> Steps[None]:
        """Prepare an end's statements, once a session: its search_path decides the tables."""
        if last.name in self.names or not self.keeps_statements:
            return
        self.pgconn.send_query(FIRE_AND_RESET)
        for result in (yield from generators.execute(self.pgconn)):
            if result.status == ExecStatus.FATAL_ERROR:
                raise errors.error_from_result(result)
        ours = [(n, s, None) for n, s in _OURS.items() if n not in self.names]
        for name, sql, types in [*ours, last[:3]]:
            self.pgconn.send_prepare(name, sql, types)
            (result,) = yield from generators.execute(self.pgconn)
            if result.status != ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)
            self.names.add(name)

    def _send(self, one: _Ready, known: set[bytes], *, begins: bool, shares: bool) -> list[bytes]:
        """Send an end up to its COMMIT; return the names of the statements behind its answers.

        Names that it prepares are added to the ``known``. One that ``shares`` its round trip does
        not wait for the disk, and fails if its writes made temporary tables.
        """
        names = [_BEGIN] * begins
        for name in names:
            self._send_ours(name)
        for write in one.sent:
            names += self._send_write(write, is_known=write.name in known)
            known.add(write.name)
        before = [_ENCODED] * (len(one.sent) > 1)
        if self.resets:
            before += [*UNDOING, *[_SETS_UTF8] * (not self.keeps_statements)]
        before += [_SHARES] * shares
        for name in before:
            self._send_ours(name)
        for last in one.last:
            if self.keeps_statements:
                self.pgconn.send_query_prepared(last.name, last.values)
            else:
                self.pgconn.send_query_params(last.sql, last.values, param_types=last.types)
        self._send_ours(COMMIT)
        return [*names, *before, *[last.name for last in one.last], COMMIT]

    def _send_ours(self, name: bytes) -> None:
        if self.keeps_statements:
            self.pgconn.send_query_prepared(name, None)
        else:
            self.pgconn.send_query_params(_OURS[name], None)

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

    def _until_sync(self) -> Steps[list[PGresult]]:
        answers: list[PGresult] = []
        while (results := (yield from generators.fetch_many(self.pgconn))) and (
            results[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers.append(results[0])
        return answers

    def _failure(
        self, one: _Ready, names: Sequence[bytes], answers: Sequence[PGresult]
    ) -> Exception | None:
        """Return why an end did not commit, and note what is prepared now; None: it did."""
        results = answers[: len(names)]  # the check for leftovers may be behind them
        failed = (n for n, each in enumerate(results) if each.status == ExecStatus.FATAL_ERROR)
        number = next(failed, None)
        if self.keeps_statements:
            self.names.update(names[:number])
        if number is not None:
            return self._why(one, names, number, errors.error_from_result(answers[number]))
        commit = len(names) - 1
        for last in answers[commit - len(one.last) : commit]:
            if last.ntuples:
                one.ending.started.extend(started_by_answer(last.get_value(0, 0)))
        return None

    def _why(
        self, one: _Ready, names: Sequence[bytes], number: int, error: psycopg.Error
    ) -> Exception:
        name = names[number]
        if name == _BEGIN and isinstance(error, errors.InFailedSqlTransaction):
            return NotTriedError()  # one before it failed
        writes = [
            w for w, sent in zip(one.ending.writes, one.sent, strict=True) if sent.name == name
        ]
        if writes:  # of those without a name the answers come in their order
            note_query(error, writes[0 if name else names[:number].count(b"")])
        if isinstance(error, _OF_WHAT_IS_PREPARED):  # dropped, or made for another table
            self.is_spoiled = True
        if any(name == last.name for last in one.last) and is_fence_lost(error):
            refused = OutcomeRefusedError()
            refused.__cause__ = error
            return refused
        return error

    def _check_flushed(self, flushed: PGresult) -> Steps[None]:
        """Raise if the commits before it may not be on disk.

        For a role that may not write to the log the server flushes a moment later.
        """
        if self.pgconn.transaction_status == TransactionStatus.INERROR:  # it was not carried out
            self.pgconn.send_query(b"ROLLBACK; " + FLUSH)
            (_, flushed) = yield from generators.execute(self.pgconn)
        if flushed.status == ExecStatus.FATAL_ERROR:
            error = errors.error_from_result(flushed)
            if not isinstance(error, errors.InsufficientPrivilege):
                raise error

    def _deallocate(self: Any, name: bytes | None) -> Steps[None]:
        """Forget what is prepared: after a ROLLBACK psycopg deallocates all of it."""
        if name is None:
            self.names.clear()
        yield from super()._deallocate(name)  # type: ignore[misc]  # psycopg's

    def check_leftovers(self) -> Steps[None]:
        """Check the session after an end without a COMMIT of ours."""
        self.pgconn.send_query(FIND_LEFTOVERS)
        (result,) = yield from generators.execute(self.pgconn)
        self._note_leftovers(result)

    def _note_leftovers(self, found: PGresult) -> None:
        if found.status != ExecStatus.TUPLES_OK or found.get_value(0, 0) != b"f":
            self.is_spoiled = True
        self.needs_check = False


class _Foreign(EndsRuns):
    """On a connection that is not ours: nothing is prepared, and leftovers are not checked."""

    prepare_threshold = None

    def __init__(self, raw: psycopg.Connection[Any], *, resets: bool) -> None:
        self.pgconn, self.names, self.resets = raw.pgconn, set(), resets
        self.connection, self.adapters = raw, raw.adapters  # what psycopg asks who adapts values


def end_on(raw: psycopg.Connection[Any], ending: RunEnd, *, resets: bool) -> None:
    """End a run in another's open transaction, which is in error if this raises.

    ``resets``: take the session's settings back first, such as a search_path.
    """
    with raw.lock:
        raw.wait(_Foreign(raw, resets=resets).end(ending))
