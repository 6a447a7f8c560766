"""Release: whoever knows the token gives the group back, or leaves the line."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.tables import LOCK_HOLDER, LOCK_PART, LOCK_WAIT, NOW

_RELEASE = text(f"""
    DELETE FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[])) RETURNING h.token
""")
_GIVE_UP = text(f"""
    WITH gone AS (
        DELETE FROM {LOCK_HOLDER} h WHERE h.token = :token AND h.fence IS NULL
        RETURNING h.id, h.who, h.task_id, h.asked_at)
    INSERT INTO {LOCK_WAIT} (resource, mode, outcome, who, task_id, blocked_by, asked_at, ended_at)
    SELECT p.resource, p.mode, 'timed_out', g.who, g.task_id, p.blocked_by, g.asked_at, {NOW}
    FROM gone g JOIN {LOCK_PART} p ON p.holder_id = g.id WHERE p.blocked_by IS NOT NULL
""")


def release(connection: Connection, *tokens: UUID) -> set[UUID]:
    """Give groups back; return those that were there: others are taken over, or given back before.

    It locks no resource: who decides about one meanwhile finds it held, and asks again.
    """
    return set(connection.execute(_RELEASE, {"tokens": list(tokens)}).scalars())


def give_up(connection: Connection, token: UUID, *, now: datetime | None = None) -> None:
    """Leave the line, and write down what was waited for in vain."""
    connection.execute(_GIVE_UP, {"token": token, "now": now})
