"""When a schedule fires: by a cron expression, at a fixed interval, or once; and its options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from tasks_app.domain.durations import Duration, format_duration, parse_duration
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron, explain_cron, next_cron, zone_of

if TYPE_CHECKING:
    from tasks_app.domain.schedules.days_off import OnDayOff
    from tasks_app.domain.schedules.misfire import FireAll, MisfirePolicy, Overlap


SHORTEST = timedelta(seconds=1)
UTC_NAME = "UTC"
_TICK = timedelta(microseconds=1)


class TimingKind(StrEnum):
    """The column ``kind`` of a schedule."""

    CRON = "cron"
    EVERY = "every"
    ONCE = "once"


class Timing(Protocol):
    """One of the three classes below."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant after this one, in UTC; None: there is none."""

    def explain(self) -> str:
        """Return the timing in words."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, by the wall clock of a zone."""

    expression: str
    zone: str = UTC_NAME

    def next_after(self, instant: datetime) -> datetime | None:
        return next_cron(self.expression, zone_of(self.zone), instant)

    def explain(self) -> str:
        return f"{explain_cron(self.expression)}, by the clocks of {self.zone}"


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from an instant: clock changes do not matter."""

    interval: timedelta
    anchor: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        """The anchor itself is the first instant."""
        steps = max(0, (instant - self.anchor) // self.interval + 1)
        try:
            return self.anchor.astimezone(UTC) + steps * self.interval
        except OverflowError:
            return None

    def explain(self) -> str:
        start = f"{self.anchor.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        return f"Every {format_duration(self.interval)}, counted from {start}"


@dataclass(frozen=True, slots=True)
class Once:
    at: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at.astimezone(UTC) if self.at > instant else None

    def explain(self) -> str:
        return f"Once, at {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def timing_text(
    *, cron: str | None, every: Duration | None, at: datetime | None, zone: str
) -> tuple[TimingKind, str]:
    """Return kind and text of the one that is given; raises InvalidScheduleError."""
    zone_of(zone)
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value]
    if len(given) != 1:
        problem = f"is given as {' and '.join(given)}" if given else "is not given"
        raise InvalidScheduleError("when", problem, "one of cron=, every= and at=")
    if cron is not None and given == ["cron"]:
        return TimingKind.CRON, check_cron(cron)
    if every is not None and given == ["every"]:
        return TimingKind.EVERY, format_duration(_interval(every))
    return TimingKind.ONCE, check_instant("at", at).isoformat()


def timing_of(kind: str, expression: str, zone: str, anchor: datetime) -> Timing:
    """Return the timing of a row; raises InvalidScheduleError."""
    if kind == TimingKind.CRON:
        return Cron(check_cron(expression), zone_of(zone).key)
    if kind == TimingKind.EVERY:
        return Every(_interval(expression), anchor)
    try:
        return Once(check_instant("at", datetime.fromisoformat(expression)))
    except ValueError:
        problem, allowed = "is not an instant", "such as 2030-01-31T09:00:00Z"
        raise InvalidScheduleError("at", problem, allowed) from None


def _interval(value: Duration) -> timedelta:
    try:
        interval = parse_duration(value)
    except ValueError as error:
        raise InvalidScheduleError("every", str(error), "such as '5m', at least 1s") from None
    if interval < SHORTEST:
        raise InvalidScheduleError("every", f"is {format_duration(interval)}", "1s or more")
    return interval


def instants_between(timing: Timing, first: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the instants from ``first`` (included) to ``end`` (excluded)."""
    at = timing.next_after(first - _TICK)
    while at is not None and at < end:
        yield at
        at = timing.next_after(at)


def check_instant(name: str, value: object) -> datetime:
    """Return an aware datetime in UTC; InvalidScheduleError: it is naive, or out of range."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        problem = "has no time zone" if isinstance(value, datetime) else "is not a datetime"
        raise InvalidScheduleError(name, problem, "an aware datetime, such as datetime.now(UTC)")
    if not 1970 < value.year < 9000:  # noqa: PLR2004  as drivers and PostgreSQL have
        raise InvalidScheduleError(name, f"is in the year {value.year}", "1971 .. 8999")
    return value.astimezone(UTC)


class When(TypedDict, total=False):
    """The options of a schedule that are not its task's."""

    cron: str | None
    """Five fields, or six with seconds first; with names, steps, ``L``, ``MON#2``, ``@daily``."""
    every: Duration | None
    """A fixed interval, counted from ``starts_at`` or, without it, from the creation."""
    at: datetime | None
    """One instant, with a zone."""
    timezone: str
    """The IANA time zone of ``cron``. Default: UTC."""
    missed: str | MisfirePolicy | FireAll
    """For missed instants: ``skip``, ``fire_once`` (default), ``fire_all(n, age)``."""
    overlap: Literal["allow", "skip", "queue", "replace"] | Overlap
    """While the earlier task is not over: ``allow`` (default), ``skip``, ``queue``, ``replace``."""
    jitter: Duration | None
    """Each task becomes due up to this much later, at random."""
    calendar: str | None
    """The name of a calendar, see ``set_calendar``: its days are days off."""
    on_day_off: Literal["skip", "next_working_day"] | OnDayOff | None
    """An instant on a day off: ``skip`` (default), or the same time of the ``next_working_day``,
    for which Saturdays and Sundays are off, too."""
    starts_at: datetime | None
    """No instant before this one fires."""
    ends_at: datetime | None
    """No instant after this one fires."""
    enabled: bool | None
    """False: the schedule does not fire. Default: True."""
