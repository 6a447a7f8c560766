"""Schedules that fire during the faults: each of their instants makes exactly one task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from dev.torture.verdict import Check
from tasks_app import create_schedule

SCHEDULES = 3
EVERY = timedelta(seconds=1)

_COMING = text("SELECT count(*) FROM task_schedule WHERE enabled AND next_run_at IS NOT NULL")
_TASKS = " UNION ALL ".join(
    f"SELECT id FROM {pool} WHERE schedule_id IS NOT NULL"
    for pool in ("task_pending", "task_completed", "task_error")
)
_COMMITTED = text(f"INSERT INTO committed {_TASKS} ON CONFLICT DO NOTHING")
_FIRED = text(f"""
    SELECT (SELECT count(*) FROM ({_TASKS}) t) AS tasks,
        (SELECT count(DISTINCT (schedule_id, fire_at)) FROM task_schedule_fire
            WHERE outcome = 'made' AND fire_at BETWEEN :first AND :last
              AND task_id IN ({_TASKS})) AS instants
""")
_SPAN = text("SELECT min(starts_at), max(ends_at) FROM task_schedule")


def begin(connection: Connection, lasts_s: float) -> None:
    """Let them fire from the second after the next one, for this long from now."""
    now = datetime.now(UTC).replace(microsecond=0)
    for number in range(SCHEDULES):
        create_schedule(
            connection,
            f"torture.{number}",
            "torture.quick",
            every="1s",
            starts_at=now + 2 * EVERY,
            ends_at=now + max(timedelta(seconds=int(lasts_s)), 2 * EVERY),
            missed="fire_all(10000, 1d)",
        )


def is_over(connection: Connection) -> bool:
    """Whether none of them has an instant left."""
    return not connection.execute(_COMING).scalar_one()


def note_tasks(connection: Connection) -> None:
    """Write their tasks down with those that producers committed."""
    connection.execute(_COMMITTED)


def judge_instants(connection: Connection) -> list[Check]:
    """Compare the tasks of schedules with the instants of the wall clock."""
    first, last = connection.execute(_SPAN).one()
    wanted = SCHEDULES * ((last - first) // EVERY + 1)
    fired = connection.execute(_FIRED, {"first": first, "last": last}).one()
    return [
        Check("each instant of a schedule was fired", fired.instants == wanted, fired.instants),
        Check("and made one task", fired.tasks == wanted, fired.tasks),
    ]
