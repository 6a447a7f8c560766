"""What becomes of a run: pure decisions that the pool carries out under the fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks_app.domain.handlers.outcomes import (
    Cancel,
    DependencyDown,
    Fail,
    Reaction,
    Retry,
    Skip,
    Snooze,
)
from tasks_app.domain.tasks.retry_policy import DEFAULT_POLICY, MOST_ATTEMPTS, parse_policy
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event

if TYPE_CHECKING:
    from datetime import timedelta
    from random import Random

    from tasks_app.domain.handlers.spec import HandlerSpec
    from tasks_app.domain.tasks.retry_policy import RetryPolicy

OUTCOME_UNKNOWN = "outcome unknown"
PROCESS_DIED = "process died"
INTERRUPTED = "interrupted"
_SUCCEED = Event.SUCCEED
VANISHED, CONNECTION_LOST = "worker vanished", "connection lost"
BAD_OUTCOME = "outcome cannot be stored"


def policy_of(task: ClaimedTask, spec: HandlerSpec | None) -> RetryPolicy:
    """Return the task's own policy, else its handler's, else the default.

    A policy that somebody wrote by hand and that cannot be read is passed over.
    """
    if task.retry is not None:
        try:
            return parse_policy(task.retry)
        except ValueError:
            pass
    return spec.retry if spec else DEFAULT_POLICY


def succeeded(task: ClaimedTask, result: str | None, run_ms: int) -> Settlement:
    """The handler returned."""
    return Settlement(  # by position: by name it takes half as long again
        task.fence,
        _SUCCEED,
        task.failures,
        task.retry_level,
        None,
        None,
        result,
        None,
        run_ms,
        task,
    )


def ended_by(
    task: ClaimedTask,
    spec: HandlerSpec,
    error: BaseException,
    cause: Cause,
    rng: Random,
) -> Settlement:
    """The handler raised ``error``; ``cause`` is the same, fit to be stored."""
    match error:
        case Skip():
            return _over(task, Event.SKIP, cause)
        case Cancel():
            return _over(task, Event.CANCEL, cause)
        case Fail():
            return failed(task, cause)
        case Snooze():
            return Settlement(
                task.fence,
                Event.SNOOZE,
                task.failures,
                task.retry_level,
                wait=error.after,
                cause=cause,
                task=task,
            )
        case DependencyDown():  # beyond what is counted: see outage.py
            return _by_rule(task, spec, Reaction.OUTAGE, cause, rng)
        case Retry():
            return charged(
                task, spec, cause, rng, after=error.after, max_attempts=error.max_attempts
            )
        case _:
            return _by_rule(task, spec, spec.reaction(error), cause, rng)


def charged(
    task: ClaimedTask,
    spec: HandlerSpec | None,
    cause: Cause,
    rng: Random,
    *,
    after: timedelta | None = None,
    max_attempts: int | None = None,
) -> Settlement:
    """One failure more: again after the policy's wait, or the error pool if it was the last."""
    failures = task.failures + 1
    if failures >= min(max_attempts or task.max_attempts, MOST_ATTEMPTS):
        return failed(task, cause)
    level = task.retry_level + 1
    wait = policy_of(task, spec).wait(level, rng) if after is None else after
    return Settlement(task.fence, Event.RETRY, failures, level, wait=wait, cause=cause, task=task)


def failed(task: ClaimedTask, cause: Cause) -> Settlement:
    """The error pool, now."""
    failures = task.failures + 1
    return Settlement(task.fence, Event.FAIL, failures, task.retry_level, cause=cause, task=task)


def died(task: ClaimedTask, spec: HandlerSpec | None, cause: Cause, rng: Random) -> Settlement:
    """The task's process died while it ran, and only it ran there.

    An ``at_most_once`` task is never run again: whether its effect took place, nobody knows.
    """
    if task.at_most_once:
        return failed(task, Cause(OUTCOME_UNKNOWN, cause.message))
    return charged(task, spec, cause, rng)


def interrupted(task: ClaimedTask, spec: HandlerSpec | None, rng: Random) -> Settlement:
    """A worker that stops let go of the run; an ``at_most_once`` task is never run again."""
    if task.at_most_once:
        return failed(task, Cause(OUTCOME_UNKNOWN, "The worker stopped while it ran."))
    cause = Cause(INTERRUPTED, "The worker stopped while it ran, and its grace was over.")
    match spec.on_interrupt if spec else Reaction.RETRY_FREE:
        case Reaction.RETRY:
            return charged(task, spec, cause, rng)
        case Reaction.FAIL:
            return failed(task, cause)
        case Reaction.RETRY_FREE | Reaction.OUTAGE:
            return Settlement(task.fence, Event.RELEASE, task.failures, task.retry_level, task=task)


def _by_rule(
    task: ClaimedTask,
    spec: HandlerSpec,
    reaction: Reaction | None,
    cause: Cause,
    rng: Random,
) -> Settlement:
    """An exception: the handler's rule for its class, else retry (at_most_once: fail)."""
    if reaction is None:
        reaction = Reaction.FAIL if task.at_most_once else Reaction.RETRY
    match reaction:
        case Reaction.RETRY:
            return charged(task, spec, cause, rng)
        case Reaction.FAIL:
            return failed(task, cause)
        case Reaction.RETRY_FREE | Reaction.OUTAGE:
            level = max(1, task.retry_level)
            wait = policy_of(task, spec).wait(level, rng)
            return Settlement(
                task.fence,
                Event.RETRY,
                task.failures,
                task.retry_level,
                wait=wait,
                cause=cause,
                task=task,
            )


def _over(task: ClaimedTask, event: Event, cause: Cause) -> Settlement:
    return Settlement(task.fence, event, task.failures, task.retry_level, cause=cause, task=task)
