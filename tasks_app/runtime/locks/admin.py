"""What operators do about locks, noted in the audit in the same transaction."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from tasks_app.pool.locks import admin
from tasks_app.pool.operations.audit import note


def free_lock(
    connection: Connection, resource: str, token: UUID | None = None, *, by: str = ""
) -> list[str]:
    """Take the groups that hold a resource from their holders, or one of them; return whose."""
    whose = admin.free(connection, resource, token)
    if whose:
        note(connection, "free lock", {"resource": resource, "holders": whose}, who=by)
    return whose


def limit_lock(connection: Connection, resource: str, most: int | None, *, by: str = "") -> None:
    """Say how many may count in a resource, whatever code says; None: what code says."""
    admin.limit(connection, resource, most)
    note(connection, "limit lock", {"resource": resource, "most": most}, who=by)
