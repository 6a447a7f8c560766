"""Late commits: outcomes with what their handlers asked to write, many of them in one round trip.

Each is a transaction of its own, under its fence. None waits long: what would hold up those behind
it fails here, and is committed alone then, as a run. They reach the disk together.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_crowded
from tasks_app.runtime.db.transaction import give_back
from tasks_app.runtime.execution.notices import count_settled, notices_of, tell_lost
from tasks_app.runtime.handler_db.deadline import in_time
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, SHARED_SESSIONS
from tasks_app.runtime.handler_db.ends import NotTriedError, OutcomeRefusedError, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.late_writes import PROVEN, Write
from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.hints.hints import HINTS
from tasks_app.runtime.hooks import Notice
from tasks_app.runtime.inflight.inflight import InFlight

log = quiet_logger(__name__)

MOST = 32
"""How many go in one round trip: more would save nothing, and hold up whoever waits for them."""
MOST_WRITES = 64
"""How many statements of handlers; a run with more commits by itself."""
LONGEST_S = 1.0
"""Then nothing more is begun: of many that are stopped one after the other, renewals would wait."""


class LateCommits:
    """Of one child. Its callers take turns."""

    def __init__(self, database: Database, inflight: InFlight, patience_s: float) -> None:
        """``patience_s``: how long one round trip may take, before each has to be tried alone."""
        self._database = database
        self._inflight = inflight
        self._patience_s = patience_s
        self._unsure: set[Fence] = set()
        """Those whose commit was not answered."""
        self.cut_short = False
        """Whether the last call left some that could be tried at once."""

    def takes(self, settlement: Settlement) -> bool:
        """Whether it can be committed beside others, as far as is known before it is tried.

        A run that is to be alone in its process ends so.
        """
        task = settlement.task
        return (
            SHARED_SESSIONS.works
            and LATE_WRITES.works
            and self._database.prepares
            and len(settlement.writes) <= MOST_WRITES
            and not (task is None or task.runs_alone)
        )

    def commit(self, settlements: Sequence[Settlement]) -> Iterator[Sequence[Notice]]:
        """Commit each; yield what there is to tell. What fails here is refused, to end alone.

        A commit that was not answered is tried again, and nobody shares that, since one of them may
        have ended the connection: where it stands, its fence is gone. What there was no time for
        stays in flight, and ``cut_short`` says so. So it is with a text that is not proven to be a
        write: one run is to send it alone before others may.

        Raises:
            sqlalchemy.exc.DBAPIError: there is no connection; the rest stays in flight.
        """
        left, ends = deque(self._proven(settlements)), time.monotonic() + LONGEST_S
        while left:
            if time.monotonic() >= ends:
                self.cut_short = True
                return
            group = self._first(left)
            try:
                with self._lent() as driver:
                    ended = self._commit_each(driver, group)
            except DBAPIError as refusal:
                if not is_crowded(refusal):
                    raise
                for settlement in (*group, *left):  # there may be one for handlers
                    self._inflight.refuse(settlement)
                return
            if ended is None:
                self._unanswered(group)
                self.cut_short = True
                return
            done, again = self._sorted(group, ended)
            yield self._committed(done)
            left.extendleft(reversed(again))

    def _proven(self, settlements: Sequence[Settlement]) -> Iterator[Settlement]:
        """Yield those whose texts are; of the others, refuse one for each text."""
        refused = set[str]()
        for settlement in settlements:
            texts = {query for query, _ in settlement.writes if query not in PROVEN}
            if not texts:
                yield settlement
            elif refused.isdisjoint(texts):
                refused |= texts
                self._inflight.refuse(settlement)
            else:
                self.cut_short = True

    def _commit_each(
        self, driver: HandlerConnection, settlements: Sequence[Settlement]
    ) -> list[Exception | None] | None:
        """Return why each did not commit, None for those that did; or None: nothing is known."""
        called: list[Called] = []
        ends = [RunEnd(s, [Write(*w) for w in s.writes], called) for s in settlements]
        steps = in_time(driver.end_each(ends), self._patience_s)
        try:
            with driver.lock:
                ended = driver.as_executor(lambda: driver.wait(steps))
        except psycopg.Error as broken:  # it is lost, or a statement of ours could not be prepared
            driver.is_spoiled = True
            behind = (NotTriedError() for _ in settlements[1:])
            return None if driver.closed else [broken, *behind]
        HINTS.called(called)
        return ended

    @contextmanager
    def _lent(self) -> Iterator[HandlerConnection]:
        connection = self._database.brief_engine.connect()
        try:
            yield driver_of(connection)
        finally:
            give_back(connection.close, connection.invalidate)

    def _committed(self, settlements: Sequence[Settlement]) -> Sequence[Notice]:
        states = dict.fromkeys((s.fence.task_id for s in settlements), State.SUCCEEDED)
        count_settled(settlements, states)
        fences = [s.fence for s in settlements]
        self._unsure.difference_update(fences)
        self._inflight.drop(*fences)
        return notices_of(settlements, states)

    def _first(self, left: deque[Settlement]) -> list[Settlement]:
        """Take as many as share a round trip; one that was not answered has it alone."""
        group = [left.popleft()]
        statements = len(group[0].writes)
        while (
            left
            and len(group) < MOST
            and statements + len(left[0].writes) <= MOST_WRITES
            and self._unsure.isdisjoint((group[0].fence, left[0].fence))
        ):
            statements += len(left[0].writes)
            group.append(left.popleft())
        return group

    def _sorted(
        self, group: Sequence[Settlement], ended: Sequence[Exception | None]
    ) -> tuple[list[Settlement], list[Settlement]]:
        """Return those that committed, and those to try again; refuse what failed."""
        done, again = list[Settlement](), list[Settlement]()
        for settlement, error in zip(group, ended, strict=True):
            match error:
                case None:
                    done.append(settlement)
                case NotTriedError():
                    again.append(settlement)
                case OutcomeRefusedError():
                    self._over(settlement)
                case _:
                    self._inflight.refuse(settlement)
        return done, again

    def _over(self, settlement: Settlement) -> None:
        """Its fence is no more: its own commit stands that was not answered, or it was lost."""
        if settlement.fence in self._unsure:
            self._unsure.discard(settlement.fence)
            log.info("task %s: its commit stands, or its lease was lost", settlement.fence.task_id)
        else:
            tell_lost(settlement)
        self._inflight.drop(settlement.fence)

    def _unanswered(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if settlement.fence in self._unsure:
                self._unsure.discard(settlement.fence)
                self._inflight.refuse(settlement)
            else:
                self._unsure.add(settlement.fence)
