"""The statements that end runs, as they are sent to the server and answered by it.

Names that are private to psycopg are used here, in ``end_of_run`` and in ``handler_driver``;
``driver_internals`` checks them at start.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tasks_app.domain.coordination.groups import Called
from tasks_app.pool.connection.session_state import (
    FIRE,
    FIRE_AND_RESET,
    FLUSH,
    LOOK,
    NO_TABLES,
    RESETS,
    SAME_ENCODING,
    UNFLUSHED,
)
from tasks_app.pool.runs.settle_success import LastWord, called_by, is_fence_lost
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS, generators
from tasks_app.runtime.handler_db.late_writes import Sent, Write, blame, sent_as

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
"""What psycopg carries out, waiting for the server at each yield."""

BEGIN, LOOKS, FLUSHES, _COMMIT = (
    b"tasks_app begins",
    b"tasks_app looks",
    b"tasks_app flushes",
    b"tasks_app COMMIT",
)
_ENCODED, _SPEAKS = b"tasks_app asks for the encoding", b"tasks_app speaks UTF-8"
_BEFORE = {b"tasks_app fires": FIRE} | {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}
_SHARES = b"tasks_app checks, does not flush"
BEGIN_TEXT = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_PREPARED = {
    **_BEFORE,
    _ENCODED: SAME_ENCODING,
    _SPEAKS: b"SET LOCAL client_encoding TO 'UTF8'",
    _SHARES: UNFLUSHED + b", " + NO_TABLES.removeprefix(b"SELECT "),
    _COMMIT: b"COMMIT",
    LOOKS: LOOK,
    FLUSHES: FLUSH,
    BEGIN: BEGIN_TEXT,
}
"""The statements of each end, by the names under which they are prepared."""
_OF_WHAT_IS_PREPARED = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)


class OutcomeRefusedError(Exception):
    """The outcome was not written, and nothing was committed: another attempt owns the task."""


class NotTriedError(Exception):
    """Nothing of it was done, because of one before it in the same round trip."""


class RunEnd(NamedTuple):
    """What ends one run."""

    last: LastWord
    writes: Sequence[Write]
    called: list[Called]
    """Takes the callback of a group that it has inserted."""


class EndPipeline:
    """Of plain and async connections."""

    pgconn: PGconn
    is_spoiled = False
    """Whether something stays in the session that the next run would see."""
    needs_look = False
    """Whether it was used since the session was last looked at."""
    sent_unproven = False
    """Whether a late write of unknown kind was sent, which may have dropped what is prepared."""
    names: set[bytes]
    """Names of the statements that are prepared in this session."""

    @property
    def keeps_statements(self: Any) -> bool:
        """Whether its session keeps what is prepared, which a pooler's does not."""
        dropped = self.sent_unproven or self.is_spoiled  # or may be, as by DEALLOCATE ALL
        return SHARED_SESSIONS.works and self.prepare_threshold is not None and not dropped

    def prepare(self: Any, last: LastWord) -> Steps[None]:
        """Prepare the statements of an end, once a session: its search_path decides the tables."""
        if last.name in self.names or not self.keeps_statements:
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

    def sent_writes(self: Any, end: RunEnd) -> list[Sent]:
        """Return its writes in the words of libpq.

        Raises:
            psycopg.Error: parameters are missing, or of types that psycopg does not know.
        """
        sent = [sent_as(self, write) for write in end.writes]
        return sent if self.keeps_statements else [one._replace(name=b"") for one in sent]

    def send_end(
        self,
        end: RunEnd,
        writes: Sequence[Sent],
        known: set[bytes],
        *,
        begins: bool,
        shares: bool = False,
    ) -> list[bytes]:
        """Send an end up to its COMMIT; return the name of the statement behind each answer.

        What it prepares is added to the ``known``. One that ``shares`` its round trip does not wait
        for the disk, and fails if its writes made temporary tables.
        """
        names = list[bytes]()
        if begins:
            self.send(BEGIN)
            names.append(BEGIN)
        for write in writes:
            names += self._send_write(write, is_known=write.name in known)
            known.add(write.name)
        asks = (_ENCODED,) if len(writes) > 1 else ()
        speaks = () if self.keeps_statements else (_SPEAKS,)  # a RESET of a pooler's session
        before = (*asks, *_BEFORE, *speaks, *((_SHARES,) if shares else ()))
        pgconn, keeps = self.pgconn, self.keeps_statements
        for name in before:
            if keeps:
                pgconn.send_query_prepared(name, None)
            else:
                pgconn.send_query_params(_PREPARED[name], None)
        self._send_last(end.last)
        self.send(_COMMIT)
        return [*names, *before, end.last.name, _COMMIT]

    def _send_last(self, last: LastWord) -> None:
        if self.keeps_statements:
            self.pgconn.send_query_prepared(last.name, last.values)
        else:
            self.pgconn.send_query_params(last.sql, last.values, param_types=last.types)

    def send(self: Any, name: bytes) -> None:
        """Send a statement of ours that has no values."""
        if self.keeps_statements:
            self.pgconn.send_query_prepared(name, None)
        else:
            self.pgconn.send_query_params(_PREPARED[name], None)

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

    def until_sync(self) -> Steps[list[PGresult]]:
        answers: list[PGresult] = []
        while (results := (yield from generators.fetch_many(self.pgconn))) and (
            results[0].status != ExecStatus.PIPELINE_SYNC
        ):
            answers.append(results[0])
        return answers

    def failure(
        self, end: RunEnd, sent: Sequence[Sent], names: Sequence[bytes], answers: Sequence[PGresult]
    ) -> Exception | None:
        """Return why an end did not commit, and note what is prepared now; None: it did."""
        for number, answer in enumerate(answers):
            if answer.status == ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(answer)
                self._note(names[:number])
                named = [
                    w for w, one in zip(end.writes, sent, strict=True) if one.name == names[number]
                ]
                if named:  # of those without a name the answers come in their order
                    blame(error, named[0 if names[number] else names[:number].count(b"")])
                return self._known(error, is_last=names[number] == end.last.name)
        if sent:
            self._note(names)
        last = answers[len(names) - 2]  # in front of the COMMIT
        if last.ntuples:
            end.called.extend(called_by(last.get_value(0, 0)))
        return None

    def _note(self, names: Sequence[bytes]) -> None:
        if self.keeps_statements:
            self.names.update(names)

    def failure_of_one(
        self, end: RunEnd, sent: Sequence[Sent], names: Sequence[bytes], answers: Sequence[PGresult]
    ) -> Exception | None:
        """Do as :meth:`failure` for one of many, which was not tried if it could not begin."""
        error = self.failure(end, sent, names, answers)
        began = answers[0].status == ExecStatus.COMMAND_OK
        if isinstance(error, errors.InFailedSqlTransaction) and not began:
            return NotTriedError()
        return error

    def _known(self, error: psycopg.Error, *, is_last: bool) -> Exception:
        """Return what to raise for an answer; ``is_last``: that of the outcome."""
        if isinstance(error, _OF_WHAT_IS_PREPARED):  # dropped, or made for another table
            self.is_spoiled = True
        if is_last and is_fence_lost(error):
            refused = OutcomeRefusedError()
            refused.__cause__ = error
            return refused
        return error

    def _deallocate(self: Any, name: bytes | None) -> Steps[None]:
        """Forget what is prepared: after a ROLLBACK psycopg deallocates all of it."""
        if name is None:
            self.names.clear()
        yield from super()._deallocate(name)  # type: ignore[misc]  # psycopg's

    def check_flushed(self, flushed: PGresult) -> None:
        """Pass if commits before it are on disk.

        A role that may not write to the log leaves it to the server, which is a moment later.

        Raises:
            psycopg.Error: that is not known.
        """
        if flushed.status == ExecStatus.FATAL_ERROR:
            error = errors.error_from_result(flushed)
            if not isinstance(error, errors.InsufficientPrivilege):
                raise error

    def learn(self, look: PGresult) -> None:
        """Note what the look at the session has found."""
        if look.status != ExecStatus.TUPLES_OK or look.get_value(0, 0) != b"f":
            self.is_spoiled = True
        self.needs_look = False
