"""Outages: attempts that failed because something else was down. They charge nothing, up to a cap.

They are counted over the whole life of a task in the pending pool, until somebody requeues it, and
written down only where one happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.handlers.outcomes import DependencyDown, Reaction
from tasks_app.domain.handlers.settlement import charged, failed
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS, Exponential, RetryPolicy
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event

if TYPE_CHECKING:
    from random import Random

    from tasks_app.domain.handlers.spec import HandlerSpec


@dataclass(frozen=True, slots=True)
class Outages:
    """How many there were with this one, and how long ago the first one was."""

    number: int
    since: timedelta


_GROWING = Exponential(cap=timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class OutageRule:
    """How a handler's tasks wait for what is down, and for how long at most."""

    retry: RetryPolicy = _GROWING
    """Levels rise with the number of outages; its own number of attempts means nothing here."""
    most: int | None = None
    longest: timedelta | None = timedelta(days=2)
    """Since the first one. Longer than most outages, shorter than anybody's patience."""
    then: Reaction = Reaction.RETRY
    """Of what comes after that: charged as any failure, or the error pool at once."""

    def is_over(self, seen: Outages) -> bool:
        """Tell whether this one is charged."""
        too_many = self.most is not None and seen.number > self.most
        return too_many or (self.longest is not None and seen.since > self.longest)


DEFAULT_RULE = OutageRule()


def parse_limit(value: int | Duration) -> tuple[int | None, timedelta | None]:
    """Return a number of outages, or the time since the first one: a bare number is a number.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_ATTEMPTS:
            raise ValueError(f"is {value!r:.60}; a number is 1 .. {MOST_ATTEMPTS}")
        return value, None
    span = parse_duration(value)
    if not span:
        raise ValueError("is 0 s")
    return None, span


def is_outage(spec: HandlerSpec, error: BaseException) -> bool:
    """Tell whether the error says that something else is down."""
    return isinstance(error, DependencyDown) or spec.reaction(error) is Reaction.OUTAGE


def put_off(
    task: ClaimedTask,
    spec: HandlerSpec,
    error: BaseException,
    cause: Cause,
    rng: Random,
    seen: Outages,
) -> Settlement:
    """Something else is down: again later, uncharged; above the cap as the handler declares.

    Only the first outage of a task leaves a line in its history: there may be thousands.
    """
    rule = spec.outage
    if rule.is_over(seen):
        charge = rule.then is Reaction.RETRY
        return charged(task, spec, cause, rng) if charge else failed(task, cause)
    wait = error.retry_in if isinstance(error, DependencyDown) else None
    return Settlement(
        task.fence,
        Event.RETRY if seen.number == 1 else Event.SNOOZE,
        task.failures,
        task.retry_level,
        wait=rule.retry.wait(seen.number, rng) if wait is None else wait,
        cause=cause,
        task=task,
    )
