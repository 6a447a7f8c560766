"""Which schedules pg_cron can fire at the same instants as we do.

pg_cron reads expressions like Vixie's cron: what it would silently read differently is refused.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from tasks_app.domain.errors import TasksError
from tasks_app.domain.schedules.cron import SHORTHANDS, next_change, zone_of
from tasks_app.domain.schedules.misfire import MisfirePolicy, Overlap
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.schedules.timing import TimingKind

OVERLAPS = (Overlap.ALLOW, Overlap.SKIP)
MISSED = (MisfirePolicy.SKIP, MisfirePolicy.FIRE_ONCE)
OPTIONS = frozenset(
    {  # that the function in the database sets
        *("retry_level", "max_attempts", "retry", "timeout_ms", "hard_timeout_ms", "order_skips"),
        *("fair_key", "biz_key", "unique_key", "order_key", "limit_key", "more_limit_keys"),
        *("locks", "weight", "delay_s", "headers"),
    }
)
_HIGHEST = (59, 23, 31, 12, 7)
_TERM = re.compile(r"(?:\*|(\d+|[A-Z]{3})(?:-(\d+|[A-Z]{3}))?)(?:/(\d+))?", re.IGNORECASE)
_AHEAD = timedelta(days=731)  # a zone without a clock change in this time has none


def written_for_pg_cron(expression: str) -> str:
    """Replace shorthands: in pg_cron ``@yearly`` never fires, and ``@Daily`` is unknown."""
    return SHORTHANDS.get(expression.lower(), expression)


def why_pg_cron_cannot_fire(
    schedule: Schedule, now: datetime, clocks: str | None = None
) -> str | None:
    """Return why pg_cron cannot fire this schedule as we do; None: it can.

    ``clocks``: the zone of pg_cron; None: any.
    """
    try:
        options = json.loads(schedule.options)
        _ = schedule.timing
    except (TasksError, ValueError) as error:
        return f"it cannot be read: {error}"
    if schedule.kind != TimingKind.CRON:
        return "it has no cron expression"
    if schedule.days_off is not None:
        return "it has days off"
    if schedule.overlap not in OVERLAPS:
        return f"overlap={schedule.overlap}"
    if schedule.missed not in MISSED:
        return "fire_all: pg_cron catches up with nothing"
    for option in sorted(options.keys() - OPTIONS):
        return f"its option {option}"
    if problem := _why_not_read(schedule.expression):
        return problem
    ahead = offset_of(schedule.zone, now)
    if ahead is None:
        return f"the clocks of {schedule.zone} change"
    try:
        if clocks is None or ahead == offset_of(clocks, now):
            return None
    except TasksError:  # pg_cron has a zone that Python does not know
        pass
    return f"its zone is {schedule.zone}, that of pg_cron is {clocks}"


def offset_of(zone: str, now: datetime) -> timedelta | None:
    """Return the offset of a zone from UTC; None: it changes from now on."""
    return _offset_of(zone, now.astimezone(UTC).date())


@lru_cache(256)
def _offset_of(zone: str, day: date) -> timedelta | None:
    start = datetime.combine(day, time(), UTC)
    if next_change(zone_of(zone), start, start + _AHEAD) is not None:
        return None
    return start.astimezone(zone_of(zone)).utcoffset()


def _why_not_read(expression: str) -> str | None:
    fields = written_for_pg_cron(expression).split()
    if len(fields) != len(_HIGHEST):
        return "it has seconds"
    for field, highest in zip(fields, _HIGHEST, strict=True):
        for term in field.split(","):
            found = _TERM.fullmatch(term)
            first, last, step = found.groups() if found else (None, None, "0")
            steps_to_end = first is not None and not _is_span(first, last)
            if step is not None and (steps_to_end or not 0 < int(step) <= highest):
                return f"pg_cron does not read {term} as we do"
    return None


def _is_span(first: str, last: str | None) -> bool:
    """Whether this is a span of numbers or names; we read a step after one number differently."""
    if last is None or first.isdigit() != last.isdigit():
        return False
    return int(first) != int(last) if first.isdigit() else first.lower() != last.lower()
