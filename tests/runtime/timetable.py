"""Schedules for tests, and what became of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.schedules.schedule import Schedule, plan_of
from tasks_app.pool import scheduling
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.factory import some
from tests.runtime.bench import Bench

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""Long ago: what is made with this clock is due by the server's."""
S = timedelta(seconds=1)
_MADE = text("""
    SELECT p.id, p.schedule_id, p.headers->>'fire_at' AS fire_at, p.due_at, p.created_at, p.state
    FROM task_pending p WHERE p.schedule_id IS NOT NULL ORDER BY p.id
""")
_FIRES = text("SELECT fire_at, outcome, task_id FROM task_schedule_fire ORDER BY schedule_id, 1")


def scheduled(bench: Bench, name: str = "s", *, now: datetime = NOON, **when: Any) -> Schedule:
    """Commit a schedule of tasks ``t``; unless the test says otherwise, one each minute."""
    options = {word: when.pop(word) for word in ("unique_key", "queue") if word in when}
    when = when if {"cron", "at", "every"} & when.keys() else {"every": 60, **when}
    row = validate_task(NewTask("t", {"of": name}, options), None, 65536)  # type: ignore[typeddict-item]
    return some(bench.do(scheduling.add, name, plan_of(row, when), now=now))


def scheduler(bench: Bench) -> Scheduler:
    database = bench.database()
    return Scheduler(database)


def standing(bench: Bench, name: str = "s") -> Schedule:
    return some(bench.do(scheduling.get, name))


def tasks(bench: Bench) -> list[Any]:
    with bench.engine.begin() as connection:
        return list(connection.execute(_MADE))


def fires(bench: Bench) -> list[tuple]:
    """Read what was written down, as seconds after noon, outcome, whether there is a task."""
    with bench.engine.begin() as connection:
        rows = connection.execute(_FIRES).all()
    return [((row.fire_at - NOON).total_seconds(), row.outcome, bool(row.task_id)) for row in rows]
