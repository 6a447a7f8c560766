"""Renew: push the leases of what this child still holds, and hear who shall stop.

By ids and tokens of claims whose reply has arrived, never "all rows of this owner": a claim whose
reply was lost must be allowed to run out, or it would be RUNNING for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.states import State
from tasks_app.domain.task import Fence
from tasks_app.pool.tables import NOW, PENDING

_RENEW = text(f"""
    WITH fence AS MATERIALIZED (SELECT * FROM unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]))
        AS f(id, attempt, token)),
    held AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p JOIN fence f ON f.id = p.id
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.state = '{State.RUNNING}'
          AND p.attempt = f.attempt AND p.lease_token = f.token
        ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED)
    UPDATE {PENDING} p SET lease_until = {NOW} + CAST(:lease AS interval)
    FROM held h WHERE p.id = h.id
    RETURNING p.id, p.cancel_requested_at IS NOT NULL AS cancelled
""")


@dataclass(frozen=True, slots=True)
class Renewed:
    """What the renewal told."""

    ids: frozenset[int]
    """Renewed. Of the others the fence is lost, or somebody holds their row just now."""
    cancelled: frozenset[int]
    """Renewed, and somebody asked for their cancellation."""


def renew(
    connection: Connection,
    fences: Sequence[Fence],
    lease: timedelta,
    *,
    now: datetime | None = None,
) -> Renewed:
    """Extend the leases of ``fences`` to ``lease`` from now."""
    rows = connection.execute(
        _RENEW,
        {
            "ids": [f.task_id for f in fences],
            "attempts": [f.attempt for f in fences],
            "tokens": [f.token for f in fences],
            "lease": lease,
            "now": now,
        },
    ).all()
    return Renewed(
        frozenset(row.id for row in rows), frozenset(row.id for row in rows if row.cancelled)
    )
