"""Fire: which schedules are due, and what became of their instants.

Two things keep it to one task for each instant. Who looks locks the schedule until its commit, and
others pass it by. And the key of ``task_schedule_fire`` admits an instant once, whoever thinks that
it is due: a leader of yesterday, an operator who fills up the past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.schedules.overlap import Fired
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool.scheduling import COLUMNS
from tasks_app.pool.scheduling import record
from tasks_app.pool.tables import FIRE, NOW, PENDING, SCHEDULE

NEWEST = 10
"""How many of a schedule's newest tasks are searched for one that is not over."""

_NEXT = text(f"""
    SELECT CAST(EXTRACT(EPOCH FROM min(s.look_at) - {NOW}) AS float) FROM {SCHEDULE} s
    WHERE s.enabled
""")
_DUE = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s
    WHERE s.enabled AND s.look_at <= {NOW}
      AND (CAST(:only AS bigint) IS NULL OR s.id = CAST(:only AS bigint))
    ORDER BY s.look_at LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
""")
_LIVE = text(f"""
    SELECT u.id AS schedule_id, array_agg(p.id ORDER BY p.id) AS ids
    FROM unnest(CAST(:ids AS bigint[])) AS u(id)
    CROSS JOIN LATERAL (
        SELECT f.task_id FROM {FIRE} f
        WHERE f.schedule_id = u.id AND f.task_id IS NOT NULL
        ORDER BY f.task_id DESC LIMIT {NEWEST}) AS f
    JOIN {PENDING} p ON p.id = f.task_id
    GROUP BY u.id
""")
_ENTER = text(f"""
    INSERT INTO {FIRE} AS f (schedule_id, fire_at, outcome, fired_at)
    SELECT u.*, {NOW} FROM unnest(CAST(:ids AS bigint[]), CAST(:instants AS timestamptz[]),
        CAST(:outcomes AS text[])) AS u(schedule_id, fire_at, outcome)
    ORDER BY 1, 2
    ON CONFLICT (schedule_id, fire_at) DO UPDATE
    SET outcome = EXCLUDED.outcome, fired_at = EXCLUDED.fired_at
    WHERE f.outcome = ANY(CAST(:over AS text[])) AND EXCLUDED.outcome <> '{Fired.QUEUED}'
    RETURNING f.schedule_id, f.fire_at, f.outcome
""")
_TASKS = text(f"""
    UPDATE {FIRE} f SET task_id = u.task_id,
        outcome = CASE WHEN u.task_id IS NULL THEN '{Fired.SKIPPED}' ELSE f.outcome END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:instants AS timestamptz[]),
        CAST(:tasks AS bigint[])) AS u(schedule_id, fire_at, task_id)
    WHERE f.schedule_id = u.schedule_id AND f.fire_at = u.fire_at
""")
_STAND = text(f"""
    UPDATE {SCHEDULE} s SET next_run_at = :next_at, look_at = :look_at, queued_at = :queued_at,
        last_run_at = greatest(s.last_run_at, CAST(:last_run_at AS timestamptz)),
        last_task_id = coalesce(CAST(:last_task_id AS bigint), s.last_task_id),
        last_outcome = coalesce(CAST(:last_outcome AS text), s.last_outcome), remark = NULL
    WHERE s.id = :id
""")
_BREAK = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = NULL, look_at = NULL, last_outcome = '{Fired.BROKEN}',
        remark = :remark WHERE id = :id
""")
_PRUNE = text(f"""
    WITH old AS MATERIALIZED (
        SELECT f.schedule_id, f.fire_at FROM {FIRE} f JOIN {SCHEDULE} s ON s.id = f.schedule_id
        WHERE f.fired_at < {NOW} - CAST(:older AS interval)
          AND (f.task_id IS NULL OR f.task_id IS DISTINCT FROM s.last_task_id)
          AND f.fire_at IS DISTINCT FROM s.queued_at
        ORDER BY f.fired_at LIMIT :most),
    gone AS (
        DELETE FROM {FIRE} f USING old o
        WHERE f.schedule_id = o.schedule_id AND f.fire_at = o.fire_at
        RETURNING f.schedule_id, f.fire_at),
    barred AS (
        UPDATE {SCHEDULE} s SET forgotten_until = greatest(s.forgotten_until, g.until)
        FROM (SELECT schedule_id, max(fire_at) AS until FROM gone GROUP BY schedule_id) AS g
        WHERE s.id = g.schedule_id)
    SELECT count(*) FROM gone
""")


@dataclass(frozen=True, slots=True)
class Standing:
    """How a schedule stands after it was looked at."""

    id: int
    next_at: datetime | None
    look_at: datetime | None
    queued_at: datetime | None = None
    last_run_at: datetime | None = None
    last_task_id: int | None = None
    last_outcome: str | None = None


Instant = tuple[int, datetime]
"""Of a schedule, by its id."""


def next_in_s(connection: Connection, *, now: datetime | None = None) -> float | None:
    """Return in how many seconds a schedule is to be looked at; None: there is none."""
    return connection.execute(_NEXT, {"now": now}).scalar()


def lock_due(
    connection: Connection, most: int, *, only: int | None = None, now: datetime | None = None
) -> tuple[list[Schedule], datetime | None]:
    """Return schedules to look at, locked, and the database's time.

    Those that somebody else holds are left out. ``only``: this one, if it is due.
    """
    rows = connection.execute(_DUE, {"most": most, "only": only, "now": now}).all()
    return [record(row) for row in rows], rows[0].now if rows else None


def live_tasks(connection: Connection, ids: Sequence[int]) -> dict[int, list[int]]:
    """Return the tasks of these schedules that are not over."""
    return {row.schedule_id: row.ids for row in connection.execute(_LIVE, {"ids": list(ids)})}


def enter(
    connection: Connection,
    instants: Mapping[Instant, Fired],
    *,
    over: Sequence[Fired] = (Fired.QUEUED,),
    now: datetime | None = None,
) -> list[Instant]:
    """Write down what becomes of instants; return those to make a task of.

    One that was written down before stays, unless its outcome is one of ``over``.
    """
    if not instants:
        return []
    keys = sorted(instants)
    values = {
        "ids": [schedule_id for schedule_id, _ in keys],
        "instants": [instant for _, instant in keys],
        "outcomes": [str(instants[key]) for key in keys],
        "over": list(map(str, over)),
        "now": now,
    }
    rows = connection.execute(_ENTER, values)
    return sorted((row.schedule_id, row.fire_at) for row in rows if row.outcome == Fired.MADE)


def note_tasks(connection: Connection, tasks: Mapping[Instant, int | None]) -> None:
    """Write down which task was made of which instant; None: its unique_key was taken."""
    if tasks:
        values = {
            "ids": [schedule_id for schedule_id, _ in tasks],
            "instants": [instant for _, instant in tasks],
            "tasks": list(tasks.values()),
        }
        connection.execute(_TASKS, values)


def stand(connection: Connection, standings: Sequence[Standing]) -> None:
    for standing in sorted(standings, key=lambda each: each.id):
        values = {name: getattr(standing, name) for name in Standing.__slots__}
        connection.execute(_STAND, values)


def mark_broken(connection: Connection, schedule_id: int, remark: str) -> None:
    """Let a schedule fire no more until it is changed or enabled anew."""
    connection.execute(_BREAK, {"id": schedule_id, "remark": remark})


def prune(
    connection: Connection, older: timedelta, most: int, *, now: datetime | None = None
) -> int:
    """Forget what was fired so long ago, the oldest first, and return how many instants those were.

    The past is not filled up before them any more.
    """
    values = {"older": older, "most": most, "now": now}
    return int(connection.execute(_PRUNE, values).scalar_one())
