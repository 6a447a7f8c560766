"""Fill: rows that code without fingerprints wrote get theirs, some at a time."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.fingerprint import fingerprint_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.tables import ATTEMPT, ERROR

_FIND = text(f"""
    SELECT e.id, e.error, a.attempt, a.kind, a.message, a.traceback FROM {ERROR} e
    LEFT JOIN LATERAL (
        SELECT a.attempt, a.kind, a.message, a.traceback FROM {ATTEMPT} a
        WHERE a.task_id = e.id ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true
    WHERE e.fingerprint IS NULL
    ORDER BY e.finished_at DESC LIMIT :most FOR NO KEY UPDATE OF e SKIP LOCKED
""")
_GIVEN = """
    unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:fingerprints AS text[]))
        AS g(id, attempt, hex)
"""
_ERRORS = text(f"""
    UPDATE {ERROR} e SET fingerprint = decode(g.hex, 'hex') FROM {_GIVEN} WHERE e.id = g.id
""")
_ATTEMPTS = text(f"""
    UPDATE {ATTEMPT} a SET fingerprint = decode(g.hex, 'hex') FROM {_GIVEN}
    WHERE a.task_id = g.id AND a.attempt = g.attempt AND a.fingerprint IS NULL
""")


def fill(connection: Connection, most: int = 1_000) -> int:
    """Give up to ``most`` rows of the error pool their fingerprints; return how many got one."""
    rows = connection.execute(_FIND, {"most": most}).all()
    causes = [_cause(row.error or "", row) for row in rows]
    values = {
        "ids": [row.id for row in rows],
        "attempts": [row.attempt for row in rows],
        "fingerprints": [fingerprint_of(cause).hex() for cause in causes],
    }
    if rows:
        connection.execute(_ERRORS, values)
        connection.execute(_ATTEMPTS, values)
    return len(rows)


def _cause(error: str, row: object) -> Cause:
    kind = getattr(row, "kind", None)
    if kind is None:  # its history was pruned
        kind, _, message = error.partition(": ")
        return Cause(kind, message)
    return Cause(kind, getattr(row, "message", None) or "", getattr(row, "traceback", None))
