"""Queues: their settings, the time windows in which they are open, and why one stands still."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any, TypedDict

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.durations import Duration, format_duration, parse_duration, to_the_second
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.schedules.cron import next_change, zone_of
from tasks_app.domain.tasks.options import QUEUE, parse_option, read_integer
from tasks_app.domain.tasks.retry_policy import RetryPolicy

LARGEST_COUNT = 1_000_000
MOST_WINDOWS, MOST_HOLIDAYS = 50, 10_000


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


_EVERY_DAY = tuple(range(1, 8))


_WRITTEN = re.compile(
    r"^(?:(?P<days>[a-z]{3}[a-z,-]*)\s+)?(?P<opens>\d\d:\d\d)-(?P<closes>\d\d:\d\d)"
    r"(?:\s+(?!not\b)(?P<zone>\S+))?(?:\s+not\s+on\s+(?P<calendar>\S+))?$"
)


_ALLOWED = "such as 'mon-fri 22:00-06:00 Europe/Berlin not on de'"


_DAY = timedelta(days=1)


_MINUTES_OF_A_DAY = 24 * 60


_FARTHEST = 400  # days ahead in which an opening is searched: a longer closing is a pause


_ZONES_APART = 2  # days by which the dates of two zones can differ, rounded up


Holidays = Mapping[str, Collection[date]]  # by calendar


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time on some days. Equal times mean 24 hours."""

    days: tuple[int, ...]  # on which it opens: 1 is Monday, 7 Sunday
    opens: int
    closes: int  # minutes since midnight; up to `opens`: on the next day
    zone: str
    calendar: str | None = None  # on whose days it does not open

    def __str__(self) -> str:
        days = f"{_format_days(self.days)} " if self.days != _EVERY_DAY else ""
        holidays = f" not on {self.calendar}" if self.calendar else ""
        return (
            f"{days}{_format_clock(self.opens)}-{_format_clock(self.closes)} {self.zone}{holidays}"
        )

    @property
    def times(self) -> tuple[str, str]:
        return _format_clock(self.opens), _format_clock(self.closes)

    def is_open(self, at: datetime, holidays: Holidays) -> bool:
        local = at.astimezone(zone_of(self.zone)).replace(tzinfo=None)
        days = (local.date(), local.date() - _DAY)
        spans = [self._span(day) for day in days if self._opens_on(day, holidays)]
        return any(start <= local < end for start, end in spans)

    def edges(self, day: date, holidays: Holidays) -> Iterable[datetime]:
        """Yield the instants at which the window of this day may open."""
        if self._opens_on(day, holidays):
            start, _ = self._span(day)
            for fold in (0, 1):
                yield start.replace(tzinfo=zone_of(self.zone), fold=fold).astimezone(UTC)

    def _opens_on(self, day: date, holidays: Holidays) -> bool:
        return day.isoweekday() in self.days and day not in holidays.get(self.calendar or "", ())

    def _span(self, day: date) -> tuple[datetime, datetime]:
        midnight = datetime.combine(day, time())
        closes = self.closes + (_MINUTES_OF_A_DAY if self.closes <= self.opens else 0)
        return midnight + timedelta(minutes=self.opens), midnight + timedelta(minutes=closes)


class QueueOptions(TypedDict, total=False):
    """The settings of a queue; what is left out stays, None removes a setting."""

    windows: Sequence[str | Window] | None
    """Its tasks run only then: ``mon-fri 22:00-06:00 Europe/Berlin not on de``."""
    running_below: int | None
    """Its tasks run only while fewer tasks of other queues run."""
    waiting_below: Duration | None
    """Its tasks run only while no due task of another queue has waited this long."""
    only_while: str | None
    """Its tasks run only while the function with this name, see :func:`load_gate`, returns true."""
    retry: str | Sequence[Duration] | RetryPolicy | None
    max_attempts: int | None
    timeout: Duration | None
    hard_timeout: Duration | None
    """The last four: for tasks that do not set them; they override the handler's."""


@dataclass(frozen=True, slots=True)
class Pause:
    queue: str  # ``*``: every queue
    since: datetime
    reason: str
    resume_at: datetime | None = None  # None: until an operator resumes it


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue with settings or a pause, and whether it runs now."""

    queue: str  # `*`: every queue
    at: datetime  # when this was read, by the database's clock
    paused_since: datetime | None = None
    reason: str | None = None
    resume_at: datetime | None = None
    windows: tuple[Window, ...] = ()
    is_open: bool = True  # one of its windows is open
    holidays: dict[str, frozenset[date]] = field(default_factory=dict, repr=False)
    running_below: int | None = None
    waiting_below: timedelta | None = None
    only_while: str | None = None
    shut: str | None = None  # why its load gate is: others are running or waiting, or the load
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
        if self.only_while is not None:
            parts.append(f"{self.only_while} says so")
        return " and ".join(parts)


def queue_status(queue: Queue) -> str:
    if queue.paused_since is not None:
        until = f" until {to_the_second(queue.resume_at)}" if queue.resume_at else ""
        reason = f": {queue.reason}" if queue.reason else ""
        return f"paused since {to_the_second(queue.paused_since)}{until}{reason}"
    if not queue.is_open:
        opens_at = queue.opens_at
        return f"closed until {to_the_second(opens_at)}" if opens_at else "closed for over a year"
    if queue.shut == "load":
        return f"shut: {queue.only_while} says no"
    return f"shut: tasks of other queues are {queue.shut}" if queue.shut else "runs"


def check_load_gate(name: object) -> str:
    if not isinstance(name, str) or not QUEUE.fullmatch(name):
        raise InvalidTaskError("options.only_while", f"is {name!r:.60}", "the name of a load gate")
    return name


def check_queue_options(options: QueueOptions) -> dict[str, Any]:
    """Return the values by column, and the windows under ``windows``; raises InvalidTaskError."""
    for word in options.keys() - QueueOptions.__annotations__.keys():
        allowed = ", ".join(sorted(QueueOptions.__annotations__))
        raise InvalidTaskError(f"options.{word}", "is unknown", allowed)
    columns: dict[str, Any] = {}
    if "windows" in options:
        windows = options["windows"] or ()
        parsed = map(parse_window, [windows] if isinstance(windows, str) else windows)
        columns["windows"] = found = tuple(dict.fromkeys(parsed))
        if len(found) > MOST_WINDOWS:
            allowed = f"at most {MOST_WINDOWS}"
            raise InvalidTaskError("options.windows", f"are {len(found)}", allowed)
    if "running_below" in options:
        most = options["running_below"]
        if most is not None:
            most = read_integer(options, "running_below", 1, LARGEST_COUNT)
        columns["running_below"] = most
    if "waiting_below" in options:
        wait = options["waiting_below"]
        if wait is not None:
            wait = parse_option(parse_duration, wait, "waiting_below", "such as '30s'")
            if not wait:
                raise InvalidTaskError("options.waiting_below", "is 0 s", "more than that")
        columns["waiting_below"] = wait
    if "only_while" in options:
        name = options["only_while"]
        columns["only_while"] = None if name is None else check_load_gate(name)
    return columns | _task_defaults(options)


def check_calendar_days(days: Sequence[date]) -> list[date]:
    """Return a calendar's days, sorted, each once; raises InvalidTaskError."""
    found = sorted({day for day in days if type(day) is date and 1970 < day.year < 9000})  # noqa: PLR2004
    if len(found) < len(set(days)):
        allowed = "dates of the years 1971 .. 8999"
        raise InvalidTaskError("days", "contain a value that is not a date", allowed)
    if len(found) > MOST_HOLIDAYS:
        raise InvalidTaskError("days", f"are {len(found)}", f"at most {MOST_HOLIDAYS}")
    return found


def _task_defaults(options: QueueOptions) -> dict[str, Any]:
    """Return the defaults for tasks by column, checked like a task's own options."""
    columns = {"retry": "retry", "max_attempts": "max_attempts"}
    columns |= {"timeout": "timeout_ms", "hard_timeout": "hard_timeout_ms"}
    given: Any = {word: value for word, value in options.items() if word in columns}
    row = validate_task(NewTask("default", None, given), None, 100)
    names = [columns[word] for word in given]
    if given.get("retry") is not None:
        names.append("max_attempts")
    return {name: getattr(row.terms, name) for name in names}


def parse_window(text: object) -> Window:
    """Return the window; InvalidTaskError: the text cannot be read, or the zone is unknown."""
    if isinstance(text, Window):
        return text
    found = _WRITTEN.match(" ".join(text.split())) if isinstance(text, str) else None
    if found is None:
        raise _refusal(f"is {text!r:.60}")
    opens, closes = _parse_clock(found["opens"]), _parse_clock(found["closes"])
    if opens == _MINUTES_OF_A_DAY:
        raise _refusal("opens at 24:00")
    calendar = found["calendar"]
    if calendar is not None and not QUEUE.match(calendar):
        raise _refusal(f"names the calendar {calendar!r:.60}")
    zone = zone_of(found["zone"] or "UTC").key
    return Window(_parse_days(found["days"]), opens, closes, zone, calendar)


def next_opening(windows: Sequence[Window], holidays: Holidays, at: datetime) -> datetime | None:
    """Return when the next window opens if none is open now; None: not within a year."""
    today = at.astimezone(UTC).date()
    opens: datetime | None = None
    for ahead in range(-_ZONES_APART, _FARTHEST):
        day = today + ahead * _DAY
        for edge in _edges(windows, holidays, day):
            found = edge > at and any(window.is_open(edge, holidays) for window in windows)
            if found and (opens is None or edge < opens):
                opens = edge
        if opens is not None and day > opens.date() + _ZONES_APART * _DAY:
            break
    return opens


def _edges(windows: Sequence[Window], holidays: Holidays, day: date) -> set[datetime]:
    """Return the instants of a day at which a window may open: inside a skipped hour, its end."""
    edges = {edge for window in windows for edge in window.edges(day, holidays)}
    for zone in {zone_of(window.zone) for window in windows}:
        midnight = datetime.combine(day, time(), zone).astimezone(UTC)
        changed = next_change(zone, midnight, midnight + _DAY)
        edges |= {changed} if changed else set()
    return edges


def _parse_clock(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    total = 60 * hours + minutes
    if minutes > 59 or total > _MINUTES_OF_A_DAY:  # noqa: PLR2004  of an hour
        raise _refusal(f"names the time {text}")
    return total


def _format_clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _parse_days(text: str | None) -> tuple[int, ...]:
    if text is None:
        return _EVERY_DAY
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("-")
        if len(ends) > 2 or not set(ends) <= set(_DAYS):  # noqa: PLR2004  first and last
            raise _refusal(f"names the days {part!r:.60}")
        first, last = _DAYS.index(ends[0]), _DAYS.index(ends[-1])
        found |= {(first + step) % 7 + 1 for step in range((last - first) % 7 + 1)}
    return tuple(sorted(found))


def _format_days(days: tuple[int, ...]) -> str:
    """Return ``mon-wed,fri`` for 1, 2, 3 and 5."""
    runs = groupby(enumerate(days), lambda pair: pair[1] - pair[0])
    named = ([_DAYS[day - 1] for _, day in run] for _, run in runs)
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in named)


def _refusal(problem: str) -> InvalidTaskError:
    return InvalidTaskError("window", problem, _ALLOWED)
