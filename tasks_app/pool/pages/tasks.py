"""Tasks of all pools by filters, a page at a time, with a count that stops early."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.tasks.states import State, pool_of
from tasks_app.pool.fragments.held import is_held, own_date
from tasks_app.pool.tables import ALL, FIRE, GROUP_IDS, SCHEDULE

MOST = 10_000
"""Tasks that are counted; with more, the page says so."""

LOOKED_AT, LOOKED_INTO = 400_000, 150_000
"""Rows that one look goes through for a name, say, and for a part of a text."""
MOST_FIRES = 1_000

_SINCE = "statement_timestamp() - CAST(:since AS interval)"
_NARROW = {
    "pool": "t.pool = :pool",
    "biz_key": "t.biz_key = :biz_key",
    "group": f"t.id IN (SELECT unnest(g.ids) FROM {GROUP_IDS} g WHERE g.group_id = :group)",
    "schedule": f"""t.id = ANY(ARRAY(
        SELECT f.task_id FROM {SCHEDULE} s JOIN {FIRE} f ON f.schedule_id = s.id
        WHERE s.name = :schedule AND f.task_id IS NOT NULL
        ORDER BY f.fire_at DESC LIMIT {MOST_FIRES}))""",
    "since": f"t.created_at > {_SINCE} AND (t.finished_at IS NULL OR t.finished_at > {_SINCE})",
}
"""An index, or the pool, leaves few rows to be looked at."""
_TEXTS = {
    "error": "strpos(lower(t.error), lower(:error)) > 0",
    "payload": "strpos(lower(CAST(t.payload AS text)), lower(:payload)) > 0",
}
_WALKED = {
    "state": "t.state = :state",
    "name": "t.name = :name",
    "queue": "t.queue = :queue",
    "sub_status": "t.sub_status = :sub_status",
    **_TEXTS,
}
"""Row by row, the newest first: an index of each would cost every task more than this costs."""
_ORDER = (
    "pool",
    "state",
    "name",
    "queue",
    "biz_key",
    "error",
    "payload",
    "group",
    "schedule",
    "sub_status",
    "since",
)
FILTERS = _ORDER


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task without its data."""

    id: int
    pool: str
    state: State
    name: str
    queue: str
    biz_key: str | None
    attempt: int
    failures: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_ms: int | None
    parked: str | None
    error: str | None
    held: bool
    sub_status: str | None


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    rows: tuple[TaskLine, ...]
    """The newest id first."""
    number: int
    """How many fit among those that were looked at; MOST + 1: more."""
    whole: bool
    """All rows were looked at."""
    below: int | None
    """The id to go on below; None: there are no more rows."""


_STORED = {"due_at": own_date("t"), "held": is_held("t")}
_COLUMNS = ", ".join(
    f"{_STORED.get(name, f't.{name}')} AS {name}" for name in TaskLine.__dataclass_fields__
)
_ROWS = text(f"SELECT {_COLUMNS} FROM {ALL} t WHERE t.id = ANY(:ids) ORDER BY t.id DESC")


@lru_cache(256)
def _statement(narrow: tuple[str, ...], walked: tuple[str, ...], *, behind: bool) -> TextClause:
    inner = " AND ".join(["true", *(_NARROW[each] for each in narrow)])
    outer = " AND ".join(["true", *(_WALKED[each] for each in walked)])
    further = "AND t.id < :before" if behind else ""
    return text(f"""
        SELECT (array_agg(t.id ORDER BY t.id DESC) FILTER (WHERE {outer}))[1 : {MOST + 1}] AS ids,
            count(*) AS looked, min(t.id) AS lowest
        FROM (SELECT * FROM {ALL} t WHERE {inner} {further} ORDER BY t.id DESC LIMIT :window) AS t
    """)


def look(
    connection: Connection,
    filters: dict[str, str],
    *,
    before: int | None,
    most: int,
    through: int | None = None,
) -> Look:
    """Look for tasks from the newest id down, or below ``before``.

    Where no index helps, it goes ``through`` so many rows; default: as many as cost 0.1 s.
    """
    given = dict(filters)
    if "state" in given:
        given.setdefault("pool", pool_of(State(given["state"])))
    narrow = tuple(name for name in _NARROW if name in given)
    walked = tuple(name for name in _WALKED if name in given)
    walks = LOOKED_INTO if given.keys() & _TEXTS else LOOKED_AT
    window = (through or walks) if walked else MOST + 1
    values: dict[str, object] = {**given, "window": window}
    if before is not None:
        values["before"] = before
    found = connection.execute(_statement(narrow, walked, behind=before is not None), values).one()
    ids = found.ids or []
    rows = connection.execute(_ROWS, {"ids": ids[:most]}).all() if ids else []
    whole = found.looked < window
    below = ids[most - 1] if len(ids) > most else None if whole else found.lowest
    shown = tuple(TaskLine(row.id, row.pool, State(row.state), *row[3:]) for row in rows)
    return Look(shown, len(ids), whole, below)
