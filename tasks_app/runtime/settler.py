"""The settler: outcomes to the database, together where possible, waiting for nobody's lock."""

from __future__ import annotations

import threading
import time

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tasks_app.domain.causes import brief, clean
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.states import Event, State
from tasks_app.domain.task import Cause, Settlement
from tasks_app.pool.settle import settle_group, settle_one, still_held
from tasks_app.runtime.database import Database, is_unanswered, patience_s
from tasks_app.runtime.desk import Desk
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hooks import HOOKS, Notice, of_settlement

log = quiet_logger(__name__)

BAD_OUTCOME = "outcome cannot be stored"
LAST_PATIENCE_S = 10.0
"""How long a child that stops waits for a database that is away; then the lease decides."""
LOCKED_WAIT_S = 0.5
"""Until an outcome is tried again whose row somebody else holds."""


class Settler:
    """Writes what the desk has collected. Used by main thread and clerk, one at a time."""

    def __init__(self, database: Database, desk: Desk) -> None:
        self._database = database
        self._desk = desk
        self._turn = threading.Lock()

    def flush(self) -> None:
        """Write all finished outcomes, waiting for nobody.

        A row that somebody holds (an open cancel, say) stays on the desk and is tried again soon.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer; everything stays on the desk.
        """
        notices: list[Notice] = []
        try:
            with self._turn:
                settlements = self._desk.finished()
                if not settlements:
                    return
                try:
                    self._write(settlements, notices)
                finally:
                    self._desk.put_off(LOCKED_WAIT_S)
        finally:
            HOOKS.tell(notices)

    def flush_quietly(self) -> None:
        """Write all finished outcomes now if the database answers; else they stay on the desk."""
        try:
            self.flush()
        except SQLAlchemyError as error:
            log.warning("outcomes wait for the database: %s", type(error).__name__)

    def flush_until_answered(self) -> None:
        """Return when the database has answered for every outcome, however long it is away.

        A child that stops gives up after a while.
        """
        began = time.monotonic()
        while True:
            try:
                self.flush()
            except SQLAlchemyError as error:
                log.warning("outcomes wait for the database: %s", type(error).__name__)
                if self._gives_up(began):
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
            try:
                with self._database.single() as connection:
                    state = settle_one(connection, settlement)
                HINTS.again([settlement] if state is State.PENDING else [])
                if state is not None and settlement.task is not None:
                    HOOKS.tell([of_settlement(settlement, settlement.task, state)])
                return state
            except SQLAlchemyError as error:
                if _is_data_error(error):
                    if settlement.event is Event.FAIL:
                        log.error(  # noqa: TRY400
                            "task %s cannot be settled: %s", settlement.fence.task_id, brief(error)
                        )
                        return None
                    settlement = _unstorable(settlement, error)
                    continue
                log.warning("a settle was not answered, trying again: %s", type(error).__name__)
                if self._gives_up(began):
                    return None
                time.sleep(patience_s())

    def _gives_up(self, began: float) -> bool:
        return self._desk.stopping.is_set() and time.monotonic() - began > LAST_PATIENCE_S

    def _write(self, settlements: list[Settlement], notices: list[Notice]) -> None:
        """Write a group with one statement; what the database refuses splits it."""
        try:
            with self._database.single() as connection:
                done = settle_group(connection, settlements)
                left = [s for s in settlements if s.fence.task_id not in done]
                held = still_held(connection, [s.fence for s in left]) if left else set()
        except DBAPIError as error:
            if is_unanswered(error):
                raise
            self._split(settlements, error, notices)
            return
        HINTS.again(settlements)
        if HOOKS.wanted:
            notices += [
                of_settlement(s, s.task, done[s.fence.task_id])
                for s in settlements
                if s.fence.task_id in done and s.task is not None
            ]
        for settlement in left:
            if settlement.fence.task_id not in held:
                log.warning(
                    "task %s: the lease was lost, its outcome is not kept", settlement.fence.task_id
                )
        self._desk.drop(*(s.fence for s in settlements if s.fence.task_id not in held))

    def _split(
        self, settlements: list[Settlement], error: DBAPIError, notices: list[Notice]
    ) -> None:
        """One member's data stops a group: write each alone. A deadlock or timeout passes."""
        if len(settlements) > 1:
            for settlement in settlements:
                self._write([settlement], notices)
        elif _is_data_error(error) and settlements[0].event is not Event.FAIL:
            self._write([_unstorable(settlements[0], error)], notices)
        elif _is_data_error(error):  # not even the failure fits: the lease, then the rescuer decide
            log.error("task %s cannot be settled: %s", settlements[0].fence.task_id, brief(error))
            self._desk.drop(settlements[0].fence)
        else:
            log.warning("a settle was refused, trying again: %s", brief(error))


def _is_data_error(error: BaseException) -> bool:
    """SQLSTATE 22* and 23*: what was sent can never be stored, so sending it again is useless."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return state.startswith(("22", "23"))


def _unstorable(settlement: Settlement, error: BaseException) -> Settlement:
    """Turn an outcome that the database refuses into a failure that says so."""
    state = getattr(getattr(error, "orig", None), "sqlstate", "?")
    cause = Cause(BAD_OUTCOME, clean(f"The database refused it with SQLSTATE {state}.", 200))
    return settlement._replace(event=Event.FAIL, result=None, cause=cause)
