"""When a schedule fires: by a cron expression, at a fixed interval, or once.

Each is a text of its kind, which is also what a row stores, and gives instants in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from tasks_app.domain.durations import Duration, format_duration, parse_duration
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron, explain_cron, next_cron, zone_of

SHORTEST = timedelta(seconds=1)
UTC_NAME = "UTC"
_EARLIEST, _LATEST = 1970, 9000
_TICK = timedelta(microseconds=1)


class Kind(StrEnum):
    """How a schedule says when."""

    CRON = "cron"
    EVERY = "every"
    ONCE = "once"


class Timing(Protocol):
    """Any of the three below."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant later than this one, in UTC; None: there is none."""

    def explain(self) -> str:
        """Say it in words."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, as the clocks of a zone show it."""

    expression: str
    zone: str = UTC_NAME

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the next match; see ``schedules/cron.py`` for the days when clocks are changed."""
        return next_cron(self.expression, zone_of(self.zone), instant)

    def explain(self) -> str:
        """Say it in words."""
        return f"{explain_cron(self.expression)}, by the clocks of {self.zone}"


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from an instant: clocks that are changed do not matter."""

    interval: timedelta
    anchor: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the next multiple; the anchor is the first."""
        steps = max(0, (instant - self.anchor) // self.interval + 1)
        try:
            return self.anchor.astimezone(UTC) + steps * self.interval
        except OverflowError:
            return None

    def explain(self) -> str:
        """Say it in words."""
        start = f"{self.anchor.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        return f"Every {format_duration(self.interval)}, counted from {start}"


@dataclass(frozen=True, slots=True)
class Once:
    """One instant."""

    at: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        """Return it, if it is still to come."""
        return self.at.astimezone(UTC) if self.at > instant else None

    def explain(self) -> str:
        """Say it in words."""
        return f"Once, at {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def written(
    *, cron: str | None, every: Duration | None, at: datetime | None, zone: str
) -> tuple[Kind, str]:
    """Return kind and text of what was given.

    Raises:
        InvalidScheduleError: not exactly one of the three, or a wrong one.
    """
    zone_of(zone)
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value]
    if len(given) != 1:
        said = f"is given as {' and '.join(given)}" if given else "is not given"
        raise InvalidScheduleError("when", said, "one of cron=, every= and at=")
    if cron is not None and given == ["cron"]:
        return Kind.CRON, check_cron(cron)
    if every is not None and given == ["every"]:
        return Kind.EVERY, format_duration(_interval(every))
    return Kind.ONCE, check_instant("at", at).isoformat()


def timing_of(kind: str, expression: str, zone: str, anchor: datetime) -> Timing:
    """Return the timing that a row describes.

    Raises:
        InvalidScheduleError: it describes none: somebody wrote it past the checks.
    """
    if kind == Kind.CRON:
        return Cron(check_cron(expression), zone_of(zone).key)
    if kind == Kind.EVERY:
        return Every(_interval(expression), anchor)
    try:
        return Once(check_instant("at", datetime.fromisoformat(expression)))
    except ValueError:
        raise InvalidScheduleError("at", "is no instant", "such as 2030-01-31T09:00:00Z") from None


def between(timing: Timing, first: datetime, end: datetime) -> Iterator[datetime]:
    """Walk over the instants from ``first`` on, which may be one, and before ``end``."""
    at = timing.next_after(first - _TICK)
    while at is not None and at < end:
        yield at
        at = timing.next_after(at)


def check_instant(name: str, value: object) -> datetime:
    """Return an aware instant in UTC.

    Raises:
        InvalidScheduleError: it is none that a database and all its drivers hold.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        said = "has no time zone" if isinstance(value, datetime) else "is no datetime"
        raise InvalidScheduleError(name, said, "an aware datetime, such as datetime.now(UTC)")
    if not _EARLIEST < value.year < _LATEST:
        raise InvalidScheduleError(name, f"is in the year {value.year}", "1971 .. 8999")
    return value.astimezone(UTC)


def _interval(value: Duration) -> timedelta:
    try:
        interval = parse_duration(value)
    except ValueError as error:
        raise InvalidScheduleError("every", str(error), "such as '5m', at least 1s") from None
    if interval < SHORTEST:
        raise InvalidScheduleError("every", f"is {format_duration(interval)}", "1s or more")
    return interval
