"""Find: what has this id, key or name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, text

from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.tables import (
    ALL,
    BATCH,
    COUNT,
    GROUP,
    PAUSE,
    QUEUE,
    SCHEDULE,
    WORKER,
)

MOST = 20
"""Of each kind."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that is called so, or whose name contains the text."""

    kind: str
    """task, group, batch, error, biz_key, name, queue, schedule or job."""
    key: str
    """Its id or name."""
    about: str
    exact: bool


_ID = text(f"""
    SELECT 'task' AS kind, CAST(t.id AS text) AS key, t.name || ', ' || t.state AS about
    FROM {ALL} t WHERE t.id = :id
    UNION ALL SELECT 'group', CAST(g.id AS text), coalesce(g.outcome, 'open')
    FROM {GROUP} g WHERE g.id = :id
    UNION ALL SELECT 'batch', CAST(b.id AS text), b.job || ', ' || b.status
    FROM {BATCH} b WHERE b.id = :id
""")
_KEY = text(f"""
    SELECT 'biz_key' AS kind, :text AS key, string_agg(DISTINCT t.name, ', ') AS about
    FROM (SELECT name FROM {ALL} WHERE biz_key = :text LIMIT 100) AS t HAVING count(*) > 0
""")
# Names: what workers can run, what the counters have seen of late, what schedules make.
_NAMED = text(f"""
    SELECT f.kind, f.key, '' AS about FROM (
        SELECT n.*, row_number() OVER (PARTITION BY n.kind ORDER BY n.key <> :text, n.key) AS number
        FROM (
            SELECT 'name' AS kind, handler AS key FROM {WORKER} w, unnest(w.handlers) AS handler
            UNION SELECT 'name', c.name FROM {COUNT} c
                WHERE c.span = 60 AND c.at > statement_timestamp() - interval '1 day'
            UNION SELECT 'name', s.task FROM {SCHEDULE} s
            UNION SELECT 'schedule', s.name FROM {SCHEDULE} s
            UNION SELECT 'queue', q.queue FROM ({QUEUES}) AS q
            UNION SELECT 'queue', served FROM {WORKER} w, unnest(w.queues) AS served
            UNION SELECT 'queue', q.queue FROM {QUEUE} q
            UNION SELECT 'queue', q.queue FROM {PAUSE} q WHERE q.queue <> '*'
            UNION SELECT 'job', b.job FROM {BATCH} b) AS n
        WHERE strpos(lower(n.key), lower(:text)) > 0) AS f
    WHERE f.number <= :most ORDER BY f.key <> :text, f.kind, f.key
""")


def by_id(connection: Connection, number: int) -> list[Hit]:
    return _hits(connection.execute(_ID, {"id": number}), exact=True)


def by_key(connection: Connection, key: str) -> list[Hit]:
    return _hits(connection.execute(_KEY, {"text": key}), exact=True)


def by_name(connection: Connection, part: str) -> list[Hit]:
    found = connection.execute(_NAMED, {"text": part, "most": MOST})
    return [Hit(row.kind, row.key, row.about, row.key == part) for row in found]


def _hits(found: CursorResult[Any], *, exact: bool) -> list[Hit]:
    return [Hit(row.kind, row.key, row.about, exact) for row in found]
