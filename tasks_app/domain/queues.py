"""Time windows: when a queue is open, by the wall clock of a time zone.

Written ``mon-fri 22:00-06:00 Europe/Berlin not on de``: days, zone and calendar may be left out.
A window belongs to the day on which it opens, also beyond midnight. It is open whenever the wall
clock shows a time in it: an hour that the clock skips is not there, one that it repeats counts
twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.schedules.cron import next_change, zone_of
from tasks_app.domain.tasks.names import QUEUE

MOST_WINDOWS, MOST_HOLIDAYS = 50, 10_000
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EVERY_DAY = tuple(range(1, 8))
_WRITTEN = re.compile(
    r"^(?:(?P<days>[a-z]{3}[a-z,-]*)\s+)?(?P<opens>\d\d:\d\d)-(?P<closes>\d\d:\d\d)"
    r"(?:\s+(?!not\b)(?P<zone>\S+))?(?:\s+not\s+on\s+(?P<calendar>\S+))?$"
)
_ALLOWED = "such as 'mon-fri 22:00-06:00 Europe/Berlin not on de'"
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_MINUTES_OF_A_DAY = 24 * 60
_FARTHEST = 400
"""How many days ahead an opening is searched: a queue that is shut for longer is paused."""
_ZONES_APART = 2
"""Days by which the dates of two zones can differ, rounded up."""

Holidays = Mapping[str, Collection[date]]
"""The days of each calendar."""


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time on some days. Equal times mean 24 hours."""

    days: tuple[int, ...]
    """On which it opens: 1 is Monday, 7 Sunday."""
    opens: int
    closes: int
    """Both in minutes since midnight; up to ``opens`` it closes on the next day."""
    zone: str
    calendar: str | None = None
    """It does not open on this calendar's days."""

    def __str__(self) -> str:
        days = f"{_written_days(self.days)} " if self.days != _EVERY_DAY else ""
        holidays = f" not on {self.calendar}" if self.calendar else ""
        return f"{days}{_hands(self.opens)}-{_hands(self.closes)} {self.zone}{holidays}"

    @property
    def times(self) -> tuple[str, str]:
        """When it opens and closes, as ``HH:MM``."""
        return _hands(self.opens), _hands(self.closes)

    def is_open(self, at: datetime, holidays: Holidays) -> bool:
        """Whether the wall clock shows a time in it."""
        hands = at.astimezone(zone_of(self.zone)).replace(tzinfo=None)
        today = hands.date()
        return any(
            begins <= hands < ends
            for day in (today, today - _DAY)
            if self._opens_on(day, holidays)
            for begins, ends in (self._stretch(day),)
        )

    def edges(self, day: date, holidays: Holidays) -> Iterable[datetime]:
        """Yield the instants at which the window of this day may open."""
        if self._opens_on(day, holidays):
            begins, _ = self._stretch(day)
            for fold in (0, 1):
                yield begins.replace(tzinfo=zone_of(self.zone), fold=fold).astimezone(UTC)

    def _opens_on(self, day: date, holidays: Holidays) -> bool:
        return day.isoweekday() in self.days and day not in holidays.get(self.calendar or "", ())

    def _stretch(self, day: date) -> tuple[datetime, datetime]:
        midnight = datetime.combine(day, time())
        beyond = _DAY if self.closes <= self.opens else timedelta(0)
        return midnight + self.opens * _MINUTE, midnight + self.closes * _MINUTE + beyond


def parse_window(text: object) -> Window:
    """Return the window; InvalidTaskError if the text cannot be read or the zone is unknown."""
    if isinstance(text, Window):
        return text
    found = _WRITTEN.match(" ".join(text.split())) if isinstance(text, str) else None
    if found is None:
        raise _refused(f"is {text!r:.60}")
    opens, closes = _minutes(found["opens"]), _minutes(found["closes"])
    if opens == _MINUTES_OF_A_DAY:
        raise _refused("opens at 24:00")
    calendar = found["calendar"]
    if calendar is not None and not QUEUE.match(calendar):
        raise _refused(f"names the calendar {calendar!r:.60}")
    zone = zone_of(found["zone"] or "UTC").key
    return Window(_days(found["days"]), opens, closes, zone, calendar)


def next_opening(windows: Sequence[Window], holidays: Holidays, at: datetime) -> datetime | None:
    """Return when the first opens, if none is open now; None: not within a year."""
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


def _minutes(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    total = 60 * hours + minutes
    if minutes > 59 or total > _MINUTES_OF_A_DAY:  # noqa: PLR2004  of an hour
        raise _refused(f"names the time {text}")
    return total


def _hands(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _days(text: str | None) -> tuple[int, ...]:
    if text is None:
        return _EVERY_DAY
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("-")
        if len(ends) > 2 or not set(ends) <= set(_DAYS):  # noqa: PLR2004  first and last
            raise _refused(f"names the days {part!r:.60}")
        first, last = _DAYS.index(ends[0]), _DAYS.index(ends[-1])
        found |= {(first + step) % 7 + 1 for step in range((last - first) % 7 + 1)}
    return tuple(sorted(found))


def _written_days(days: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for day in days:
        if runs and day == runs[-1][-1] + 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    words = ((_DAYS[run[0] - 1], _DAYS[run[-1] - 1]) for run in runs)
    return ",".join(first if first == last else f"{first}-{last}" for first, last in words)


def _refused(problem: str) -> InvalidTaskError:
    return InvalidTaskError("window", problem, _ALLOWED)
