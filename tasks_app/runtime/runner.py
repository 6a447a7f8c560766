"""The runner: one started task to its outcome. Nothing that a handler raises comes out."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from random import Random

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.causes import cause_of
from tasks_app.domain.decide import OUTCOME_UNKNOWN, ended_by, failed
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.outage import Outages, is_outage, put_off
from tasks_app.domain.outcome import Fail, Retry
from tasks_app.domain.payload import encode_object
from tasks_app.domain.settings import Settings
from tasks_app.domain.states import Event
from tasks_app.domain.task import Cause, ClaimedTask, Settlement
from tasks_app.pool.amend import amend
from tasks_app.pool.outage import count_outage
from tasks_app.runtime.aftermath import Aftermath
from tasks_app.runtime.allowance import Allowance
from tasks_app.runtime.calls import Calls, FenceLostError
from tasks_app.runtime.context import TaskContext
from tasks_app.runtime.database import Database, is_lost
from tasks_app.runtime.desk import Desk
from tasks_app.runtime.hooks import HOOKS, Kind, of_claim, of_settlement
from tasks_app.runtime.locks.of_runs import LocksOfChild
from tasks_app.runtime.pace import Pace
from tasks_app.runtime.reactions import is_unanswered, spares_handlers
from tasks_app.runtime.registry import Registry
from tasks_app.runtime.running import Running
from tasks_app.runtime.settler import Settler
from tasks_app.runtime.slot import Slot
from tasks_app.runtime.transaction import Transaction

log = quiet_logger(__name__)
handler_log = logging.getLogger("tasks_app.handlers")

UNANSWERED_WAIT = timedelta(seconds=2)
"""How long a task waits whose COMMIT was not answered: the database is likely just coming back."""


class Runner:
    """Runs tasks for one child; several threads may at once."""

    def __init__(  # noqa: PLR0913, PLR0917  the hub of a child
        self,
        settings: Settings,
        registry: Registry,
        database: Database,
        desk: Desk,
        slot: Slot,
        settler: Settler,
        aftermath: Aftermath,
        calls: Calls,
        allowance: Allowance,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._database = database
        self._desk = desk
        self._slot = slot
        self._settler = settler
        self._aftermath = aftermath
        self._calls = calls
        self._rng = Random()  # noqa: S311  jitter, not a secret
        self.pace = Pace(desk.wake.set)
        self._allowance = allowance
        self.locks = LocksOfChild(settings, database, desk)

    def run(self, run: Running) -> None:
        """Run one started task to its outcome. Nothing that a handler raises comes out."""
        task = run.task
        spec = self._registry.get(task.name)
        if spec is None:  # claimed by names that we know, so this cannot be
            self._desk.give_back(task, UNANSWERED_WAIT)
            return
        if not (spec.is_async or self.pace.is_fast(task.name)):
            self._settler.flush_quietly()
        self._allowance.warn_of_lame(task, spec)
        announced = task.run
        self._slot.start(announced, self._allowance.hard_timeout_s(task, spec))
        try:
            if HOOKS.wanted:
                HOOKS.tell([of_claim(Kind.STARTED, task)])
            run.since = time.monotonic()
            settlement = self.attempt(run, spec, self._allowance.timeout_s(task, spec))
            if settlement is not None:
                self._desk.collect(settlement)
        finally:
            self._slot.finish(announced)
            places = self._settings.async_concurrency if spec.is_async else 1
            self.pace.learn(task.name, (time.monotonic() - run.since) / places)
            if self._aftermath.unfit:
                self._desk.stop()

    def attempt(
        self, run: Running, spec: HandlerSpec, limit: float | None, *, more: bool = False
    ) -> Settlement | None:
        """Call the handler, and commit what it did; the task is announced. Nothing comes out.

        With ``more``, this thread's next run follows at once, or :meth:`rest` is called.

        Returns:
            Its success, if that may be written together with others; all else is seen to.
        """
        task = run.task
        transaction = self._calls.lane(spec).transaction(more=more)
        deadline = None if limit is None else run.since + limit
        context = TaskContext(
            run, transaction, deadline, handler_log, self.locks, commits=not spec.batched
        )
        try:
            settlement = self._attempt(run, spec, context, transaction, limit)
            if settlement is None:
                log.warning("task %s: the lease was lost before it began", task.task_id)
                self._desk.drop(task.fence)
            elif transaction.active:
                self._commit(transaction, task, spec, settlement)
            elif settlement.event is Event.SUCCEED and not task.at_most_once:
                return settlement
            else:
                self._keep(task, settlement)
        except BaseException as error:
            kind = type(error).__name__  # its text may be the handler's, and hold anything
            log.error("task %s: its run ended in a way it never should: %s", task.task_id, kind)  # noqa: TRY400
            if self._desk.runs(task.fence):  # else it would be renewed, and RUNNING, for ever
                self._keep(task, self._ended(task, spec, error))
        finally:
            context.close()
            transaction.abandon()
            context.end_locks()
        return None

    def rest(self) -> None:
        """Leave nothing open for a next run of this thread's."""
        self._calls.plain.rest()

    def _attempt(
        self,
        run: Running,
        spec: HandlerSpec,
        context: TaskContext,
        transaction: Transaction,
        limit: float | None,
    ) -> Settlement | None:
        """Call the handler; whatever it raises becomes an outcome, after a rollback.

        None: the fence was lost already, so that the handler was not called.
        """
        task = run.task
        try:
            return self._calls.make(run, spec, context, limit)
        except FenceLostError:
            return None
        except BaseException as error:
            transaction.abandon()
            if is_lost(error) and _may_come_back(task, error):
                return _unanswered(task)
            if isinstance(error, Retry) and error.payload is not None:
                return self._amended(task, spec, error)
            return self._ended(task, spec, error)

    def _ended(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> Settlement:
        """Decide what becomes of a run that raised."""
        cause = cause_of(error)
        if not is_outage(spec, error):
            return ended_by(task, spec, error, cause, self._rng)
        try:
            seen = self._calls.lane(spec).aside(lambda: self._count_outage(task))
        except SQLAlchemyError:
            return _unanswered(task)
        return put_off(task, spec, error, cause, self._rng, seen or Outages(1, timedelta(0)))

    def _count_outage(self, task: ClaimedTask) -> Outages | None:
        with self._database.begin() as connection:
            return count_outage(connection, task.fence)

    def _amended(self, task: ClaimedTask, spec: HandlerSpec, retry: Retry) -> Settlement:
        """Give the task the payload that it is to be tried again with."""
        error: Exception = retry
        try:
            payload = encode_object(
                retry.payload, "payload", self._settings.payload_limit, spec.to_json
            )
            self._calls.lane(spec).aside(lambda: self._write_payload(task, payload))
        except InvalidTaskError as refusal:
            error = Fail(f"The payload to try again with is refused: {refusal}")
        except SQLAlchemyError:
            return _unanswered(task)
        return self._ended(task, spec, error)

    def _write_payload(self, task: ClaimedTask, payload: str) -> None:
        with self._database.begin() as connection:
            amend(connection, task.fence, payload)

    def _commit(
        self,
        transaction: Transaction,
        task: ClaimedTask,
        spec: HandlerSpec,
        settlement: Settlement,
    ) -> None:
        """Effect, outcome and move in one commit."""
        if not self._desk.begin_commit(task.fence):
            return
        try:
            state = transaction.conclude(settlement)
        except BaseException as error:  # listeners of the user's session run in here
            transaction.abandon()
            if spares_handlers(error) and _may_come_back(task, error):
                self._keep(task, _unanswered(task))
            else:
                self._keep(task, self._ended(task, spec, error))
            return
        self._desk.drop(task.fence)
        if state is None:
            log.warning("task %s: the lease was lost, its effects roll back", task.task_id)
        elif HOOKS.wanted:
            HOOKS.tell([of_settlement(settlement, task, state)])

    def _keep(self, task: ClaimedTask, settlement: Settlement) -> None:
        """Collect an outcome for the next group, or carry it out now where it must stand alone."""
        if task.at_most_once:
            if not self._desk.begin_commit(task.fence):
                return
            if settlement.event is Event.RELEASE:
                settlement = failed(
                    task, Cause(OUTCOME_UNKNOWN, "The database did not answer the COMMIT.")
                )
            self._settler.settle_until_answered(settlement)
            self._desk.drop(task.fence)
        elif settlement.event is Event.RELEASE:
            self._desk.give_back(task, UNANSWERED_WAIT, suspect=True)
        else:
            self._desk.collect(settlement)

    def is_unlimited(self, task: ClaimedTask) -> bool:
        """Whether any thread will do: a ``timeout`` can only be raised in a main thread."""
        spec = self._registry.get(task.name)
        if spec is None or spec.is_async:
            return False
        return self._allowance.timeout_s(task, spec) is None


def _may_come_back(task: ClaimedTask, error: BaseException) -> bool:
    """Whether it is uncharged; of an ``at_most_once`` task only the outcome can be unknown."""
    return is_unanswered(error) or not task.at_most_once


def _unanswered(task: ClaimedTask) -> Settlement:
    return Settlement(task.fence, Event.RELEASE, task.failures, task.retry_level)
