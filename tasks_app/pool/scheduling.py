"""Schedules: their rows, which are due, and the outcomes of their fire times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.schedules.days_off import raw_days_off
from tasks_app.domain.schedules.misfire import Fired, first_at
from tasks_app.domain.schedules.schedule import PLANNED, Schedule, SchedulePlan
from tasks_app.pool.tables import CALENDAR, FIRE, NOW, PENDING, SCHEDULE, Clock

_KINDS = {
    "payload": "jsonb",
    "options": "jsonb",
    "jitter": "interval",
    "priority": "smallint",
    "enabled": "boolean",
    "starts_at": "timestamptz",
    "ends_at": "timestamptz",
}
_TIMED = frozenset({"kind", "expression", "zone", "starts_at", "ends_at", "enabled"})
"""Columns on which the next fire time depends."""


def _value(column: str) -> str:
    return f"CAST(:{column} AS {_KINDS.get(column, 'text')})"


COLUMNS = (
    ", ".join(
        f"s.{name}::text AS {name}" if name in ("payload", "options", "declared") else f"s.{name}"
        for name in (
            *PLANNED,
            *("id", "name", "next_run_at", "queued_at", "last_run_at", "last_task_id"),
            *("last_outcome", "remark", "forgotten_until", "declared", "declared_in", "retired"),
            *("changed_by", "created_at"),
        )
    ).replace("::", r"\:\:")
    + f"""
    , (SELECT c.days FROM {CALENDAR} c WHERE c.name = s.options ->> 'calendar') AS holidays"""
)
"""The columns of a record: JSON as text, so that one unreadable row breaks no other."""
_ADD = text(f"""
    INSERT INTO {SCHEDULE} AS s (name, {", ".join(PLANNED)}, declared, declared_in,
        created_at, changed_at)
    VALUES (:name, {", ".join(map(_value, PLANNED))}, CAST(:declared AS jsonb), :declared_in,
        {NOW}, {NOW})
    ON CONFLICT (name) DO NOTHING RETURNING {COLUMNS}, {NOW} AS now""")
_GET = text(f"SELECT {COLUMNS} FROM {SCHEDULE} s WHERE s.name = :name")
_LOCK = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s WHERE s.name = :name FOR NO KEY UPDATE""")
_FIND = text(f"SELECT {COLUMNS} FROM {SCHEDULE} s ORDER BY s.name")
_AIM = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = CAST(:next_at AS timestamptz),
        look_at = CAST(:next_at AS timestamptz), queued_at = NULL, remark = NULL
    WHERE id = :id""")
# in the order in which imports of declarations lock them
_OF_CALENDAR = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s
    WHERE s.options ->> 'calendar' = :calendar ORDER BY s.name COLLATE "C" FOR NO KEY UPDATE""")
_AIM_AGAIN = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = CAST(:next_at AS timestamptz),
        look_at = CASE WHEN queued_at IS NULL THEN CAST(:next_at AS timestamptz) ELSE look_at END
    WHERE id = :id""")
_REMOVE = text(f"DELETE FROM {SCHEDULE} WHERE name = :name RETURNING id")


def add(
    connection: Connection,
    name: str,
    plan: SchedulePlan,
    *,
    declared_in: str | None = None,
    now: Clock = None,
) -> Schedule | None:
    """Insert a schedule; None: the name is taken. ``declared_in``: where code declares it."""
    declared = None if declared_in is None else json.dumps(plan.plain())
    values = {column: getattr(plan, column) for column in PLANNED}
    values |= {"name": name, "declared": declared, "declared_in": declared_in}
    row = connection.execute(_ADD, {**values, "now": now}).one_or_none()
    return None if row is None else _aimed(connection, schedule_of_row(row), row.now)


def get(connection: Connection, name: str) -> Schedule | None:
    row = connection.execute(_GET, {"name": name}).one_or_none()
    return None if row is None else schedule_of_row(row)


def lock(
    connection: Connection, name: str, *, now: Clock = None
) -> tuple[Schedule, datetime] | None:
    """Lock a schedule against firing and changes; return it with the database's time, or None."""
    row = connection.execute(_LOCK, {"name": name, "now": now}).one_or_none()
    return None if row is None else (schedule_of_row(row), row.now)


def lock_declarations(connection: Connection) -> None:
    """Wait for other imports of declarations; firing and changes go on."""
    connection.execute(text("SELECT pg_advisory_xact_lock(7246101957004331003)"))


def find(connection: Connection) -> list[Schedule]:
    return [schedule_of_row(row) for row in connection.execute(_FIND)]


def change(
    connection: Connection,
    name: str,
    changes: Mapping[str, Any],
    *,
    notes: Mapping[str, Any] | None = None,
    now: Clock = None,
) -> Schedule | None:
    """Change columns of the plan, and the next fire time if it depends on them."""
    # ``notes`` are other columns: ``declared``, ``declared_in``, ``retired``. None: no such
    # schedule.
    found = lock(connection, name, now=now)
    if found is None:
        return None
    schedule, clock = found
    extra = dict(notes or {})
    if "declared" in extra:
        extra["declared"] = json.dumps(extra["declared"])
    sets = [f"{column} = {_value(column)}" for column in changes]
    sets += [
        f"{column} = CAST(:{column} AS {kind})"
        for column, kind in (("declared", "jsonb"), ("declared_in", "text"), ("retired", "boolean"))
        if column in extra
    ]
    if sets:
        sets += ["changed_by = current_user", f"changed_at = {NOW}"]
        statement = f"UPDATE {SCHEDULE} SET {', '.join(sets)} WHERE id = :id"
        connection.execute(text(statement), {**changes, **extra, "id": schedule.id, "now": now})
    changed = lock(connection, name, now=now)
    if changed is None:
        return None
    was, is_now = (raw_days_off(json.loads(each.options)) for each in (schedule, changed[0]))
    if was == is_now and not (_TIMED & changes.keys() or schedule.remark):
        return changed[0]
    return _aimed(connection, changed[0], clock)


def schedules_of_calendar(connection: Connection, calendar: str) -> list[str]:
    """Lock the schedules that use this calendar, and return their names."""
    found = connection.execute(_OF_CALENDAR, {"calendar": calendar, "now": None})
    return sorted(row.name for row in found)


def recompute_next_fire(connection: Connection, calendar: str, *, now: Clock = None) -> None:
    """Recompute the next fire time of schedules whose calendar has changed."""
    # Due and broken schedules are left to the scheduler.
    for row in connection.execute(_OF_CALENDAR, {"calendar": calendar, "now": now}).all():
        schedule = schedule_of_row(row)
        if schedule.next_run_at is None and (schedule.remark or not schedule.enabled):
            continue
        if schedule.next_run_at is not None and schedule.next_run_at <= row.now:
            continue
        try:
            following = first_at(schedule.timing, row.now, schedule.starts_at, schedule.ends_at)
        except InvalidTaskError:
            continue
        connection.execute(_AIM_AGAIN, {"id": schedule.id, "next_at": following})


def remove(connection: Connection, name: str) -> bool:
    """Delete a schedule; its tasks stay. False: no such schedule."""
    return connection.execute(_REMOVE, {"name": name}).first() is not None


def schedule_of_row(row: Row[Any]) -> Schedule:
    values = dict(row._mapping)  # noqa: SLF001  its public name
    values.pop("now", None)
    declared = values.pop("declared")
    return Schedule(**values, declared=None if declared is None else json.loads(declared))


def _aimed(connection: Connection, schedule: Schedule, now: datetime) -> Schedule:
    """Set the next fire time, from now on: it missed nothing while it did not exist."""
    following = None
    if schedule.enabled:
        following = first_at(schedule.timing, now, schedule.starts_at, schedule.ends_at)
    connection.execute(_AIM, {"id": schedule.id, "next_at": following})
    return get(connection, schedule.name) or schedule


NEWEST = 10  # how many of a schedule's newest tasks are searched for one that is not over
_NEXT = text(f"""
    SELECT CAST(EXTRACT(EPOCH FROM min(s.look_at) - {NOW}) AS float) FROM {SCHEDULE} s
    WHERE s.enabled""")
_DUE = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s
    WHERE s.enabled AND s.look_at <= {NOW}
      AND (CAST(:only AS bigint) IS NULL OR s.id = CAST(:only AS bigint))
    ORDER BY s.look_at LIMIT :most FOR NO KEY UPDATE SKIP LOCKED""")
_LIVE = text(f"""
    SELECT u.id AS schedule_id, array_agg(p.id ORDER BY p.id) AS ids
    FROM unnest(CAST(:ids AS bigint[])) AS u(id)
    CROSS JOIN LATERAL (
        SELECT f.task_id FROM {FIRE} f
        WHERE f.schedule_id = u.id AND f.task_id IS NOT NULL
        ORDER BY f.task_id DESC LIMIT {NEWEST}) AS f
    JOIN {PENDING} p ON p.id = f.task_id
    GROUP BY u.id""")
_ENTER = text(f"""
    INSERT INTO {FIRE} AS f (schedule_id, fire_at, outcome, fired_at)
    SELECT u.*, {NOW} FROM unnest(CAST(:ids AS bigint[]), CAST(:instants AS timestamptz[]),
        CAST(:outcomes AS text[])) AS u(schedule_id, fire_at, outcome)
    ORDER BY 1, 2
    ON CONFLICT (schedule_id, fire_at) DO UPDATE
    SET outcome = EXCLUDED.outcome, fired_at = EXCLUDED.fired_at
    WHERE f.outcome = ANY(CAST(:over AS text[])) AND EXCLUDED.outcome <> '{Fired.QUEUED}'
    RETURNING f.schedule_id, f.fire_at, f.outcome""")
_TASKS = text(f"""
    UPDATE {FIRE} f SET task_id = u.task_id,
        outcome = CASE WHEN u.task_id IS NULL THEN '{Fired.SKIPPED}' ELSE f.outcome END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:instants AS timestamptz[]),
        CAST(:tasks AS bigint[])) AS u(schedule_id, fire_at, task_id)
    WHERE f.schedule_id = u.schedule_id AND f.fire_at = u.fire_at""")
_STAND = text(f"""
    UPDATE {SCHEDULE} s SET next_run_at = :next_at, look_at = :look_at, queued_at = :queued_at,
        last_run_at = greatest(s.last_run_at, CAST(:last_run_at AS timestamptz)),
        last_task_id = coalesce(CAST(:last_task_id AS bigint), s.last_task_id),
        last_outcome = coalesce(CAST(:last_outcome AS text), s.last_outcome), remark = NULL
    WHERE s.id = :id""")
_BREAK = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = NULL, look_at = NULL, last_outcome = '{Fired.BROKEN}',
        remark = :remark WHERE id = :id""")
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
    SELECT count(*) FROM gone""")


@dataclass(frozen=True, slots=True)
class ScheduleUpdate:
    """New values of a schedule after it was processed."""

    id: int
    next_at: datetime | None
    look_at: datetime | None
    queued_at: datetime | None = None
    last_run_at: datetime | None = None
    last_task_id: int | None = None
    last_outcome: str | None = None


Instant = tuple[int, datetime]  # of a schedule, by its id


def next_fire_in_s(connection: Connection, *, now: Clock = None) -> float | None:
    """Return in how many seconds the first schedule is due; None: there is none."""
    return connection.execute(_NEXT, {"now": now}).scalar()


def lock_due(
    connection: Connection, most: int, *, only: int | None = None, now: Clock = None
) -> tuple[list[Schedule], datetime | None]:
    """Lock due schedules; return them and the database's time."""
    # Locked ones are left out. ``only``: this schedule, if it is due.
    rows = connection.execute(_DUE, {"most": most, "only": only, "now": now}).all()
    return [schedule_of_row(row) for row in rows], rows[0].now if rows else None


def live_tasks(connection: Connection, ids: Sequence[int]) -> dict[int, list[int]]:
    return {row.schedule_id: row.ids for row in connection.execute(_LIVE, {"ids": list(ids)})}


def record_fires(
    connection: Connection,
    instants: Mapping[Instant, Fired],
    *,
    over: Sequence[Fired] = (Fired.QUEUED,),
    now: Clock = None,
) -> list[Instant]:
    """Record the outcomes of fire times; return those for which to create a task."""
    # An existing record stays unless its outcome is one of ``over``.
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


def record_fired_tasks(connection: Connection, tasks: Mapping[Instant, int | None]) -> None:
    """Record the task of each fire time; None: its unique_key was taken."""
    if tasks:
        values = {
            "ids": [schedule_id for schedule_id, _ in tasks],
            "instants": [instant for _, instant in tasks],
            "tasks": list(tasks.values()),
        }
        connection.execute(_TASKS, values)


def save_updates(connection: Connection, standings: Sequence[ScheduleUpdate]) -> None:
    for standing in sorted(standings, key=lambda each: each.id):
        values = {name: getattr(standing, name) for name in ScheduleUpdate.__slots__}
        connection.execute(_STAND, values)


def mark_broken(connection: Connection, schedule_id: int, remark: str) -> None:
    """Stop a schedule until it is changed or enabled again."""
    connection.execute(_BREAK, {"id": schedule_id, "remark": remark})


def prune_fires(connection: Connection, older: timedelta, most: int, *, now: Clock = None) -> int:
    """Delete records of fire times of this age, oldest first; return how many."""
    # Times before them are not backfilled any more.
    return int(connection.execute(_PRUNE, {"older": older, "most": most, "now": now}).scalar_one())
