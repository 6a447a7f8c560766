"""Cron expressions in a time zone; clock changes follow the rules of Debian's cron.

* An expression whose minute or hour begins with ``*`` fires whenever the wall clock shows a
  matching time. A skipped time does not fire; a repeated one fires twice.
* Any other expression names times of the day, which fire once a day: the skipped ones together
  right after the gap, a repeated one the first time.

cronsim reads the expression and yields naive local times; only this file handles zones.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from tasks_app.domain.errors import InvalidScheduleError

if TYPE_CHECKING:
    from cronsim import CronSim

LONGEST = 255
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# The fields of an expression, and how many numbers each may name.
NUMBERED = {"minutes": 60, "hours": 24, "days": 31, "months": 12, "weekdays": 7}
# Files beside the zones of IANA: this machine's own, and those that count leap seconds.
_NOT_OF_THE_LIST = re.compile(r"localtime$|posixrules$|Factory$|right/|posix/")
_DAY, _MINUTE, _SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
_TICK = timedelta(microseconds=1)


class CronNumbers(NamedTuple):
    named: dict[str, list[int]]  # by field, without fields that name all; Sunday is 0
    either: bool  # whether day or weekday is enough


def check_cron(expression: object) -> str:
    """Return the expression, its fields one space apart; raises InvalidScheduleError."""
    if not isinstance(expression, str) or len(expression) > LONGEST:
        raise _refusal("is not text of at most 255 characters")
    written = " ".join(expression.split())
    shown = repr(written[:60])
    try:
        sim = _sim(written)
    except (AssertionError, TypeError, IndexError):
        raise _refusal(f"is {shown}, which cannot be read") from None
    except Exception as error:  # cronsim's own error; cronsim is imported at its first use
        raise _refusal(f"is {shown}: {str(error).lower()[:60]}") from None
    if next(_local_times(sim, datetime(2000, 1, 1)), None) is None:  # noqa: DTZ001  local times have no zone
        raise _refusal(f"is {shown}, a day that no year has")
    return written


def _refusal(problem: str) -> InvalidScheduleError:
    return InvalidScheduleError(
        "cron",
        problem,
        "minute, hour, day, month and weekday, seconds before them if you like, "
        "such as '30 2 * * *' or '*/15 * * * * *'",
    )


@lru_cache(256)
def zone_of(name: str) -> ZoneInfo:
    """Return the zone of an IANA name; raises InvalidScheduleError."""
    try:
        if _NOT_OF_THE_LIST.match(name):
            raise ValueError
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        allowed = "a name of the IANA list, such as Europe/Berlin"
        raise InvalidScheduleError("timezone", f"is {name!r:.60}", allowed) from None


def next_cron(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after ``after``, in UTC; None: there is none."""
    sim = _sim(expression)
    try:
        if _is_wild(sim):
            return _next_shown(sim, zone, after)
        for local in _local_times(sim, after.astimezone(zone).replace(tzinfo=None)):
            instant = first_shown(local, zone)
            if instant > after:
                return instant
    except OverflowError:  # the year 9999 is over
        return None
    return None


def times_on(expression: str, zone: ZoneInfo, day: date, since: time) -> Iterator[time]:
    """Yield the times of a day that an expression names, or that match and are shown."""
    sim = _sim(expression)
    for local in _local_times(sim, datetime.combine(day, since) - _SECOND):
        if local.date() != day:
            return
        if not _is_wild(sim) or _is_shown(local, zone):
            yield local.time()


def numbers_of(expression: str) -> CronNumbers:
    """Return the numbers of an expression without seconds, ``L`` and ``#``."""
    sim = _sim(expression)
    weekdays = {int(day) % 7 for day in sim.weekdays if not isinstance(day, tuple)}
    found = (sim.minutes, sim.hours, sim.days, sim.months, weekdays)
    fields = zip(NUMBERED.items(), found, strict=True)
    named = {name: sorted(all_) for (name, most), all_ in fields if len(all_) < most}
    return CronNumbers(named, not sim.day_and)


def explain_cron(expression: str) -> str:
    try:
        return str(_sim(expression).explain())
    except Exception:  # cronsim has no words for a few valid expressions
        return f"By the cron expression {expression}"


def _next_shown(sim: CronSim, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Go from one clock change to the next; between two of them the offset is constant."""
    at = after.astimezone(UTC)
    offset = _offset(zone, at)
    start = at + offset
    while True:
        local = next(_local_times(sim, start.replace(tzinfo=None)), None)
        if local is None:
            return None
        instant = local.replace(tzinfo=UTC) - offset
        change = next_change(zone, at, instant)
        if change is None:
            return instant
        at, offset = change, _offset(zone, change)
        start = change + offset - _TICK


def first_shown(local: datetime, zone: ZoneInfo) -> datetime:
    """Return when the clock first shows this local time; for a skipped time, the end of the gap."""
    if not _is_shown(local, zone):
        local = local.replace(second=0, microsecond=0)
        while not _is_shown(local, zone):
            local += _MINUTE
    return local.replace(tzinfo=zone).astimezone(UTC)


def _is_shown(local: datetime, zone: ZoneInfo) -> bool:
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    return instant.astimezone(zone).replace(tzinfo=None) == local


def next_change(zone: ZoneInfo, since: datetime, until: datetime) -> datetime | None:
    """Return the first clock change after ``since`` and up to ``until``."""
    low, offset = since.replace(microsecond=0), _offset(zone, since)
    while low < until:
        high = min(low + _DAY, until)
        if _offset(zone, high) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) // _SECOND // 2 * _SECOND
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return high
        low = high
    return None


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)


def _local_times(sim: CronSim, start: datetime) -> Iterator[datetime]:
    """Yield the matching local times after ``start``, without a zone."""
    walker = copy.copy(sim)
    walker.dt = start.replace(microsecond=0)
    return walker


def _is_wild(sim: CronSim) -> bool:
    return sim.parts[1].startswith("*") or sim.parts[2].startswith("*")


@lru_cache(1024)
def _sim(expression: str) -> CronSim:
    from cronsim import CronSim  # noqa: PLC0415  only where there are schedules

    return CronSim(SHORTHANDS.get(expression.lower(), expression), datetime(2000, 1, 1))  # noqa: DTZ001
