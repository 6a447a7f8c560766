"""The failure policy: what is to become of a run that raised."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from datetime import timedelta
from random import Random

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption.envelope import check_no_token
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.cause_line import decoded
from tasks_app.domain.handlers.outages import Outages
from tasks_app.domain.handlers.outcomes import Fail, Retry
from tasks_app.domain.handlers.settlement import (
    BROKEN_OFF,
    CONNECTION_LOST,
    OUTCOME_UNKNOWN,
    REFUSED,
    ended_by,
    failed,
    is_outage,
    put_off,
)
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values.reference import check_no_reference
from tasks_app.domain.tasks.erased import check_not_erased
from tasks_app.domain.tasks.error_text import cause_of, primary
from tasks_app.domain.tasks.masks import MASK, masks_of
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.connection.sessions import limits_locks
from tasks_app.pool.runs.outages import count_outage
from tasks_app.pool.tasks.edit_payload import amend
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import (
    is_conflict,
    is_lock_limit,
    is_lost,
    is_stale_plan,
    is_unanswered,
    spares_handlers,
)
from tasks_app.runtime.db.transaction import is_of_commit
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.handler_db.handler_statements import is_under_own_settings
from tasks_app.runtime.handlers.active_run import ActiveRun

REPEATS = 5
"""How often a handler is called again before a conflict of transactions is charged."""
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

    def runs_again(
        self, run: ActiveRun, spec: HandlerSpec, error: BaseException, *, untried: bool = False
    ) -> bool:
        """Whether a run that was rolled back is made again at once, uncharged.

        So it is where others stood in its way; and once, where its connection was dead before it
        did anything, or what was prepared there older than its table.
        """
        if run.repeats >= REPEATS or run.task.at_most_once:
            return False
        is_old = (untried and is_lost(error)) or is_stale_plan(error)
        once = is_old and not run.again
        if once or is_conflict(error) or self._was_hurried(spec, error):
            run.again = once
            return True
        return False

    def _was_hurried(self, spec: HandlerSpec, error: BaseException) -> bool:
        """Whether a limit ended its wait for a lock that its handler did not set."""
        if not is_lock_limit(error) or is_under_own_settings(error):
            return False
        try:
            return self._invocation.lane(spec).aside(self._limits_locks)
        except SQLAlchemyError:
            return False

    def _limits_locks(self) -> bool:
        with self._database.handler_engine.connect() as connection:
            return limits_locks(connection)

    def on_handler(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> Settlement:
        """Decide about what came out of a handler, whose transaction was rolled back."""
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
            return unanswered(task)._replace(cause=Cause(BROKEN_OFF, ""))
        cause = self._masked(error, task)
        if self._invocation.secrecy.covers(task, spec):
            cause = self._invocation.secrecy.cause(cause, task.name)
        if not is_outage(spec, error):
            return ended_by(task, spec, error, cause, self._rng)
        try:
            seen = self._invocation.lane(spec).aside(lambda: self._count_outage(task))
        except SQLAlchemyError:  # it waits as after its first; the settle waits for the database
            seen = None
        return put_off(task, spec, error, cause, self._rng, seen or Outages(1, timedelta(0)))

    def _masked(self, error: BaseException, task: ClaimedTask) -> Cause:
        """Return a cause whose text quotes no masked value; of an unknown payload, no text."""
        cause = cause_of(error)
        if not cause.message or not self._masks.covers(task.name):
            return cause
        if task.payload is None or (payload := decoded(task.payload)) is None:
            return replace(cause, message=MASK)
        text = primary(cause.message, error)
        return replace(cause, message=self._masks.text(task.name, text, payload))

    def _count_outage(self, task: ClaimedTask) -> Outages | None:
        with self._database.begin() as connection:
            return count_outage(connection, task.fence)

    def _amended(self, task: ClaimedTask, spec: HandlerSpec, retry: Retry) -> Settlement:
        """Write the payload for the next attempt."""
        error: Exception = retry
        try:
            payload = spec.stored(retry.payload, self._settings.payload_limit)
            check_no_token(payload)
            check_no_reference(payload)
            check_not_erased(payload)
            if self._invocation.secrecy.covers(task, spec):
                payload = self._invocation.secrecy.new_payload(payload, task.name)
            self._invocation.lane(spec).aside(lambda: self._write_payload(task, payload))
        except InvalidTaskError as refusal:
            error = Fail(f"The payload to try again with is refused: {refusal}")
        except SQLAlchemyError:
            return unanswered(task)
        return self.on_run(task, spec, error)

    def _write_payload(self, task: ClaimedTask, payload: str) -> None:
        with self._database.begin() as connection:
            amend(connection, task.fence, payload)


def unanswered(task: ClaimedTask) -> Settlement:
    """Return the settlement of a run whose effects are unknown: it runs again, uncharged."""
    return Settlement(task.fence, Event.RELEASE, task.failures, task.retry_level)


def _lost(task: ClaimedTask, error: BaseException) -> Settlement:
    """Return the settlement of a run without its database; ``at_most_once`` ends there."""
    if not task.at_most_once:
        cause = None if is_unanswered(error) else Cause(REFUSED, "")
        return unanswered(task)._replace(cause=cause)
    if is_of_commit(error):
        return failed(task, Cause(OUTCOME_UNKNOWN, "The database did not answer the COMMIT."))
    return failed(task, Cause(CONNECTION_LOST, _NOT_SENT))


def _is_unjudged(task: ClaimedTask, error: BaseException) -> bool:
    """Whether the connection was lost without an answer; an answer would be a cause to judge by."""
    return is_unanswered(error) or not task.at_most_once
