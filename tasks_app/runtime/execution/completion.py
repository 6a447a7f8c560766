"""Completion: what a run came to is committed, collected for the next group, or given back.

What cannot run here for lack of a key is parked: another worker may have that key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.encryption import NO_KEY
from tasks_app.domain.encryption import MissingKeyError
from tasks_app.domain.flow_control.waiting_reason import WaitingKind, WaitingReason
from tasks_app.domain.handlers.settlement import CONNECTION_LOST, OUTCOME_UNKNOWN, failed
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.release import release_parked
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.failure_policy import FailurePolicy
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.notices import tell_lost, tell_returned, tell_settled
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.handler_db.handler_driver import UnusableConnectionError
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.inflight.parts import ChildParts

log = quiet_logger(__name__)

UNANSWERED_WAIT = timedelta(seconds=2)
"""How long a task waits whose COMMIT was not answered: the database is likely just coming back."""


class RunAgainError(Exception):
    """Others stood in the way of a run, or it never began; it has rolled back."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A run whose handler has succeeded, and whose transaction is to commit."""

    run: ActiveRun
    spec: HandlerSpec
    transaction: Transaction
    settlement: Settlement
    limit: float | None
    """Seconds, after which its ``timeout`` struck."""

    def told(self, error: BaseException) -> BaseException:
        """Return why it cannot commit: the limit may have broken off a statement."""
        if self.limit is None or (self.settlement.run_ms or 0) < 1000 * self.limit:
            return error
        unusable = isinstance(error, UnusableConnectionError)
        return self.spec.timeout_error(self.limit) if unusable else error


class Completion:
    """One child's; its threads may end runs at the same time."""

    def __init__(
        self, parts: ChildParts, invocation: Invocation, settler: Settler, policy: FailurePolicy
    ) -> None:
        self._inflight = parts.inflight
        self._database = parts.database
        self._park_for = parts.settings.park_for
        self._invocation = invocation
        self._settler = settler
        self._policy = policy
        self._told: set[str] = set()
        """Of which keys that are missing."""

    def commit(self, ending: Ending) -> None:
        """Effect, outcome and move in one commit.

        Raises:
            RunAgainError: it may be tried again, from its handler on. Nothing else comes out.
        """
        task, transaction = ending.run.task, ending.transaction
        if not self._inflight.begin_commit(task.fence):
            return
        try:
            state = transaction.conclude(ending.settlement)
        except BaseException as error:  # listeners of the user's session run in here
            transaction.abandon()
            if self._policy.runs_again(ending.run, ending.spec, error):
                raise RunAgainError from error
            failure = self._policy.on_commit(task, ending.spec, ending.told(error))
            failure = failure._replace(unsure=ending.settlement.unsure)
            self.keep(task, ending.run.said(failure))
            return
        self._inflight.drop(task.fence)
        if state is None:
            tell_lost(ending.settlement)
            return
        tell_settled([ending.settlement], {task.task_id: state})

    def keep(self, task: ClaimedTask, settlement: Settlement) -> None:
        """Collect an outcome for the next group, or carry it out now where it must stand alone."""
        if task.at_most_once:
            if not self._inflight.begin_commit(task.fence):
                return
            if settlement.event is Event.RELEASE:
                settlement = failed(task, Cause(OUTCOME_UNKNOWN, "The database did not answer."))
            self._settler.settle_until_answered(settlement)
            self._inflight.drop(task.fence)
        elif settlement.event is Event.RELEASE:
            befell = settlement.cause.kind if settlement.cause else CONNECTION_LOST
            said = "task %s (%s) is given back uncharged, to run again: %s"
            log.warning(said, task.task_id, task.name, befell)
            self._inflight.give_back(task, UNANSWERED_WAIT, suspect=befell)
        else:
            self._inflight.collect(settlement)

    def park(self, task: ClaimedTask, spec: HandlerSpec, missing: MissingKeyError) -> None:
        """Let it wait for its key; if the database does not answer, it is given back."""
        key = missing.key_id or NO_KEY
        if key not in self._told:
            self._told.add(key)
            log.warning("encryption key missing: %s; tasks that need it wait", key)
        reason = WaitingReason(WaitingKind.ENCRYPTION, key)
        try:
            state = self._invocation.lane(spec).aside(lambda: self._release(task, reason))
        except SQLAlchemyError:
            state = None
        if state is None:
            self._inflight.give_back(task, self._park_for)
            return
        self._inflight.drop(task.fence)
        tell_returned([task], {task.task_id: state}, Event.RELEASE, self._park_for)

    def _release(self, task: ClaimedTask, reason: WaitingReason) -> State | None:
        with self._database.begin() as connection:
            return release_parked(connection, task, reason, self._park_for)

    def give_up(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> None:
        """End a run in which something of ours broke."""
        kind = type(error).__name__  # its text may be the handler's, and hold anything
        log.error("task %s: its run ended by an internal error: %s", task.task_id, kind)
        if self._inflight.runs(task.fence):  # else it would be renewed, and RUNNING, for ever
            self.keep(task, self._policy.on_run(task, spec, error))
