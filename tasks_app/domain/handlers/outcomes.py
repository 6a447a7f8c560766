"""What a handler may raise to decide how its run ends, and which failures count as outages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tasks_app.domain.durations import Duration, named_duration, parse_duration
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS, Exponential, RetryPolicy


class Outcome(Exception):  # noqa: N818  an outcome, not an error
    """The base of the outcomes below. Writes through ``ctx.session`` are rolled back."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Outcome):
    """Try again; charges one failure.

    ``after`` overrides the policy's wait, and ``max_attempts`` the task's limit, this time only.
    ``payload`` replaces the task's payload from the next attempt on.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        after: Duration | None = None,
        max_attempts: int | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(reason)
        self.after: timedelta | None = None if after is None else named_duration("after", after)
        self.max_attempts = max_attempts
        self.payload = payload


class Snooze(Outcome):
    """Run again after ``after``, because it is too early; charges nothing."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.after: timedelta = named_duration("after", after)


class WaitForNeeds(Snooze):
    """Run again when its needs are met, which the run has entered and committed. Ours alone."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(0, reason)


class DependencyDown(Outcome):
    """A dependency does not answer: run again, uncharged up to the handler's limit.

    ``dependency`` names it if it is not the one in ``depends_on``; ``retry_in`` overrides the wait.
    """

    def __init__(
        self, dependency: str = "", reason: str = "", *, retry_in: Duration | None = None
    ) -> None:
        super().__init__(reason or f"{dependency or 'a dependency'} does not answer")
        self.dependency = dependency
        self.retry_in: timedelta | None = None
        if retry_in is not None:
            self.retry_in = named_duration("retry_in", retry_in)


class Fail(Outcome):
    """Move the task to the error pool now; more attempts would not help."""


class Cancel(Outcome):
    """Stop the task on purpose: it is CANCELLED, in the completed pool."""


class Skip(Outcome):
    """There is nothing to do: the task is SKIPPED, in the completed pool."""


class Reaction(StrEnum):
    """What follows an exception or an interrupt, in ``on_error`` and ``on_interrupt``."""

    RETRY = "retry"  # run again, charged; the default
    FAIL = "fail"  # go to the error pool at once
    RETRY_FREE = "retry_free"  # run again after the policy's wait, uncharged
    OUTAGE = "outage"  # as DependencyDown: run again, uncharged up to the handler's limit


@dataclass(frozen=True, slots=True)
class Outages:
    """The number of a task's outages, this one included, and the time since the first."""

    number: int
    since: timedelta


_GROWING = Exponential(cap=timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class OutageRule:
    """How a handler's tasks wait for a dependency that is down, and for how long at most."""

    retry: RetryPolicy = _GROWING  # its level is the number of outages
    most: int | None = None
    longest: timedelta | None = timedelta(days=2)  # since the first one; longer than most outages
    then: Reaction = Reaction.RETRY  # beyond the limit: RETRY charges a failure, FAIL gives up

    def is_over(self, seen: Outages) -> bool:
        """Whether this outage is beyond the limit, and charged."""
        too_many = self.most is not None and seen.number > self.most
        return too_many or (self.longest is not None and seen.since > self.longest)


DEFAULT_RULE = OutageRule()


def parse_outage_limit(value: int | Duration) -> tuple[int | None, timedelta | None]:
    """Return a number of outages (a bare int) or the time since the first; raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_ATTEMPTS:
            raise ValueError(f"is {value!r:.60}; a number is 1 .. {MOST_ATTEMPTS}")
        return value, None
    span = parse_duration(value)
    if not span:
        raise ValueError("is 0 s")
    return None, span
