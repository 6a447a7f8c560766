"""Renew what is held or waited for, and guard what is written under it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.locks import UNHURRIED
from tasks_app.pool.tables import LOCK_HOLDER, LOCK_PART, LOCK_WAIT, NOW

_RENEW = text(f"""
    WITH ours AS MATERIALIZED (
        SELECT h.id FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[]))
        ORDER BY h.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {LOCK_HOLDER} h SET lease_until = {NOW} + CAST(:lease AS interval)
    FROM ours o WHERE h.id = o.id
""")
_THERE = text(f"SELECT token FROM {LOCK_HOLDER} WHERE token = ANY(CAST(:tokens AS uuid[]))")
_GUARD = text(f"""
    SELECT h.fence FROM {LOCK_HOLDER} h WHERE h.token = :token AND h.fence IS NOT NULL
    FOR KEY SHARE
""")


def renew(
    connection: Connection,
    tokens: Sequence[UUID],
    lease: timedelta,
    *,
    now: datetime | None = None,
) -> set[UUID]:
    """Extend the leases to ``lease`` from now; return the tokens that are lost.

    A locked row is left out: its lock is being released, or taken over.
    """
    values = {"tokens": list(tokens), "lease": lease, "now": now}
    connection.execute(_RENEW, values)
    return set(tokens) - set(connection.execute(_THERE, values).scalars())


def guard(connection: Connection, token: UUID) -> bool:
    """Keep the lock until the caller's transaction ends, whatever its lease says; False: lost.

    A renewal goes on meanwhile; an attempt to take the lock over finds it held.
    """
    return connection.execute(_GUARD, {"token": token}).first() is not None


_RELEASE = text(f"""
    DELETE FROM {LOCK_HOLDER} h WHERE h.token = ANY(CAST(:tokens AS uuid[])) RETURNING h.token
""")
_RELEASE_NOW = text(f"""
    WITH {UNHURRIED}
    DELETE FROM {LOCK_HOLDER} h USING unhurried
    WHERE h.token = ANY(CAST(:tokens AS uuid[])) RETURNING h.token
""")


_GIVE_UP = text(f"""
    WITH {UNHURRIED},
    gone AS (
        DELETE FROM {LOCK_HOLDER} h USING unhurried WHERE h.token = :token AND h.fence IS NULL
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


def release_now(connection: Connection, *tokens: UUID) -> set[UUID]:
    """Do the same in a transaction that does nothing else, such as that of a single statement."""
    return set(connection.execute(_RELEASE_NOW, {"tokens": list(tokens)}).scalars())


def give_up(connection: Connection, token: UUID, *, now: datetime | None = None) -> None:
    """Leave the line, and write down what was waited for in vain."""
    connection.execute(_GIVE_UP, {"token": token, "now": now})
