"""Late commits: outcomes with what their handlers asked to write, many of them in one round trip.

Each is a transaction of its own, under its fence. None waits long: what would hold up those behind
it fails here, and is committed alone then, as a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.settle_success import last_word
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.db.transaction import as_sqlalchemy_raises, give_back
from tasks_app.runtime.execution.notices import count_settled, notices_of, tell_lost
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES, SHARED_SESSIONS
from tasks_app.runtime.handler_db.end_pipeline import OutcomeRefusedError, RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.late_writes import Write
from tasks_app.runtime.handler_db.lending import driver_of, taken
from tasks_app.runtime.hooks import Notice
from tasks_app.runtime.inflight.inflight import InFlight

log = quiet_logger(__name__)

MOST = 32
"""How many go in one round trip: more would save nothing, and hold up whoever waits for them."""
LONGEST_S = 1.0
"""Then nothing more is begun: of many that are stopped one after the other, renewals would wait."""


class LateCommits:
    """Of one child. Its callers take turns."""

    def __init__(self, database: Database, inflight: InFlight) -> None:
        self._database = database
        self._inflight = inflight
        self._unsure: set[Fence] = set()
        """Those whose commit was not answered."""

    def takes(self, settlement: Settlement) -> bool:
        """Whether it can be committed beside others, as far as is known before it is tried.

        A member of a group is counted by a statement whose answer is needed, and a run that is to
        be alone in its process ends so.
        """
        task = settlement.task
        return (
            SHARED_SESSIONS.works
            and LATE_WRITES.works
            and self._database.prepares
            and settlement.sub_status is None
            and not (task is None or task.in_group or task.runs_alone)
        )

    def commit(self, settlements: Sequence[Settlement]) -> Iterator[Sequence[Notice]]:
        """Commit each; yield what there is to tell. What fails here is refused, to end alone.

        A commit that was not answered is tried again: the fence tells whether it stands. The second
        time nobody shares it, since one of them may have ended the connection. What there was no
        time for stays in flight.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer; the rest stays in flight.
        """
        left, ends = deque(settlements), time.monotonic() + LONGEST_S
        with self._lent() as driver:
            while left and time.monotonic() < ends:
                group = [left.popleft() for _ in range(min(MOST, len(left)))]
                number, error = _commit_each(driver, group)
                yield self._committed(group[:number])
                rest = group[number:]
                if isinstance(error, OutcomeRefusedError):
                    self._lost(rest.pop(0))
                elif error is not None and is_unanswered(error):
                    self._unanswered(rest)
                    raise error
                elif error is not None:
                    self._inflight.refuse(rest.pop(0))
                left.extendleft(reversed(rest))

    @contextmanager
    def _lent(self) -> Iterator[HandlerConnection]:
        connection = taken(self._database.brief_engine)
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

    def _lost(self, settlement: Settlement) -> None:
        if settlement.fence in self._unsure:
            self._unsure.discard(settlement.fence)
            log.info("task %s: its commit, which was not answered, stands", settlement.fence[0])
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


def _commit_each(
    driver: HandlerConnection, settlements: Sequence[Settlement]
) -> tuple[int, Exception | None]:
    """Return how many committed, and why the next one did not, as SQLAlchemy would raise it."""
    ends = [RunEnd(last_word(s), [Write(*w) for w in s.writes]) for s in settlements]
    try:
        with driver.lock:
            number, error = driver.as_executor(lambda: driver.wait(driver.end_each(ends)))
        driver.rollback()  # of the one that failed
        if number and error is not None:
            with driver.lock:
                driver.wait(driver.flush_log())
    except psycopg.Error as lost:  # or a statement of ours could not be prepared
        number, error, driver.is_spoiled = 0, lost, True
    return number, as_sqlalchemy_raises(error) if isinstance(error, psycopg.Error) else error
