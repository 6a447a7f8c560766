"""What a handler may raise to decide how its run ends. Returning means success."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tasks_app.domain.durations import Duration, named_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Any


class Outcome(Exception):  # noqa: N818  an outcome, not an error
    """The root of the outcomes below. Writes through ``ctx.session`` are rolled back."""

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


class DependencyDown(Outcome):
    """What the task needs does not answer: run again, uncharged up to the handler's limit.

    ``dependency`` names it if it is not the one that the handler ``depends_on``; ``retry_in``
    overrides the wait.
    """

    def __init__(
        self, dependency: str = "", reason: str = "", *, retry_in: Duration | None = None
    ) -> None:
        super().__init__(reason or f"{dependency or 'what it needs'} does not answer")
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

    RETRY = "retry"
    """Run again, charged. The default."""
    FAIL = "fail"
    """Go to the error pool at once."""
    RETRY_FREE = "retry_free"
    """Run again after the policy's wait, uncharged."""
    OUTAGE = "outage"
    """As DependencyDown: run again, uncharged up to the handler's limit."""
