"""The settler: outcomes to the database, together where possible, waiting for nobody's lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from random import Random

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.handlers.settlement import BAD_OUTCOME
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.run import Cause, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import tell
from tasks_app.pool.runs.settle import settle_group, settle_one, still_held
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import Remedy, patience_s, remedy_for, sqlstate
from tasks_app.runtime.execution.late_commits import LateCommits
from tasks_app.runtime.execution.notices import (
    count_settled,
    notices_of,
    tell_lost,
    tell_settled,
)
from tasks_app.runtime.hints.hints import HINTS
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.inflight.inflight import InFlight

log = quiet_logger(__name__)

LAST_PATIENCE_S = 10.0
"""How long a child that stops waits for a database that is away; then leases end, and a rescue
follows."""
REFUSED_WAIT_S = 5.0
"""How long a child begins nothing new while its outcomes are refused."""
LATE_PATIENCE_S = 5.0
"""How long late commits may take that share a round trip: renewals wait meanwhile."""
MOST = 1_000
LOCKED_WAIT_S = 0.5
"""Until an outcome is tried again whose row somebody else holds."""


class Settler:
    """Writes what has ended. Used by main thread and housekeeper, one at a time."""

    def __init__(
        self, database: Database, inflight: InFlight, late_patience_s: float = LATE_PATIENCE_S
    ) -> None:
        self._database = database
        self._inflight = inflight
        self._late = LateCommits(database, inflight, late_patience_s)
        self._turn = threading.Lock()
        self._most = MOST
        self.last_patience_s = LAST_PATIENCE_S
        self._spared_until = 0.0
        self._rng = Random()  # noqa: S311  any order will do

    def takes(self, settlement: Settlement) -> bool:
        """Whether what its handler asked to write may be committed here, with the outcome."""
        return self._late.takes(settlement)

    @property
    def cut_short(self) -> bool:
        """Whether the last flush left outcomes that it had no time for."""
        return self._late.cut_short

    def flush_unless_busy(self) -> None:
        """Do :meth:`flush`, if no other thread does."""
        if not self._turn.locked():
            self.flush()

    def flush(self) -> None:
        """Write all finished outcomes, waiting for nobody.

        A row that somebody holds (an open cancel, say) stays in flight and is tried again soon.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer, or refused; what is not written
                stays in flight.
        """
        notices: list[Notice] = []
        try:
            with self._turn:
                self._late.cut_short = False
                settlements = self._inflight.finished()
                if not settlements:
                    return
                try:
                    for told in self._write_all(settlements):
                        notices += told
                    self._spared_until = 0.0
                except DBAPIError:
                    self._late.cut_short = False  # nobody is to ask for the rest at once
                    raise
                finally:
                    self._inflight.put_off(LOCKED_WAIT_S)
        finally:  # hooks are told without the lock
            HOOKS.tell(notices)

    def flush_quietly(self) -> None:
        """Write all finished outcomes now if the database answers; else they stay in flight.

        A database that has just refused is not asked again before each of many tasks.
        """
        if time.monotonic() < self._spared_until:
            return
        try:
            self.flush()
        except Exception as error:  # what is claimed would be left behind by whatever came out
            log.warning("outcomes wait for the database: %s", type(error).__name__)

    def flush_until_answered(self) -> None:
        """Return when the database has answered for every outcome, however long it is away.

        A child that stops gives up after a while; so does one whose database answers, but refuses.
        """
        began = time.monotonic()
        while True:
            try:
                self.flush()
            except Exception as error:
                log.warning("outcomes wait for the database: %s", type(error).__name__)
                waited = time.monotonic() - began > REFUSED_WAIT_S
                refused = remedy_for(error) is not Remedy.SPARE
                if self._gives_up(began) or (waited and refused):
                    return
                time.sleep(patience_s())
            else:
                return

    def settle_until_answered(self, settlement: Settlement) -> State | None:
        """Write one outcome now and wait for the answer; None: the fence was lost.

        The fence judges a repeated try, so asking again is safe. A child that stops gives up after
        a while, and then it is the lease that is lost.
        """
        began = time.monotonic()
        while True:
            called: list[Called] = []
            try:
                with self._database.single() as connection:
                    state = settle_one(connection, settlement, called=called)
                HINTS.called(called)
                HINTS.again([settlement] if state is State.PENDING else [])
                if state is not None:
                    tell_settled([settlement], {settlement.fence.task_id: state})
                return state
            except SQLAlchemyError as error:
                if isinstance(error, DBAPIError) and remedy_for(error) is Remedy.REPLACE:
                    if settlement.event is Event.FAIL:
                        self._tell_refused(settlement, error)
                        return None
                    settlement = _unstorable(settlement, error)
                    continue
                log.warning("a settle was not answered, trying again: %s", type(error).__name__)
                if self._gives_up(began):
                    return None
                time.sleep(patience_s())

    def _gives_up(self, began: float) -> bool:
        return self._inflight.stopping.is_set() and time.monotonic() - began > self.last_patience_s

    def _write_all(self, settlements: list[Settlement]) -> Iterator[Sequence[Notice]]:
        """Write in groups: all at once, or smaller and mixed anew after one was refused.

        So an outcome that is refused stops no other for long, and none that is written in another
        way. Yields what there is to tell of each group that was written.
        """
        refused: DBAPIError | None = None
        late = [s for s in settlements if s.writes]
        settlements = [s for s in settlements if not s.writes] if late else settlements
        if len(settlements) > self._most:
            self._rng.shuffle(settlements)
        while settlements:
            group, settlements = settlements[: self._most], settlements[self._most :]
            try:
                yield from self._write(group)
            except DBAPIError as error:
                self._spare()
                self._most = max(1, len(group) // 2)
                if remedy_for(error) is Remedy.SPARE:
                    raise
                refused = error
                break
            self._most = min(MOST, 2 * self._most)
        try:
            yield from self._late.commit(late)
        except DBAPIError:
            self._spare()
            raise
        if refused is not None:
            raise refused

    def _spare(self) -> None:
        self._spared_until = time.monotonic() + patience_s()

    def _write(self, settlements: list[Settlement]) -> Iterator[Sequence[Notice]]:
        """Write a group with one statement; what the database refuses splits it."""
        called: list[Called] = []
        try:
            with self._database.single() as connection:
                done = settle_group(connection, settlements, called=called)
                left = [s for s in settlements if s.fence.task_id not in done]
                held = still_held(connection, [s.fence for s in left]) if left else set()
        except DBAPIError as error:
            if remedy_for(error) is not Remedy.REPLACE:
                raise
            yield from self._replace(settlements, error)
            return
        count_settled(settlements, done)
        HINTS.called(called)
        HINTS.again(settlements)
        for settlement in left:
            if settlement.fence.task_id not in held:
                tell_lost(settlement)
        self._inflight.drop(*(s.fence for s in settlements if s.fence.task_id not in held))
        yield notices_of(settlements, done)

    def _replace(
        self, settlements: list[Settlement], error: DBAPIError
    ) -> Iterator[Sequence[Notice]]:
        """One member's data stops a group: write each alone, and a failure for what cannot be."""
        if len(settlements) > 1:
            for settlement in settlements:
                yield from self._write([settlement])
        elif settlements[0].event is not Event.FAIL:
            yield from self._write([_unstorable(settlements[0], error)])
        else:  # not even the failure fits: after its lease the rescuer takes it
            self._tell_refused(settlements[0], error)
            self._inflight.drop(settlements[0].fence)

    def _tell_refused(self, settlement: Settlement, error: DBAPIError) -> None:
        with self._database.single() as connection:
            tell(connection, "settling of tasks", [settlement.fence.task_id], error)


def _unstorable(settlement: Settlement, error: BaseException) -> Settlement:
    """Turn an outcome that the database refuses into a failure that says so."""
    sentence = f"The database refused it with SQLSTATE {sqlstate(error)}."
    cause = Cause(BAD_OUTCOME, clean(sentence, 200))
    return settlement._replace(event=Event.FAIL, result=None, cause=cause)
