"""The end of a run on its connection: resets, outcome, COMMIT and a look, in one round trip.

Names that are private to psycopg are used here; ``driver_internals`` checks them at start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.connection.session_state import FLUSH, LOOK
from tasks_app.pool.runs.settle_success import last_word
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, generators
from tasks_app.runtime.handler_db.end_pipeline import (
    FLUSHES,
    LOOKS,
    EndPipeline,
    NotTriedError,
    RunEnd,
    Steps,
)
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER
from tasks_app.runtime.handler_db.late_writes import PROVEN, Sent, Write


@dataclass(slots=True)
class Permit:
    """What one COMMIT may take along."""

    settlement: Settlement | None = None
    """The outcome that commits with it; None: none, because the run goes on."""
    writes: Sequence[Write] = ()
    """Statements of the handler that are still to be sent."""
    called: list[Called] = field(default_factory=list)
    """Callbacks of groups that it has created."""


class EndOfRun(EndPipeline):
    """Of plain and async connections."""

    permit: Permit | None = None
    refused = False
    """Whether the handler tried to COMMIT: SQLAlchemy rolls back after that."""

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

    def takes_along(self, writes: Sequence[Write]) -> bool:
        """Whether these may be sent together with the COMMIT."""
        return LATE_WRITES.works and all(write.query in PROVEN for write in writes)

    def end(self: Any, settlement: Settlement, permit: Permit) -> Steps[None]:
        """Write, reset, settle, COMMIT and look, in one round trip.

        Raises:
            OutcomeRefusedError: nothing was committed.
            psycopg.Error: nothing was committed; without an SQLSTATE, that is not known.
        """
        pgconn = self.pgconn
        end = RunEnd(last_word(settlement), permit.writes, permit.called)
        sent = self.sent_writes(end)
        yield from self.prepare(end.last)
        try:
            names = self._send(end, sent)
            yield from generators.send(pgconn)
            answers = yield from self.until_sync()
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()  # what is still to come is not known
            raise
        error = self.failure(end, sent, names, answers)
        if error is not None:
            raise error
        if self.keeps_statements:
            self.learn(answers[-1])
        elif self.prepare_threshold is None:  # the next statement meets another session
            self.needs_look = False

    def _send(self, end: RunEnd, sent: Sequence[Sent]) -> list[bytes]:
        """Return the name of the statement behind each answer up to the COMMIT's."""
        pgconn = self.pgconn
        begins = pgconn.transaction_status == TransactionStatus.IDLE
        pgconn.enter_pipeline_mode()
        names = self.send_end(end, sent, {*self.names}, begins=begins)
        if self.keeps_statements:
            self.send(LOOKS)
        pgconn.pipeline_sync()
        return names

    def end_each(self: Any, ends: Sequence[RunEnd]) -> Steps[list[Exception | None]]:
        """Begin, write, reset, settle and COMMIT for each run by itself, in one round trip.

        A flush of the log is its end, so whoever is answered is on disk.

        Returns:
            Why each did not commit; None: it did.

        Raises:
            psycopg.Error: the connection was lost, and nothing is known of any; or none was tried.
        """
        ready, unready = self._ready(ends)
        for end, _ in ready:
            yield from self.prepare(end.last)
        pgconn, ended = self.pgconn, list[Exception | None]()
        try:
            named = self._send_each(ready)
            yield from generators.send(pgconn)
            for (end, sent), names in zip(ready, named, strict=True):
                answers = yield from self.until_sync()
                ended.append(self.failure_of_one(end, sent, names, answers))
            (flushed,) = yield from self.until_sync()
            (look,) = yield from self.until_sync()
            pgconn.exit_pipeline_mode()
            if pgconn.transaction_status == TransactionStatus.INERROR:  # so that it could not
                pgconn.send_query(b"ROLLBACK; " + FLUSH)
                (_, flushed) = yield from generators.execute(pgconn)
            self.check_flushed(flushed)
        except BaseException:
            pgconn.finish()
            raise
        if not any(ended):
            self.learn(look)
        return [*ended, *unready]

    def _send_each(self, ready: Sequence[tuple[RunEnd, Sequence[Sent]]]) -> list[list[bytes]]:
        """Return such names for each; flush and look come behind all of them."""
        pgconn, named, known = self.pgconn, list[list[bytes]](), {*self.names}
        pgconn.enter_pipeline_mode()
        for end, sent in ready:
            named.append(self.send_end(end, sent, known, begins=True, shares=True))
            pgconn.pipeline_sync()
        self.send(FLUSHES)
        pgconn.pipeline_sync()
        self.send(LOOKS)
        pgconn.pipeline_sync()
        return named

    def _ready(
        self, ends: Sequence[RunEnd]
    ) -> tuple[list[tuple[RunEnd, list[Sent]]], list[Exception]]:
        """Return the ends that can be sent, up to the first that cannot, and why not the others."""
        ready: list[tuple[RunEnd, list[Sent]]] = []
        for end in ends:
            try:
                ready.append((end, self.sent_writes(end)))
            except (Exception, SystemExit):  # a dumper of the user's may raise anything
                behind = len(ends) - len(ready) - 1
                unready = RuntimeError("Its parameters cannot be read.")
                return ready, [unready, *(NotTriedError() for _ in range(behind))]
        return ready, []

    def look_after(self) -> Steps[None]:
        """Look at the session after an end that came without a COMMIT of ours."""
        self.pgconn.send_query(LOOK)
        (result,) = yield from generators.execute(self.pgconn)
        self.learn(result)

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
