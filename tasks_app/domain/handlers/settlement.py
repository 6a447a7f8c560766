"""How a run ends: pure decisions, and the cause in one line that is safe to show."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from tasks_app.domain.config.retention import HistoryLevel, HistoryLevels
from tasks_app.domain.errors import TaskCancelledError, UnreadableTaskError
from tasks_app.domain.handlers.outcomes import (
    Cancel,
    DependencyDown,
    Fail,
    Outages,
    Reaction,
    Retry,
    Skip,
    Snooze,
    WaitForNeeds,
)
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values.store import reference_in
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.domain.tasks.masks import MASK, leaf_texts, mask_values
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.retry_policy import (
    DEFAULT_POLICY,
    MOST_ATTEMPTS,
    RetryPolicy,
    parse_policy,
)
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event

OUTCOME_UNKNOWN = "outcome unknown"
PROCESS_DIED = "process died"
INTERRUPTED = "interrupted"
_SUCCEED = Event.SUCCEED
VANISHED, CONNECTION_LOST = "worker vanished", "connection lost"
REFUSED = "database refused"
PROCESS_KILLED = "process killed"  # at the hard timeout of another task in it, or by a cancel
ABORTED = "broken off"  # by another task's handler, or an error of ours
BAD_OUTCOME = "outcome cannot be stored"


def policy_of(task: ClaimedTask, spec: HandlerSpec | None) -> RetryPolicy:
    """Return the policy of the task (unless unreadable), of its handler, or the default."""
    if task.retry is not None:
        try:
            return parse_policy(task.retry)
        except ValueError:
            pass
    return spec.retry if spec else DEFAULT_POLICY


def keeps_row(task: ClaimedTask, spec: HandlerSpec, levels: HistoryLevels) -> bool:
    """Whether the row is kept if the task succeeds; the handler's own level comes first."""
    level = spec.history or levels.queues.get(task.queue, levels.default)
    if level is HistoryLevel.ALL or task.group_id is not None:
        return True
    return level is HistoryLevel.FAILURES and task.fence.attempt > 1


def settle_return(
    task: ClaimedTask,
    result: str | None,
    run_ms: int,
    began: float | None = None,
    *,
    is_kept: bool = True,
) -> Settlement:
    # fmt: off
    return Settlement(  # by position: by name it takes half as long again
        task.fence, _SUCCEED, task.failures, task.retry_level, None, None,
        result, None, run_ms, task, began, None, is_kept,
    )
    # fmt: on


def settle_exception(
    task: ClaimedTask, spec: HandlerSpec, error: BaseException, cause: Cause, rng: Random
) -> Settlement:
    """Settle a run whose handler raised ``error``; ``cause`` is the same as storable text."""
    match error:
        case Skip():
            return _uncharged(task, Event.SKIP, cause)
        case Cancel() | TaskCancelledError():
            return _uncharged(task, Event.CANCEL, cause)
        case Fail():
            return settle_failure(task, cause)
        case Snooze():
            snoozed = _uncharged(task, Event.SNOOZE, cause, error.after)
            return snoozed._replace(awaits_needs=isinstance(error, WaitForNeeds))
        case DependencyDown():  # if its outages could not be counted
            return _by_rule(task, spec, Reaction.OUTAGE, cause, rng)
        case Retry():
            return charge_failure(
                task, spec, cause, rng, after=error.after, max_attempts=error.max_attempts
            )
        case _:
            return _by_rule(task, spec, spec.reaction(error), cause, rng)


def charge_failure(
    task: ClaimedTask,
    spec: HandlerSpec | None,
    cause: Cause,
    rng: Random,
    *,
    after: timedelta | None = None,
    max_attempts: int | None = None,
) -> Settlement:
    """Charge a failure: retry after the policy's wait, or fail if it was the last attempt."""
    failures = task.failures + 1
    if failures >= min(max_attempts or task.max_attempts, MOST_ATTEMPTS):
        return settle_failure(task, cause)
    level = task.retry_level + 1
    wait = policy_of(task, spec).wait(level, rng) if after is None else after
    return Settlement(task.fence, Event.RETRY, failures, level, wait=wait, cause=cause, task=task)


def settle_failure(task: ClaimedTask, cause: Cause) -> Settlement:
    failures = task.failures + 1
    return Settlement(task.fence, Event.FAIL, failures, task.retry_level, cause=cause, task=task)


def settle_crash(
    task: ClaimedTask, spec: HandlerSpec | None, cause: Cause, rng: Random
) -> Settlement:
    """Settle the only task in a process that died.

    An ``at_most_once`` task never runs again, as its effect may have taken place.
    """
    if task.at_most_once:
        return settle_failure(task, Cause(OUTCOME_UNKNOWN, cause.message))
    return charge_failure(task, spec, cause, rng)


def settle_kill(task: ClaimedTask, message: str) -> Settlement:
    """Settle a run whose process was killed because it was cancelled."""
    return _uncharged(task, Event.CANCEL, Cause(PROCESS_KILLED, message))


def settle_interrupt(task: ClaimedTask, spec: HandlerSpec | None, rng: Random) -> Settlement:
    """Settle a run that its stopping worker ended; an ``at_most_once`` task never runs again."""
    if task.at_most_once:
        return settle_failure(task, Cause(OUTCOME_UNKNOWN, "The worker stopped while it ran."))
    cause = Cause(INTERRUPTED, "The worker stopped while it ran, and its grace was over.")
    match spec.on_interrupt if spec else Reaction.RETRY_FREE:
        case Reaction.RETRY:
            return charge_failure(task, spec, cause, rng)
        case Reaction.FAIL:
            return settle_failure(task, cause)
        case Reaction.RETRY_FREE | Reaction.OUTAGE:
            return Settlement(task.fence, Event.RELEASE, task.failures, task.retry_level, task=task)


def is_outage(spec: HandlerSpec, error: BaseException) -> bool:
    return isinstance(error, DependencyDown) or spec.reaction(error) is Reaction.OUTAGE


def settle_outage(
    task: ClaimedTask,
    spec: HandlerSpec,
    error: BaseException,
    cause: Cause,
    rng: Random,
    seen: Outages,
) -> Settlement:
    """Retry later, uncharged, or beyond the limit as the handler declares.

    Only a task's first outage leaves a row in its history: there may be thousands.
    """
    rule = spec.outage
    if rule.is_over(seen):
        charge = rule.then is Reaction.RETRY
        return charge_failure(task, spec, cause, rng) if charge else settle_failure(task, cause)
    wait = error.retry_in if isinstance(error, DependencyDown) else None
    if wait is None:
        wait = rule.retry.wait(seen.number, rng)
    return _uncharged(task, Event.RETRY if seen.number == 1 else Event.SNOOZE, cause, wait)


def _by_rule(
    task: ClaimedTask, spec: HandlerSpec, reaction: Reaction | None, cause: Cause, rng: Random
) -> Settlement:
    """Apply the reaction to an exception; None: retry, or fail an ``at_most_once`` task."""
    if reaction is None:
        reaction = Reaction.FAIL if task.at_most_once else Reaction.RETRY
    match reaction:
        case Reaction.RETRY:
            return charge_failure(task, spec, cause, rng)
        case Reaction.FAIL:
            return settle_failure(task, cause)
        case Reaction.RETRY_FREE | Reaction.OUTAGE:
            wait = policy_of(task, spec).wait(max(1, task.retry_level), rng)
            return _uncharged(task, Event.RETRY, cause, wait)


def _uncharged(
    task: ClaimedTask, event: Event, cause: Cause, wait: timedelta | None = None
) -> Settlement:
    level = task.retry_level
    return Settlement(task.fence, event, task.failures, level, wait, cause=cause, task=task)


LONGEST_TEXT = 300
OUR_WORDS = (  # kinds of causes whose text is our own; no exception has such a name
    *(PROCESS_DIED, VANISHED, INTERRUPTED, CONNECTION_LOST, REFUSED, ABORTED, OUTCOME_UNKNOWN),
    *(PROCESS_KILLED, BAD_OUTCOME, "disabled", "expired"),
)


def exception_text(cause: Cause, payload: str | None) -> str:
    """Return an exception's kind and first line, without values of the payload.

    The kind alone if the payload is None, because it is large or elsewhere.
    """
    line = cause.message.partition("\n")[0]
    if not line:
        return cause.kind
    if cause.kind not in OUR_WORDS:
        document = None if payload is None else decode_or_none(payload)
        line = MASK if document is None else mask_values(line, leaf_texts(document))
    return storable_text(f"{cause.kind}: {line}", LONGEST_TEXT)


def decode_or_none(text: str) -> Any:
    """Return the value of a JSON text; None: it is unreadable, or stored outside of its row."""
    if reference_in(text) is not None:
        return None
    try:
        return decode(text, "payload")
    except UnreadableTaskError:
        return None
