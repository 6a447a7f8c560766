"""Tasks of all pools by filters, a page at a time, with a count that stops early."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import ALL, FIRE, GROUP_IDS, SCHEDULE

MOST = 10_000
"""Tasks that are counted; with more, the page says so."""

_SINCE = "statement_timestamp() - CAST(:since AS interval)"
_CONDITIONS = {
    "pool": "t.pool = :pool",
    "state": "t.state = :state",
    "name": "t.name = :name",
    "queue": "t.queue = :queue",
    "biz_key": "t.biz_key = :biz_key",
    "error": "strpos(lower(t.error), lower(:error)) > 0",
    "payload": "strpos(lower(CAST(t.payload AS text)), lower(:payload)) > 0",
    "group": f"t.id IN (SELECT unnest(g.ids) FROM {GROUP_IDS} g WHERE g.group_id = :group)",
    "schedule": f"""t.id IN (
        SELECT f.task_id FROM {SCHEDULE} s JOIN {FIRE} f ON f.schedule_id = s.id
        WHERE s.name = :schedule AND f.task_id IS NOT NULL
        ORDER BY f.fire_at DESC LIMIT {MOST})""",
    "since": f"t.created_at > {_SINCE} AND (t.finished_at IS NULL OR t.finished_at > {_SINCE})",
}
FILTERS = tuple(_CONDITIONS)


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


@lru_cache(256)
def _find(given: tuple[str, ...], *, behind: bool) -> TextClause:
    where = " AND ".join([*(_CONDITIONS[each] for each in given), "true"])
    further = "AND t.id < :before" if behind else ""
    return text(f"""
        SELECT {", ".join(f"t.{name}" for name in TaskLine.__dataclass_fields__)}
        FROM {ALL} t WHERE {where} {further} ORDER BY t.id DESC LIMIT :most
    """)


@lru_cache(64)
def _count(given: tuple[str, ...]) -> TextClause:
    where = " AND ".join([*(_CONDITIONS[each] for each in given), "true"])
    return text(f"""
        SELECT count(*) FROM (SELECT FROM {ALL} t WHERE {where} LIMIT {MOST + 1}) AS t
    """)


def find(
    connection: Connection, filters: dict[str, str], *, before: int | None, most: int
) -> list[TaskLine]:
    """Return matching tasks, the newest id first; ``before`` is the id to go on below."""
    values: dict[str, object] = {**filters, "most": most}
    if before is not None:
        values["before"] = before
    rows = connection.execute(_find(tuple(filters), behind=before is not None), values)
    return [TaskLine(row.id, row.pool, State(row.state), *row[3:]) for row in rows]


def count(connection: Connection, filters: dict[str, str]) -> int:
    """Return how many match, or one more than MOST."""
    return int(connection.execute(_count(tuple(filters)), filters).scalar_one())
