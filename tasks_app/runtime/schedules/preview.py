"""What a schedule will do, and what it has left out: previews, and backfills."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import islice, takewhile
from random import Random
from typing import Final, NamedTuple, Unpack

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.misfire import Fired, first_at, next_at
from tasks_app.domain.schedules.schedule import SchedulePlan
from tasks_app.domain.schedules.timing import Timing, When, check_instant, instants_between
from tasks_app.domain.tasks.options import check_name
from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool import scheduling as rows
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.connections import Sync, connection_of, made_async
from tasks_app.runtime.schedules.declared import ScheduleOptions
from tasks_app.runtime.schedules.scheduler import create_tasks
from tasks_app.runtime.schedules.schedules import changed_schedule, days_of, planned_schedule

MOST_FILLED = 10_000  # instants of one backfill: it is one transaction
MOST_SHOWN = 1_000


class Preview(NamedTuple):
    """When something fires, in words and in instants of UTC."""

    words: str
    instants: list[datetime]


def preview_schedule(session: Sync, name: str, count: int = 10) -> Preview | None:
    """Return the next instants of a schedule, as if it were enabled. None: no such schedule.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> len(preview_schedule(session, "nightly", 3).instants)
    3
    """
    connection = connection_of(session)
    found = rows.get(connection, name)
    if found is None:
        return None
    return Preview(found.explain(), _next(found, found.timing, database_now(connection), count))


def preview_change(
    session: Sync, name: str, count: int = 10, **options: Unpack[ScheduleOptions]
) -> Preview | None:
    """Return the next instants of a schedule after a change. None: there is no such schedule."""
    connection = connection_of(session)
    standing = rows.get(connection, name)
    if standing is None:
        return None
    wanted = changed_schedule(standing, None, options)
    wanted = replace(wanted, holidays=days_of(connection, wanted))
    return Preview(wanted.explain(), _next(wanted, wanted.timing, database_now(connection), count))


def preview(session: Sync, count: int = 10, **when: Unpack[When]) -> Preview:
    """Return when a schedule would fire, also in words, without creating it.

    >>> preview(session, 2, cron="0 3 * * *", timezone="Europe/Berlin").words
    'At 03:00 every day, by the clocks of Europe/Berlin'

    Raises:
        InvalidTaskError: it would be refused.
    """
    connection = connection_of(session)
    now = database_now(connection)
    plan = planned_schedule(NewTask(check_name("preview")), when)
    timing = plan.timing_from(plan.starts_at or now, days_of(connection, plan))
    return Preview(timing.explain(), _next(plan, timing, now, count))


def backfill_schedule(
    session: Sync,
    name: str,
    start: datetime,
    end: datetime,
    *,
    by: str = "",
    now: datetime | None = None,
) -> list[TaskId] | None:
    """Make a task for each instant of ``[start, end)`` that has none. None: no such schedule.

    Each task's headers name its instant. Overlap policy and ``enabled`` do not apply to a backfill.
    A second call creates nothing more.

    >>> hourly = create_schedule(session, "hourly", "report.write", cron="0 * * * *")
    >>> end = hourly.created_at
    >>> len(backfill_schedule(session, "hourly", end - timedelta(hours=3), end))
    3

    Raises:
        InvalidScheduleError: the range is not past, is forgotten in part, or is too long.
    """
    start, end = check_instant("start", start), check_instant("end", end)
    connection = connection_of(session)
    locked = rows.lock(connection, name, now=now)
    if locked is None:
        return None
    schedule, clock = locked
    if start > end or end > clock:
        raise InvalidScheduleError("end", "is not past, or before the start", "a past range")
    if schedule.forgotten_until is not None and start <= schedule.forgotten_until:
        raise InvalidScheduleError(
            "start",
            "is before the oldest instant that is still recorded",
            f"later than {schedule.forgotten_until.isoformat()}",
        )
    if schedule.starts_at is not None:
        start = max(start, schedule.starts_at)
    found = instants_between(schedule.timing, start, end)
    if (ends_at := schedule.ends_at) is not None:
        found = takewhile(lambda at: at <= ends_at, found)
    instants = list(islice(found, MOST_FILLED + 1))
    if len(instants) > MOST_FILLED:
        raise InvalidScheduleError("end", "is too far away", f"{MOST_FILLED} instants at a time")
    rng = Random()  # noqa: S311  jitter, not a secret
    tasks = {(schedule.id, at): schedule.task_row(at, rng) for at in instants}
    over = [outcome for outcome in Fired if outcome is not Fired.MADE]
    made = create_tasks(connection, dict.fromkeys(tasks, Fired.MADE), tasks, over=over, now=now)
    ids = [TaskId(task_id) for task_id in made.values() if task_id is not None]
    what = {"schedule": name, "start": start.isoformat(), "end": end.isoformat()}
    note(connection, "schedule backfill", what, who=by, number=len(ids), ids=ids)
    return ids


apreview: Final = made_async(preview)
apreview_schedule: Final = made_async(preview_schedule)
abackfill_schedule: Final = made_async(backfill_schedule)


def _next(plan: SchedulePlan, timing: Timing, now: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    at = first_at(timing, now, plan.starts_at, plan.ends_at)
    while at is not None and len(found) < min(count, MOST_SHOWN):
        found.append(at)
        at = next_at(timing, at, plan.ends_at)
    return found
