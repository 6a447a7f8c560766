"""The settler: outcomes to the database, together where possible, one by one where needed."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tasks_app.domain.causes import clean
from tasks_app.domain.states import Event, State
from tasks_app.domain.task import Cause, Settlement
from tasks_app.pool.settle import settle_group, settle_one
from tasks_app.runtime.database import Database, is_unanswered
from tasks_app.runtime.desk import Desk

log = logging.getLogger(__name__)

BAD_OUTCOME = "outcome cannot be stored"
_ROW_IS_LOCKED = "55P03"
_PATIENCE_S = 0.2


class Settler:
    """Writes what the desk has collected. Used by main thread and clerk, one at a time."""

    def __init__(self, database: Database, desk: Desk) -> None:
        self._database = database
        self._desk = desk
        self._turn = threading.Lock()

    def flush(self) -> None:
        """Write all finished outcomes. What somebody's lock holds back stays on the desk.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer; everything stays on the desk.
        """
        with self._turn:
            settlements = self._desk.finished()
            if not settlements:
                return
            try:
                left = self._together(settlements)
                for settlement in left:
                    self._alone(settlement)
            finally:
                self._desk.put_off()

    def flush_until_answered(self) -> None:
        """Return when no outcome is left to write, however long the database is away."""
        while not self._nothing_left():
            self._desk.wake.set()
            time.sleep(_PATIENCE_S)

    def settle_until_answered(self, settlement: Settlement) -> State | None:
        """Write one outcome now and wait for the answer; None: the fence was lost.

        The fence judges a repeated try, so asking again is safe.
        """
        while True:
            try:
                with self._database.begin() as connection:
                    return settle_one(connection, settlement)
            except SQLAlchemyError as error:
                if _is_data_error(error):
                    settlement = _unstorable(settlement, error)
                    continue
                log.warning("a settle was not answered, trying again: %s", type(error).__name__)
                time.sleep(_PATIENCE_S)

    def _nothing_left(self) -> bool:
        try:
            self.flush()
        except SQLAlchemyError as error:
            log.warning("outcomes wait for the database: %s", type(error).__name__)
            return False
        return not self._desk.finished()

    def _together(self, settlements: list[Settlement]) -> list[Settlement]:
        """Write a group without waiting for locks; return those that need to be done alone."""
        try:
            with self._database.begin() as connection:
                done = settle_group(connection, settlements)
        except DBAPIError as error:
            if is_unanswered(error):
                raise
            return settlements  # one member's data, or a deadlock: split the group
        for task_id in done:
            self._desk.drop(task_id)
        return [s for s in settlements if s.fence.task_id not in done]

    def _alone(self, settlement: Settlement) -> None:
        """Write one; a locked row stays on the desk, a lost fence is dropped."""
        task_id = settlement.fence.task_id
        try:
            with self._database.begin() as connection:
                if settle_one(connection, settlement) is None:
                    log.warning("task %s: the lease was lost, its outcome is not kept", task_id)
        except DBAPIError as error:
            if is_unanswered(error):
                raise
            if _is_data_error(error):
                self._desk.collect(_unstorable(settlement, error))
            else:
                log.info("task %s: somebody holds its row, its settle waits", task_id)
            return
        self._desk.drop(task_id)


def _is_data_error(error: BaseException) -> bool:
    """SQLSTATE 22* and 23*: what was sent can never be stored, so sending it again is useless."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return state.startswith(("22", "23"))


def _unstorable(settlement: Settlement, error: BaseException) -> Settlement:
    """Turn an outcome that the database refuses into a failure that says so."""
    state = getattr(getattr(error, "orig", None), "sqlstate", "?")
    cause = Cause(BAD_OUTCOME, clean(f"The database refused it with SQLSTATE {state}.", 200))
    return replace(settlement, event=Event.FAIL, result=None, cause=cause)
