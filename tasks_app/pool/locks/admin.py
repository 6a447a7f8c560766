"""Admin: what an operator does with locks. Their holders are told when they next look."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.tables import LOCK, LOCK_HOLDER, LOCK_PART

_FREE = text(f"""
    DELETE FROM {LOCK_HOLDER} h
    WHERE h.id IN (SELECT p.holder_id FROM {LOCK_PART} p WHERE p.resource = :resource)
      AND (CAST(:token AS uuid) IS NULL OR h.token = :token) AND h.fence IS NOT NULL
    RETURNING h.who
""")
_LIMIT = text(f"""
    INSERT INTO {LOCK} AS r (resource, most) VALUES (:resource, CAST(:most AS integer))
    ON CONFLICT (resource) DO UPDATE SET most = EXCLUDED.most
""")


def free(connection: Connection, resource: str, token: UUID | None = None) -> list[str]:
    """Take the groups that hold a resource from their holders, or one of them; return whose.

    Waits for a guard in an open transaction.
    """
    values = {"resource": resource, "token": token}
    return list(connection.execute(_FREE, values).scalars())


def limit(connection: Connection, resource: str, most: int | None) -> None:
    """Say how many may count in it from now on, whatever code says; None: what code says."""
    connection.execute(_LIMIT, {"resource": resource, "most": most})
