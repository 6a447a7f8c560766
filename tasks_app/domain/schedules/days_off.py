"""Days off: a timing that skips the days of a calendar, or moves to the next working day.

The wall clock of the schedule's zone decides on which day an instant is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import first_shown, times_on
from tasks_app.domain.schedules.timing import Cron, Timing, TimingKind, When

CALENDAR = ("calendar", "on_day_off")  # stored in a schedule's options
_DAY, _TICK = timedelta(days=1), timedelta(microseconds=1)
_FARTHEST = 4000  # days in a row that are checked; a calendar may name each day of ten years
_SATURDAY = 6


class OnDayOff(StrEnum):
    SKIP = "skip"  # it does not fire; days off are those of the calendar
    NEXT_WORKING_DAY = "next_working_day"  # it fires at the same time; weekends are off, too


class DaysOff(NamedTuple):
    calendar: str
    policy: OnDayOff = OnDayOff.SKIP

    def explain(self) -> str:
        if self.policy is OnDayOff.SKIP:
            return f", not on days of {self.calendar}"
        return f", on the next working day after weekends and days of {self.calendar}"


@dataclass(frozen=True, slots=True)
class _WithDaysOff:
    timing: Timing
    zone: ZoneInfo
    off: DaysOff
    days: Collection[date]

    def explain(self) -> str:
        return self.timing.explain() + self.off.explain()


class DaysOffSkipped(_WithDaysOff):
    """A timing without the days of a calendar."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Continue after each day off: an interval of seconds has 86,400 instants on it."""
        at = self.timing.next_after(instant)
        for _ in range(_FARTHEST):
            if at is None or (day := at.astimezone(self.zone).date()) not in self.days:
                return at
            at = self.timing.next_after(_at(day + _DAY, time(), self.zone) - _TICK)
        return None


class DaysOffMoved(_WithDaysOff):
    """A timing whose instants on days off are moved; two that meet are one.

    It moves the time of day that the expression names, even if a clock change skipped it on the
    day off.
    """

    def next_after(self, instant: datetime) -> datetime | None:
        """A working day has its own instants, and those of the days off before it."""
        day = instant.astimezone(self.zone).date()
        for _ in range(_FARTHEST):
            target = day
            while self._is_off(target):
                target += _DAY
            if found := self._first_instant_on(target, instant):
                return found
            following = self.timing.next_after(_at(target + _DAY, time(), self.zone) - _TICK)
            if following is None:
                return None
            # A gap may have moved it over midnight.
            day = max(target + _DAY, following.astimezone(self.zone).date() - _DAY)
        return None

    def _is_off(self, day: date) -> bool:
        return day.isoweekday() >= _SATURDAY or day in self.days

    def _first_instant_on(self, target: date, instant: datetime) -> datetime | None:
        """Return the first instant after ``instant`` on this working day."""
        local = instant.astimezone(self.zone)
        since = local.time() if local.date() == target else time()
        found, day = [self._shown_again(target, instant)], target
        while day == target or self._is_off(day):
            found.append(
                next((at for at in self._moved_instants(day, target, since) if at > instant), None)
            )
            day -= _DAY
        return min(filter(None, found), default=None)

    def _shown_again(self, target: date, instant: datetime) -> datetime | None:
        """Return the next instant if the clock shows it for the second time: it may fire twice."""
        again = self.timing.next_after(instant)
        local = again and again.astimezone(self.zone)
        return again if local and local.fold == 1 and local.date() == target else None

    def _moved_instants(self, day: date, target: date, since: time) -> Iterator[datetime]:
        """Yield the instants of a day from this time on, moved to ``target``."""
        if isinstance(self.timing, Cron):
            for each in times_on(self.timing.expression, self.zone, day, since):
                yield first_shown(datetime.combine(target, each), self.zone)
            return
        at = self.timing.next_after(_at(day, since, self.zone) - _TICK)
        while at is not None and (local := at.astimezone(self.zone)).date() == day:
            moved = first_shown(datetime.combine(target, local.time()), self.zone)
            yield at if day == target else moved
            at = self.timing.next_after(at)


def options_of(when: When, kind: TimingKind) -> dict[str, Any]:
    """Return the options for days off; raises InvalidScheduleError."""
    given: dict[str, Any] = {word: when.get(word) for word in CALENDAR if when.get(word)}
    if "on_day_off" in given and "calendar" not in given:
        raise InvalidScheduleError("on_day_off", "is given without a calendar", "both, or none")
    off = read_days_off(given)
    if off and off.policy is OnDayOff.NEXT_WORKING_DAY and kind is TimingKind.EVERY:
        problem = "cannot move instants of every="
        raise InvalidScheduleError("on_day_off", problem, "skip, or cron= or at=")
    return given


def raw_days_off(options: Any) -> dict[str, Any]:
    """Return the unchecked options for days off."""
    known = options if isinstance(options, dict) else {}
    return {word: known[word] for word in CALENDAR if known.get(word) is not None}


def read_days_off(options: Any) -> DaysOff | None:
    """Return the days off in the options; raises InvalidScheduleError."""
    given = raw_days_off(options)
    if "calendar" not in given:
        return None
    calendar = given["calendar"]
    if not isinstance(calendar, str):
        raise InvalidScheduleError("calendar", f"is {calendar!r:.60}", "the name of a calendar")
    policy = given.get("on_day_off", OnDayOff.SKIP)
    if policy not in list(OnDayOff):
        raise InvalidScheduleError("on_day_off", f"is {policy!r:.60}", ", ".join(OnDayOff))
    return DaysOff(calendar, OnDayOff(policy))


def with_days_off(
    timing: Timing, zone: ZoneInfo, off: DaysOff | None, days: Collection[date]
) -> Timing:
    if off is None:
        return timing
    kind = DaysOffSkipped if off.policy is OnDayOff.SKIP else DaysOffMoved
    return kind(timing, zone, off, frozenset(days))


def _at(day: date, local: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, local.replace(tzinfo=None, fold=0), zone).astimezone(UTC)
