"""Which schedules pg_cron can fire by its own clock, at the instants at which we do.

It reads expressions as Vixie's cron: what it reads otherwise, in silence, is refused here.
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
    {
        *("retry_level", "max_attempts", "retry", "timeout_ms", "hard_timeout_ms", "order_skips"),
        *("fair_key", "biz_key", "unique_key", "order_key", "limit_key", "more_limit_keys"),
        *("delay_s", "headers"),
    }
)
"""What the function in the database gives to a task."""
_HIGHEST = (59, 23, 31, 12, 7)
_TERM = re.compile(r"(?:\*|(\d+|[A-Z]{3})(?:-(\d+|[A-Z]{3}))?)(?:/(\d+))?", re.IGNORECASE)
_AHEAD = timedelta(days=731)
"""A zone whose clocks do not change for so long has no clock changes."""


def written_for_pg_cron(expression: str) -> str:
    """Return it without shorthands: ``@yearly`` never comes, and ``@Daily`` is unknown to it."""
    return SHORTHANDS.get(expression.lower(), expression)


def why_not(schedule: Schedule, now: datetime, clocks: str | None = None) -> str | None:
    """Say why pg_cron cannot fire this schedule as we do; None: it can.

    ``clocks``: its zone; None: whatever is wanted.
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
    return _why_not_read(schedule.expression) or _why_not_by(schedule.zone, clocks, now)


def offset_of(zone: str, now: datetime) -> timedelta | None:
    """Return by how much its clocks are ahead of UTC; None: they change from now on."""
    return _offset_of(zone, now.astimezone(UTC).date())


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
    """Whether these are two numbers; a step behind one number is read as "from there on" by us."""
    if last is None or first.isdigit() != last.isdigit():
        return False
    return int(first) != int(last) if first.isdigit() else first.lower() != last.lower()


def _why_not_by(zone: str, clocks: str | None, now: datetime) -> str | None:
    ahead = offset_of(zone, now)
    if ahead is None:
        return f"the clocks of {zone} change"
    if clocks is None:
        return None
    try:
        same = ahead == offset_of(clocks, now)
    except TasksError:
        same = False
    return None if same else f"its zone is {zone}, that of pg_cron is {clocks}"


@lru_cache(256)
def _offset_of(zone: str, day: date) -> timedelta | None:
    start = datetime.combine(day, time(), UTC)
    if next_change(zone_of(zone), start, start + _AHEAD) is not None:
        return None
    return start.astimezone(zone_of(zone)).utcoffset()
