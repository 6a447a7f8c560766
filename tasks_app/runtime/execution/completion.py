"""Ends a run: its outcome is committed, collected, retried or given back, as its error says."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption import NO_KEY, MissingKeyError, check_no_token
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.domain.handlers.outcomes import Fail, Outages, Retry
from tasks_app.domain.handlers.settlement import (
    ABORTED,
    CONNECTION_LOST,
    OUTCOME_UNKNOWN,
    REFUSED,
    decode_or_none,
    is_outage,
    settle_exception,
    settle_failure,
    settle_outage,
)
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values.store import check_no_reference
from tasks_app.domain.tasks.error_text import cause_of, quiet_logger, without_row_details
from tasks_app.domain.tasks.masks import MASK, check_not_erased, masks_of
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.sessions import has_lock_timeout
from tasks_app.pool.runs.leases import release_parked
from tasks_app.pool.runs.settle import count_outage
from tasks_app.pool.tasks.amend import replace_payload
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import (
    is_conflict,
    is_lock_limit,
    is_lost,
    is_ours,
    is_refused,
    is_stale_plan,
    is_unanswered,
    spares_handlers,
)
from tasks_app.runtime.db.transaction import Transaction, is_of_commit
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.invocation import FenceLostError, Invocation, NotBegunError
from tasks_app.runtime.execution.settler import (
    Settler,
    count_stale,
    report_lost,
    report_returned,
    report_settled,
)
from tasks_app.runtime.flow_control.breakers import DependencyReport
from tasks_app.runtime.handler_db.handler_driver import UnusableConnectionError
from tasks_app.runtime.handler_db.statements import ENDED, is_under_own_settings
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext

log = quiet_logger(__name__)
UNANSWERED_WAIT = timedelta(seconds=2)
"""How long a task waits whose COMMIT was not answered: the database is likely just coming back."""


@dataclass(slots=True)
class EndOfRun:
    """One started run, while its end is decided; what chooses among ends is kept here."""

    run: ActiveRun
    spec: HandlerSpec
    limit: float | None  # seconds, after which its ``timeout`` struck
    transaction: Transaction = field(init=False)  # of this call of its handler
    runs_again: bool = False  # it has rolled back, and its handler is to be called again, uncharged
    repeats: int = 0  # how often its handler was called again
    began_anew: bool = False
    """It began on a dead connection, or met a plan prepared before its table changed; once only."""


class Completion:
    """Ends the runs of one child; its threads may do so at the same time."""

    def __init__(
        self,
        parts: ChildParts,
        *,
        invocation: Invocation,
        settler: Settler,
        dependencies: DependencyReport,
    ) -> None:
        self._inflight = parts.inflight
        self._database = parts.database
        self._park_for = parts.settings.park_for
        self._invocation = invocation
        self._settler = settler
        self._dependencies = dependencies
        self._policy = FailurePolicy(parts.settings, parts.database, invocation)
        self._missing_keys: set[str] = set()  # those that were logged

    def end_after_return(
        self, end: EndOfRun, settlement: Settlement, context: TaskContext[Any]
    ) -> Settlement | None:
        """End a run whose handler returned.

        Returns:
            The success, if it may be written together with others: of a run that did nothing in its
            transaction, or only what it asked to write. Anything else is done with.
        """
        run, transaction = end.run, end.transaction
        if transaction.active:
            may_wait = run.returned is None and not context.has_locks  # they end with the run
            if may_wait and (writes := transaction.late_writes):
                late = settlement._replace(writes=writes)
                if self._settler.takes(late):
                    return late
            self._commit(end, settlement)
        elif settlement.event is Event.SUCCEED and not run.task.at_most_once:
            return settlement
        else:
            self._write_outcome(end, settlement)
        return None

    def end_without_return(self, end: EndOfRun, error: BaseException) -> None:
        """End a run whose handler raised, or was not called; or say that it is run again."""
        task = end.run.task
        if isinstance(error, FenceLostError):
            log.warning("task %s: the lease was lost before it began", task.task_id)
            count_stale(task)
            self._inflight.drop(task.fence)
        elif isinstance(error, NotBegunError):
            self._inflight.give_back(task, UNANSWERED_WAIT)
        else:
            try:
                self._judge(end, error)
            except MissingKeyError as missing:
                self._park(task, end.spec, missing)

    def _judge(self, end: EndOfRun, error: BaseException) -> None:
        if isinstance(error, MissingKeyError):
            raise error
        transaction = end.transaction
        ended, untried = transaction.ended, transaction.untried
        transaction.abandon()
        if is_refused(error):  # by no task's fault
            self._inflight.note_outage()
        ours = not ended and is_ours(error)
        if ours and self._policy.runs_again(end, error, untried=untried):
            end.runs_again = True
            return
        error = Fail(ENDED) if ended else error
        failure = self._policy.on_handler(end.run.task, end.spec, error)
        self._write_outcome(end, end.run.with_sub_status(failure))

    def _commit(self, end: EndOfRun, settlement: Settlement) -> None:
        """Commit effect, outcome and move together, or say that the run is made again."""
        task, transaction = end.run.task, end.transaction
        if not self._inflight.begin_commit(task.fence):
            return
        try:
            state = transaction.conclude(settlement)
        except BaseException as error:  # listeners of the user's session run in here
            transaction.abandon()
            if self._policy.runs_again(end, error):
                end.runs_again = True
            else:
                self.end_without_commit(end, settlement, error)
            return
        self._inflight.drop(task.fence)
        if state is None:
            report_lost(settlement)
        else:
            report_settled([settlement], {task.task_id: state})

    def end_without_commit(
        self, end: EndOfRun, settlement: Settlement, error: BaseException
    ) -> None:
        """End a run whose success did not commit, or whose COMMIT was not answered."""
        task = end.run.task
        if isinstance(error, UnusableConnectionError) and _is_past_limit(end, settlement):
            error = end.spec.timeout_error(end.limit or 0.0)
        failure = self._policy.on_commit(task, end.spec, error)
        failure = failure._replace(unsure=settlement.unsure)
        self._settle(task, end.run.with_sub_status(failure))

    def _write_outcome(self, end: EndOfRun, settlement: Settlement) -> None:
        self._settle(end.run.task, settlement)
        if end.spec.depends_on is not None:  # its breaker hears of a failure before the next call
            self._invocation.lane(end.spec).call_blocking(self._dependencies.report_failures)

    def _settle(self, task: ClaimedTask, settlement: Settlement) -> None:
        """Collect an outcome for the next group, or write it now if it must be written alone."""
        if task.at_most_once:
            if not self._inflight.begin_commit(task.fence):
                return
            if settlement.event is Event.RELEASE:
                settlement = settle_failure(
                    task, Cause(OUTCOME_UNKNOWN, "The database did not answer.")
                )
            self._settler.settle_until_answered(settlement)
            self._inflight.drop(task.fence)
        elif settlement.event is Event.RELEASE:
            befell = settlement.cause.kind if settlement.cause else CONNECTION_LOST
            warning = "task %s (%s) is given back uncharged, to run again: %s"
            log.warning(warning, task.task_id, task.name, befell)
            self._inflight.give_back(task, UNANSWERED_WAIT, crash=befell)
        else:
            self._inflight.collect(settlement)

    def _park(self, task: ClaimedTask, spec: HandlerSpec, missing: MissingKeyError) -> None:
        """Let it wait for its key; if the database does not answer, it is given back."""
        key = missing.key_id or NO_KEY
        if key not in self._missing_keys:
            self._missing_keys.add(key)
            log.warning("encryption key missing: %s; tasks that need it wait", key)
        reason = WaitingReason(WaitingKind.ENCRYPTION, key)

        def release() -> State | None:
            with self._database.begin() as connection:
                return release_parked(connection, task, reason, self._park_for)

        try:
            state = self._invocation.lane(spec).call_blocking(release)
        except SQLAlchemyError:
            state = None
        if state is None:
            self._inflight.give_back(task, self._park_for)
            return
        self._inflight.drop(task.fence)
        report_returned([task], {task.task_id: state}, Event.RELEASE, self._park_for)

    def give_up(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> None:
        kind = type(error).__name__  # its text may be the handler's, and hold anything
        log.error("task %s: its run ended by an internal error: %s", task.task_id, kind)
        if self._inflight.is_running(task.fence):  # else it would be renewed, and RUNNING, for ever
            self._settle(task, self._policy.on_run(task, spec, error))


def _is_past_limit(end: EndOfRun, settlement: Settlement) -> bool:
    """Whether the limit may have broken off a statement, so that it cannot commit."""
    return end.limit is not None and (settlement.run_ms or 0) >= 1000 * end.limit


REPEATS = 5  # how often a handler is called again before a conflict of transactions is charged
_NOT_SENT = (
    "The database ended the connection, or did not answer, before a COMMIT was sent: "
    "nothing that the run wrote there stands. What it did elsewhere does."
)


class FailurePolicy:
    """Decides for one child; its threads may ask at once."""

    def __init__(self, settings: Settings, database: Database, invocation: Invocation) -> None:
        self._settings = settings
        self._database = database
        self._invocation = invocation
        self._masks = masks_of(settings.masked_paths)
        self._rng = Random()  # noqa: S311  jitter, not a secret

    def runs_again(self, end: EndOfRun, error: BaseException, *, untried: bool = False) -> bool:
        """Whether a run that was rolled back is made again at once, uncharged.

        That is so after a conflict with other transactions, up to ``REPEATS`` times; and once if
        its connection was dead before it did anything, or a prepared plan was older than its table.
        """
        if end.repeats >= REPEATS or end.run.task.at_most_once:
            return False
        is_old = (untried and is_lost(error)) or is_stale_plan(error)
        once = is_old and not end.began_anew
        if once or is_conflict(error) or self._was_hurried(end.spec, error):
            end.began_anew = once
            return True
        return False

    def _was_hurried(self, spec: HandlerSpec, error: BaseException) -> bool:
        """Whether its wait for a lock hit a ``lock_timeout`` that its handler did not set."""
        if not is_lock_limit(error) or is_under_own_settings(error):
            return False
        try:
            return self._invocation.lane(spec).call_blocking(self._limits_locks)
        except SQLAlchemyError:
            return False

    def _limits_locks(self) -> bool:
        with self._database.handler_engine.connect() as connection:
            return has_lock_timeout(connection)

    def on_handler(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> Settlement:
        if is_lost(error) and _is_unjudged(task, error):
            return _lost(task, error)
        if isinstance(error, Retry) and error.payload is not None:
            return self._amended(task, spec, error)
        return self.on_run(task, spec, error)

    def on_commit(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> Settlement:
        """Decide about a transaction that did not commit, or whose COMMIT was not answered."""
        if spares_handlers(error) and _is_unjudged(task, error):
            return _lost(task, error)
        return self.on_run(task, spec, error)

    def on_run(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> Settlement:
        """Decide by the error alone.

        Nothing of ours cancels an async handler. So another's did it, or it did so itself. It runs
        again, alone, and then it is charged.
        """
        if isinstance(error, CancelledError) and spec.is_async and not task.runs_alone:
            return unanswered(task)._replace(cause=Cause(ABORTED, ""))
        cause = self._masked(error, task)
        if self._invocation.secrecy.covers(task, spec):
            cause = self._invocation.secrecy.cause(cause, task.name)
        if not is_outage(spec, error):
            return settle_exception(task, spec, error, cause, self._rng)
        try:
            seen = self._invocation.lane(spec).call_blocking(lambda: self._count_outage(task))
        except SQLAlchemyError:  # it waits as after its first; the settle waits for the database
            seen = None
        return settle_outage(task, spec, error, cause, self._rng, seen or Outages(1, timedelta(0)))

    def _masked(self, error: BaseException, task: ClaimedTask) -> Cause:
        """Return a cause whose text quotes no masked value; of an unknown payload, no text."""
        cause = cause_of(error)
        if not cause.message or not self._masks.covers(task.name):
            return cause
        if task.payload is None or (payload := decode_or_none(task.payload)) is None:
            return replace(cause, message=MASK)
        text = without_row_details(cause.message, error)
        return replace(cause, message=self._masks.text(task.name, text, payload))

    def _count_outage(self, task: ClaimedTask) -> Outages | None:
        with self._database.begin() as connection:
            return count_outage(connection, task.fence)

    def _amended(self, task: ClaimedTask, spec: HandlerSpec, retry: Retry) -> Settlement:
        error: Exception = retry
        try:
            payload = spec.stored(retry.payload, self._settings.payload_limit)
            check_no_token(payload)
            check_no_reference(payload)
            check_not_erased(payload)
            if self._invocation.secrecy.covers(task, spec):
                payload = self._invocation.secrecy.new_payload(payload, task.name)
            self._invocation.lane(spec).call_blocking(lambda: self._write_payload(task, payload))
        except InvalidTaskError as refusal:
            error = Fail(f"The payload to try again with is refused: {refusal}")
        except SQLAlchemyError:
            return unanswered(task)
        return self.on_run(task, spec, error)

    def _write_payload(self, task: ClaimedTask, payload: str) -> None:
        with self._database.begin() as connection:
            replace_payload(connection, task.fence, payload)


def unanswered(task: ClaimedTask) -> Settlement:
    """Return the settlement of a run whose effects are unknown: it runs again, uncharged."""
    return Settlement(task.fence, Event.RELEASE, task.failures, task.retry_level)


def _lost(task: ClaimedTask, error: BaseException) -> Settlement:
    """Return the settlement of a run without its database; ``at_most_once`` ends there."""
    if not task.at_most_once:
        cause = None if is_unanswered(error) else Cause(REFUSED, "")
        return unanswered(task)._replace(cause=cause)
    if is_of_commit(error):
        return settle_failure(
            task, Cause(OUTCOME_UNKNOWN, "The database did not answer the COMMIT.")
        )
    return settle_failure(task, Cause(CONNECTION_LOST, _NOT_SENT))


def _is_unjudged(task: ClaimedTask, error: BaseException) -> bool:
    """Whether the connection was lost without an answer; an answer would be a cause to judge by."""
    return is_unanswered(error) or not task.at_most_once
