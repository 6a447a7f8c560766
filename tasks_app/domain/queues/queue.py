"""The settings of a queue: its windows, its load gate, and defaults for its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, TypedDict

from tasks_app.domain.creation import NewTask
from tasks_app.domain.creation import validate
from tasks_app.domain.durations import Duration, format_duration, parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.queues import MOST_HOLIDAYS
from tasks_app.domain.queues import MOST_WINDOWS
from tasks_app.domain.queues import Window
from tasks_app.domain.queues import next_opening
from tasks_app.domain.queues import parse_window
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.retry_policy import RetryPolicy

LARGEST_COUNT = 1_000_000
_OF_TASKS = ("retry", "max_attempts", "timeout", "hard_timeout")


class QueueOptions(TypedDict, total=False):
    """The settings of a queue; what is left out stays, None removes a setting."""

    windows: Sequence[str | Window] | None
    """Its tasks run only then: ``mon-fri 22:00-06:00 Europe/Berlin not on de``."""
    running_below: int | None
    """Its tasks run only while fewer tasks of other queues run."""
    waiting_below: Duration | None
    """Its tasks run only while no due task of another queue has waited this long."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    max_attempts: int | None
    timeout: Duration | None
    hard_timeout: Duration | None
    """The last four: for tasks that do not set them; they override the handler's."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue with settings or a pause, and whether it runs now."""

    queue: str
    """``*``: every queue."""
    at: datetime
    """When this was read, by the database's clock."""
    paused_since: datetime | None = None
    reason: str | None = None
    resume_at: datetime | None = None
    windows: tuple[Window, ...] = ()
    is_open: bool = True
    """Whether one of its windows is open."""
    holidays: dict[str, frozenset[date]] = field(default_factory=dict, repr=False)
    running_below: int | None = None
    waiting_below: timedelta | None = None
    shut: str | None = None
    """Why its load gate is shut: other queues' tasks are ``running``, or ``waiting``."""
    retry: str | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    hard_timeout_ms: int | None = None

    @property
    def runs(self) -> bool:
        return self.paused_since is None and self.is_open and self.shut is None

    @property
    def has_rules(self) -> bool:
        """Whether it has any setting but a pause."""
        return bool(self.windows or self.gate or self.defaults)

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings for tasks that do not set them, by column."""
        names = ("retry", "max_attempts", "timeout_ms", "hard_timeout_ms")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def opens_at(self) -> datetime | None:
        """When the next window opens; None: the queue is open, or none opens within a year."""
        return None if self.is_open else next_opening(self.windows, self.holidays, self.at)

    @property
    def gate(self) -> str:
        """The condition under which its load gate is open, in words."""
        parts = []
        if self.running_below is not None:
            parts.append(f"fewer than {self.running_below} tasks of other queues run")
        if self.waiting_below is not None:
            span = format_duration(self.waiting_below)
            parts.append(f"no due task of another queue has waited for {span}")
        return " and ".join(parts)


def check_options(options: QueueOptions) -> dict[str, Any]:
    """Return the values by column, and the windows under ``windows``; raises InvalidTaskError."""
    for word in options.keys() - QueueOptions.__annotations__.keys():
        allowed = ", ".join(sorted(QueueOptions.__annotations__))
        raise InvalidTaskError(f"options.{word}", "is unknown", allowed)
    said: dict[str, Any] = {}
    if "windows" in options:
        said["windows"] = _windows(options["windows"])
    if "running_below" in options:
        said["running_below"] = _count(options["running_below"])
    if "waiting_below" in options:
        said["waiting_below"] = _span(options["waiting_below"])
    return said | _defaults(options)


def check_days(days: Sequence[date]) -> list[date]:
    """Return a calendar's days, sorted, each once.

    Raises:
        InvalidTaskError: one is not a date, or there are too many.
    """
    found = sorted({day for day in days if type(day) is date and 1970 < day.year < 9000})  # noqa: PLR2004
    if len(found) < len(set(days)):
        raise InvalidTaskError("days", "are not all days", "dates of the years 1971 .. 8999")
    if len(found) > MOST_HOLIDAYS:
        raise InvalidTaskError("days", f"are {len(found)}", f"at most {MOST_HOLIDAYS}")
    return found


def _windows(windows: Sequence[str | Window] | None) -> tuple[Window, ...]:
    if isinstance(windows, str):
        windows = [windows]
    found = tuple(dict.fromkeys(parse_window(window) for window in windows or ()))
    if len(found) > MOST_WINDOWS:
        raise InvalidTaskError("options.windows", f"are {len(found)}", f"at most {MOST_WINDOWS}")
    return found


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_COUNT:
        allowed = f"an integer 1 .. {LARGEST_COUNT}"
        raise InvalidTaskError("options.running_below", f"is {value!r:.60}", allowed)
    return value


def _span(value: Duration | None) -> timedelta | None:
    if value is None:
        return None
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise InvalidTaskError("options.waiting_below", str(error), "such as '30s'") from None
    if not span:
        raise InvalidTaskError("options.waiting_below", "is 0 s", "more than that")
    return span


def _defaults(options: QueueOptions) -> dict[str, Any]:
    """Return the defaults for tasks by column, checked as a task's own options are."""
    given: dict[str, Any] = {word: value for word, value in options.items() if word in _OF_TASKS}
    task: TaskOptions = {**given}  # type: ignore[typeddict-item]
    row = validate(NewTask("default", None, task), None, 100)
    columns = {"timeout": "timeout_ms", "hard_timeout": "hard_timeout_ms"}
    said = {columns.get(word, word): getattr(row.terms, columns.get(word, word)) for word in given}
    if given.get("retry") is not None:
        said["max_attempts"] = row.terms.max_attempts
    return said
