"""Find: an id, a business key, a name or a part of one leads to what is called so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.statistics.unkept import Unkept
from tasks_app.monitor.pages.errors import causes
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations.diagnostics import QUEUES
from tasks_app.pool.statistics.unkept import unkept
from tasks_app.pool.tables import ALL, BATCH, COUNT, GROUP, PAUSE, QUEUE, SCHEDULE, WORKER

_MOST_ID = 2**63 - 1
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
MOST = 20
"""Of each kind."""

_ID = text(f"""
    SELECT 'task' AS kind, CAST(t.id AS text) AS key, t.name || ', ' || t.state AS about,
        true AS exact
    FROM {ALL} t WHERE t.id = :id
    UNION ALL SELECT 'group', CAST(g.id AS text), coalesce(g.outcome, 'open'), true
    FROM {GROUP} g WHERE g.id = :id
    UNION ALL SELECT 'batch', CAST(b.id AS text), b.job || ', ' || b.status, true
    FROM {BATCH} b WHERE b.id = :id
""")
_KEY = text(f"""
    SELECT 'biz_key' AS kind, :text AS key, string_agg(DISTINCT t.name, ', ') AS about,
        true AS exact
    FROM (SELECT name FROM {ALL} WHERE biz_key = :text LIMIT 100) AS t HAVING count(*) > 0
""")
# Names: what workers can run, what the counters have seen of late, what schedules make.
_NAMED = text(f"""
    SELECT f.kind, f.key, '' AS about, f.key = :text AS exact FROM (
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


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that is called so, or whose name contains the text."""

    kind: str
    """task, group, batch, error, biz_key, name, queue, schedule or job."""
    key: str
    """Its id or name."""
    about: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Hits:
    """What has the text as its id, key or name; then names that contain it."""

    at: datetime
    text: str
    hits: tuple[Hit, ...]
    unkept: Unkept | None = None
    """Successes that left no row; read if nothing is called so."""

    @property
    def only(self) -> Hit | None:
        """The one that is meant: nothing else is called so, or contains the text."""
        exact = [hit for hit in self.hits if hit.exact]
        if len(exact) == 1:
            return exact[0]
        return self.hits[0] if len(self.hits) == 1 else None


def find(connection: Connection, asked: str) -> Hits:
    def found(statement: TextClause, **values: Any) -> list[Hit]:
        return [Hit(*row) for row in connection.execute(statement, values)]

    hits: list[Hit] = []
    if asked.isascii() and asked.isdigit() and int(asked) <= _MOST_ID:
        hits += found(_ID, id=int(asked))
    if _FINGERPRINT.fullmatch(asked):
        same = causes(connection, fingerprint=asked)
        hits += [Hit("error", each.fingerprint, each.error, exact=True) for each in same]
    if asked:
        hits += [*found(_KEY, text=asked), *found(_NAMED, text=asked, most=MOST)]
    gone = unkept(connection) if asked and not hits else None
    return Hits(instant(connection), asked, tuple(hits), gone)
