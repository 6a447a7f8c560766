"""Schedules: rows that say what is to be made when. They are changed here, and fired elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.schedules.days_off import kept_in
from tasks_app.domain.schedules.misfire import first_at
from tasks_app.domain.schedules.schedule import PLANNED, Schedule, SchedulePlan
from tasks_app.pool.tables import CALENDAR, NOW, SCHEDULE

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
"""What changes when it fires next."""


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
"""What a record is made of: JSON as text, so that one unreadable row breaks no other."""
_ADD = text(f"""
    INSERT INTO {SCHEDULE} AS s (name, {", ".join(PLANNED)}, declared, declared_in,
        created_at, changed_at)
    VALUES (:name, {", ".join(map(_value, PLANNED))}, CAST(:declared AS jsonb), :declared_in,
        {NOW}, {NOW})
    ON CONFLICT (name) DO NOTHING RETURNING {COLUMNS}, {NOW} AS now
""")
_GET = text(f"SELECT {COLUMNS} FROM {SCHEDULE} s WHERE s.name = :name")
_LOCK = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s WHERE s.name = :name FOR NO KEY UPDATE
""")
_CLOCK = text(f"SELECT {NOW}")
_LOCK_ALL = text("SELECT pg_advisory_xact_lock(7246101957004331003)")
_FIND = text(f"SELECT {COLUMNS} FROM {SCHEDULE} s ORDER BY s.name")
_AIM = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = CAST(:next_at AS timestamptz),
        look_at = CAST(:next_at AS timestamptz), queued_at = NULL, remark = NULL
    WHERE id = :id
""")
_NAMING = text(f"""
    SELECT {COLUMNS}, {NOW} AS now FROM {SCHEDULE} s
    WHERE s.options ->> 'calendar' = :calendar ORDER BY s.name COLLATE "C" FOR NO KEY UPDATE
""")
"""By name, as those lock them who bring in what code declares."""
_AIM_AGAIN = text(f"""
    UPDATE {SCHEDULE} SET next_run_at = CAST(:next_at AS timestamptz),
        look_at = CASE WHEN queued_at IS NULL THEN CAST(:next_at AS timestamptz) ELSE look_at END
    WHERE id = :id
""")
_REMOVE = text(f"DELETE FROM {SCHEDULE} WHERE name = :name RETURNING id")


def add(
    connection: Connection,
    name: str,
    plan: SchedulePlan,
    *,
    declared_in: str | None = None,
    now: datetime | None = None,
) -> Schedule | None:
    """Insert a schedule; None: there is one of that name. ``declared_in``: code says it."""
    declared = None if declared_in is None else json.dumps(plan.plain())
    values = {**_values(plan), "name": name, "declared": declared, "declared_in": declared_in}
    row = connection.execute(_ADD, {**values, "now": now}).one_or_none()
    return None if row is None else _aimed(connection, record(row), row.now)


def get(connection: Connection, name: str) -> Schedule | None:
    """Return the schedule of this name, or None."""
    row = connection.execute(_GET, {"name": name}).one_or_none()
    return None if row is None else record(row)


def lock(
    connection: Connection, name: str, *, now: datetime | None = None
) -> tuple[Schedule, datetime] | None:
    """Return it with the database's time, locked against firing and changes; or None."""
    row = connection.execute(_LOCK, {"name": name, "now": now}).one_or_none()
    return None if row is None else (record(row), row.now)


def lock_all(connection: Connection) -> None:
    """Wait for others who bring in what code declares; others who fire or change go on."""
    connection.execute(_LOCK_ALL)


def find(connection: Connection) -> list[Schedule]:
    """Return all schedules, by name."""
    return [record(row) for row in connection.execute(_FIND)]


def change(
    connection: Connection,
    name: str,
    changes: Mapping[str, Any],
    *,
    notes: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> Schedule | None:
    """Change columns of the plan; when it fires is worked out anew, if they bear on that.

    ``notes`` are other columns: ``declared``, ``declared_in``, ``retired``. None: there is no such
    schedule.
    """
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
        values = {**changes, **extra, "id": schedule.id, "now": now}
        connection.execute(text(statement), values)
    changed = lock(connection, name, now=now)
    if changed is None:
        return None
    was, is_now = (kept_in(json.loads(each.options)) for each in (schedule, changed[0]))
    if was == is_now and not (_TIMED & changes.keys() or schedule.remark):
        return changed[0]
    return _aimed(connection, changed[0], clock)


def naming(connection: Connection, calendar: str) -> list[str]:
    """Return the names of the schedules that name this calendar, and lock them."""
    found = connection.execute(_NAMING, {"calendar": calendar, "now": None})
    return sorted(row.name for row in found)


def aim_again(connection: Connection, calendar: str, *, now: datetime | None = None) -> None:
    """Say when those fire next that name this calendar, whose days have changed.

    What is due already, and what is broken, the scheduler looks at.
    """
    for row in connection.execute(_NAMING, {"calendar": calendar, "now": now}).all():
        schedule = record(row)
        if schedule.next_run_at is None and (schedule.remark or not schedule.enabled):
            continue
        if schedule.next_run_at is not None and schedule.next_run_at <= row.now:
            continue
        try:
            following = first_at(schedule.timing, row.now, schedule.starts_at, schedule.ends_at)
        except InvalidTaskError:
            continue
        connection.execute(_AIM_AGAIN, {"id": schedule.id, "next_at": following})


def clock(connection: Connection) -> datetime:
    return connection.execute(_CLOCK, {"now": None}).scalar_one()  # type: ignore[no-any-return]


def remove(connection: Connection, name: str) -> bool:
    """Delete a schedule; its tasks stay. False: there is none."""
    return connection.execute(_REMOVE, {"name": name}).first() is not None


def record(row: Row[Any]) -> Schedule:
    """Return the record of a row with ``COLUMNS``."""
    values = dict(row._mapping)  # noqa: SLF001  its public name
    values.pop("now", None)
    declared = values.pop("declared")
    return Schedule(**values, declared=None if declared is None else json.loads(declared))


def _values(plan: SchedulePlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in PLANNED}


def _aimed(connection: Connection, schedule: Schedule, now: datetime) -> Schedule:
    """Say when it fires next, from now on: what was due while it did not exist is nobody's."""
    following = None
    if schedule.enabled:
        following = first_at(schedule.timing, now, schedule.starts_at, schedule.ends_at)
    connection.execute(_AIM, {"id": schedule.id, "next_at": following})
    return get(connection, schedule.name) or schedule
