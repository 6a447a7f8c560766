"""Schedules: what fires when, how the last instants ended, and one schedule in full."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.config.setting_sources import masked
from tasks_app.domain.errors import TasksError
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool.scheduling import COLUMNS, schedule_of_row
from tasks_app.pool.tables import COMPLETED, ERROR, FIRE, PENDING, SCHEDULE, database_now
from tasks_app.runtime.encryption.values import masks
from tasks_app.runtime.schedules.preview import Preview, preview_change, preview_schedule
from tasks_app.runtime.schedules.schedules import get_schedule

RULE = ("cron", "every", "timezone", "missed", "overlap", "queue", "priority")
"""What can be changed, and previewed."""
PAGE, SHOWN, INSTANTS = 50, 10, 20
LATE = timedelta(seconds=10)  # less is the pace of the scan
MOST = 10_000  # schedules that are counted


@dataclass(frozen=True, slots=True)
class Fire:
    """One instant of a schedule, and its task."""

    fire_at: datetime
    fired_at: datetime
    outcome: str
    task_id: int | None
    state: str | None  # of its task; None: there is none, or it was pruned

    @property
    def late_s(self) -> float:
        return max(0.0, (self.fired_at - self.fire_at).total_seconds())


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    name: str
    task: str
    queue: str
    words: str  # its rule, or why that cannot be read
    enabled: bool
    remark: str | None  # why it is broken
    next_run_at: datetime | None
    late_s: float | None  # how long ago it should have fired; None: it is in time
    fires: tuple[Fire, ...]  # the oldest of them first


@dataclass(frozen=True, slots=True)
class Schedules:
    at: datetime
    filters: dict[str, str]
    lines: tuple[ScheduleLine, ...]
    number: int
    more: bool  # there are more than ``number``
    following: str | None  # the name to go on behind; None: this is the last page


@dataclass(frozen=True, slots=True)
class Change:
    """The preview of a change. Nothing is written."""

    given: dict[str, str]
    words: str
    instants: tuple[datetime, ...]
    refused: str | None  # why it cannot be saved


@dataclass(frozen=True, slots=True)
class SchedulePage:
    at: datetime
    line: ScheduleLine
    rule: dict[str, Any]  # how it stands, in the words of a change
    jitter_s: float
    starts_at: datetime | None
    ends_at: datetime | None
    queued_at: datetime | None  # the instant whose task is made when the earlier one is over
    payload: Any
    options: Any
    declared_in: str | None  # the module that declares it; None: an operator made it
    retired: bool  # that module declares it no more
    changed_by: str
    created_at: datetime
    instants: tuple[datetime, ...]  # the next ones, as if it were enabled
    change: Change | None

    @property
    def refused(self) -> str | None:
        return self.change.refused if self.change else None


_ENABLED = {
    "yes": "s.enabled AND s.remark IS NULL",
    "no": "NOT s.enabled",
    "broken": "s.enabled AND s.remark IS NOT NULL",
}
STANDINGS = tuple(_ENABLED)
_FITS = f"""
    (CAST(:queue AS text) IS NULL OR s.queue = :queue)
    AND (CAST(:text AS text) IS NULL OR strpos(lower(s.name), lower(:text)) > 0
        OR strpos(lower(s.task), lower(:text)) > 0)
    AND CASE CAST(:enabled AS text)
        {" ".join(f"WHEN '{word}' THEN {fits}" for word, fits in _ENABLED.items())}
        ELSE true END
"""
_FIND = text(f"""
    SELECT {COLUMNS} FROM {SCHEDULE} s
    WHERE {_FITS} AND (CAST(:after AS text) IS NULL OR s.name > :after)
    ORDER BY s.name LIMIT :most
""")
_COUNT = text(f"""
    SELECT count(*) FROM (SELECT FROM {SCHEDULE} s WHERE {_FITS} LIMIT {MOST + 1}) AS s
""")


def schedules(
    connection: Connection, filters: dict[str, str], *, after: str | None = None
) -> Schedules:
    at = database_now(connection)
    values = {word: filters.get(word) for word in ("enabled", "queue", "text")}
    rows = connection.execute(_FIND, {**values, "after": after, "most": PAGE + 1})
    found = [schedule_of_row(row) for row in rows]
    shown = found[:PAGE]
    fires = _fires(connection, [each.id for each in shown])
    number = connection.execute(_COUNT, values).scalar_one()
    return Schedules(
        at=at,
        filters=filters,
        lines=tuple(_line(each, fires.get(each.id, []), at) for each in shown),
        number=min(number, MOST),
        more=number > MOST,
        following=shown[-1].name if len(found) > PAGE else None,
    )


def schedule_page(
    connection: Connection, name: str, given: dict[str, str] | None = None
) -> SchedulePage | None:
    """Read a schedule; ``given`` are fields of RULE, as a form has them, to preview a change."""
    found = get_schedule(connection, name)
    if found is None:
        return None
    at = database_now(connection)
    try:
        preview = preview_schedule(connection, found.name, INSTANTS)
    except TasksError:  # the row bypassed the checks
        preview = None
    fires = _fires(connection, [found.id])
    return SchedulePage(
        at=at,
        line=_line(found, fires.get(found.id, []), at),
        rule={
            "cron": found.expression if found.kind == "cron" else None,
            "every": found.expression if found.kind == "every" else None,
            "at": found.expression if found.kind == "once" else None,
            "timezone": found.zone,
            **{word: getattr(found, word) for word in ("missed", "overlap", "queue", "priority")},
        },
        jitter_s=found.jitter.total_seconds(),
        payload=masked(masks().value(found.task, json.loads(found.payload))),
        options=masked(json.loads(found.options)),
        instants=tuple(preview.instants) if preview else (),
        change=_change(connection, name, given) if given else None,
        **{
            word: getattr(found, word)
            for word in (
                *("starts_at", "ends_at", "queued_at", "declared_in", "retired"),
                *("changed_by", "created_at"),
            )
        },
    )


def _line(found: Schedule, fires: list[Fire], at: datetime) -> ScheduleLine:
    late = None if found.next_run_at is None else at - found.next_run_at
    try:
        words = found.explain()
    except TasksError as error:
        words = str(error)
    return ScheduleLine(
        name=found.name,
        task=found.task,
        queue=found.queue,
        words=words,
        enabled=found.enabled,
        remark=found.remark,
        next_run_at=found.next_run_at,
        late_s=late.total_seconds() if late is not None and late > LATE else None,
        fires=tuple(fires),
    )


def _change(connection: Connection, name: str, given: dict[str, str]) -> Change:
    options: Any = dict(given)
    try:
        if "priority" in given:
            options["priority"] = int(given["priority"])
        shown = preview_change(connection, name, INSTANTS, **options) or Preview("", [])
    except TasksError as error:
        return Change(given, "", (), str(error))
    except ValueError:
        return Change(given, "", (), "priority is not a number. Allowed: 0 .. 9.")
    return Change(given, shown.words, tuple(shown.instants), None)


# A task ends after it was made: days before that are not opened.
_FIRES = text(f"""
    SELECT u.id AS schedule_id, f.fire_at, f.fired_at, f.outcome, f.task_id, (
        SELECT t.state FROM (
            SELECT p.state FROM {PENDING} p WHERE p.id = f.task_id
            UNION ALL SELECT e.state FROM {ERROR} e WHERE e.id = f.task_id
            UNION ALL SELECT c.state FROM {COMPLETED} c
                WHERE c.id = f.task_id AND c.finished_at >= f.fired_at) AS t LIMIT 1) AS state
    FROM unnest(CAST(:ids AS bigint[])) AS u(id)
    CROSS JOIN LATERAL (
        SELECT * FROM {FIRE} f WHERE f.schedule_id = u.id
        ORDER BY f.fire_at DESC LIMIT :each) AS f
    ORDER BY u.id, f.fire_at
""")


def _fires(connection: Connection, ids: list[int]) -> dict[int, list[Fire]]:
    """Return the last instants of each schedule, the oldest of them first."""
    found: dict[int, list[Fire]] = {}
    for row in connection.execute(_FIRES, {"ids": ids, "each": SHOWN}):
        found.setdefault(row.schedule_id, []).append(Fire(*row[1:]))
    return found
