"""Known: causes of errors that are entered with their first sighting, and what people say of them.

The settle does not write here: all children would wait for the row of the first to fail.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.fingerprint import traits_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.tables import ATTEMPT, ERROR, FINGERPRINT

MOST_LOOKED_AT = 100
"""Of the tasks of a new cause, for its names and queues."""


class Sighting(NamedTuple):
    """A cause that was seen for the first time, and the tasks that failed by it."""

    fingerprint: str
    kind: str
    names: list[str]
    queues: list[str]


# One probe for each cause: watchers ask every few seconds, of an error pool of any size.
_CAUSES = f"""
    WITH RECURSIVE cause AS (
        (SELECT e.fingerprint FROM {ERROR} e
         WHERE e.fingerprint IS NOT NULL ORDER BY e.fingerprint LIMIT 1)
        UNION ALL
        SELECT (SELECT e.fingerprint FROM {ERROR} e WHERE e.fingerprint > c.fingerprint
                ORDER BY e.fingerprint LIMIT 1)
        FROM cause c WHERE c.fingerprint IS NOT NULL)"""
_ONE = "WITH cause AS (SELECT decode(:fingerprint, 'hex') AS fingerprint)"
_NEW = {
    one: text(f"""
    {_ONE if one else _CAUSES}
    SELECT encode(n.fingerprint, 'hex') AS hex, f.first_at, e.error, a.kind, a.message, a.traceback
    FROM (
        SELECT c.fingerprint FROM cause c WHERE c.fingerprint IS NOT NULL
          AND NOT EXISTS (SELECT FROM {FINGERPRINT} f WHERE f.fingerprint = c.fingerprint)
        ORDER BY c.fingerprint LIMIT :most) AS n
    CROSS JOIN LATERAL (
        SELECT e.finished_at AS first_at FROM {ERROR} e WHERE e.fingerprint = n.fingerprint
        ORDER BY e.fingerprint DESC, e.finished_at LIMIT 1) AS f
    CROSS JOIN LATERAL (
        SELECT e.id, e.error FROM {ERROR} e WHERE e.fingerprint = n.fingerprint
        ORDER BY e.fingerprint, e.finished_at DESC LIMIT 1) AS e
    LEFT JOIN LATERAL (
        SELECT a.kind, a.message, a.traceback FROM {ATTEMPT} a
        WHERE a.task_id = e.id ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true
    """)
    for one in (True, False)
}
_ENTER = text(f"""
    INSERT INTO {FINGERPRINT} (fingerprint, kind, message, frames, first_at)
    VALUES (decode(:hex, 'hex'), :kind, :message, :frames, :first_at)
    ON CONFLICT DO NOTHING
""")
_LATE = text(f"""
    SELECT encode(f.fingerprint, 'hex'), f.kind, w.names, w.queues FROM {FINGERPRINT} f
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(DISTINCT e.name), '{{}}') AS names,
            coalesce(array_agg(DISTINCT e.queue), '{{}}') AS queues
        FROM (SELECT name, queue FROM {ERROR} WHERE fingerprint = f.fingerprint
              ORDER BY fingerprint, finished_at DESC LIMIT {MOST_LOOKED_AT}) AS e) AS w
    WHERE encode(f.fingerprint, 'hex') = ANY(CAST(:fingerprints AS text[]))
      AND f.first_at > statement_timestamp() - CAST(:within AS interval)
    ORDER BY f.first_at, 1
""")
_MARK = text(f"""
    UPDATE {FINGERPRINT} SET known_by = :by, known_until = :until, note = :note
    WHERE fingerprint = decode(:hex, 'hex')
""")
_UNMARK = text(f"""
    UPDATE {FINGERPRINT} SET known_by = NULL, known_until = NULL, note = NULL
    WHERE fingerprint = decode(:hex, 'hex') AND known_by IS NOT NULL
""")


def enter(
    connection: Connection, fingerprint: str | None = None, *, most: int = 1_000
) -> list[str]:
    """Enter what failed for the first time, with its traits; return the fingerprints."""
    named = {} if fingerprint is None else {"fingerprint": fingerprint}
    statement = _NEW[fingerprint is not None]
    rows = connection.execute(statement, {**named, "most": most}).all()
    for row in rows:
        kind, _, message = (row.error or "").partition(": ")
        traits = traits_of(Cause(row.kind or kind, row.message or message, row.traceback))
        connection.execute(
            _ENTER,
            {
                "hex": row.hex,
                "kind": traits.kind,
                "message": traits.message,
                "frames": list(traits.frames),
                "first_at": row.first_at,
            },
        )
    return [row.hex for row in rows]


def seen_within(
    connection: Connection, fingerprints: list[str], within: timedelta
) -> list[Sighting]:
    """Return those whose first sighting is no older, the oldest first."""
    values = {"fingerprints": fingerprints, "within": within}
    return [Sighting(*row) for row in connection.execute(_LATE, values)]


def mark(
    connection: Connection, fingerprint: str, by: str, until: datetime | None, note: str
) -> bool:
    """Mark a cause as known. False: no task failed by it."""
    enter(connection, fingerprint)
    values = {"hex": fingerprint, "by": by, "until": until, "note": note or None}
    return connection.execute(_MARK, values).rowcount > 0


def unmark(connection: Connection, fingerprint: str) -> bool:
    """Take the mark back. False: there was none."""
    return connection.execute(_UNMARK, {"hex": fingerprint}).rowcount > 0
