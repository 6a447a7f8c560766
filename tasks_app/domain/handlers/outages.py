"""Outages: attempts that failed because a dependency was down. They charge nothing, up to a cap.

They are counted over a task's whole life in the pending pool, until a requeue. A task without one
has no row for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.handlers.outcomes import Reaction
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS, Exponential, RetryPolicy


@dataclass(frozen=True, slots=True)
class Outages:
    """How many there were, this one included, and the time since the first."""

    number: int
    since: timedelta


_GROWING = Exponential(cap=timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class OutageRule:
    """How a handler's tasks wait for a dependency that is down, and for how long at most."""

    retry: RetryPolicy = _GROWING
    """The level is the number of outages; the policy's ``max_attempts`` is not used."""
    most: int | None = None
    longest: timedelta | None = timedelta(days=2)
    """Since the first one. Longer than most outages, shorter than people's patience."""
    then: Reaction = Reaction.RETRY
    """After that: RETRY charges a failure as usual, FAIL leads to the error pool at once."""

    def is_over(self, seen: Outages) -> bool:
        """Whether the limit is passed, so that this outage is charged."""
        too_many = self.most is not None and seen.number > self.most
        return too_many or (self.longest is not None and seen.since > self.longest)


DEFAULT_RULE = OutageRule()


def parse_limit(value: int | Duration) -> tuple[int | None, timedelta | None]:
    """Return a number of outages (a bare int) or the time since the first; raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_ATTEMPTS:
            raise ValueError(f"is {value!r:.60}; a number is 1 .. {MOST_ATTEMPTS}")
        return value, None
    span = parse_duration(value)
    if not span:
        raise ValueError("is 0 s")
    return None, span
