"""Renew: push the leases of what this child still holds, and hear who shall stop.

By ids and tokens of claims whose reply has arrived, never "all rows of this owner": a claim whose
reply was lost must be allowed to run out, or it would be RUNNING for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.fences import fence_arrays, fenced
from tasks_app.pool.tables import NOW, PENDING

_LOCK = "FOR NO KEY UPDATE OF p SKIP LOCKED"
_RENEW = text(f"""
    WITH held AS MATERIALIZED (
        SELECT p.id FROM {fenced(f"p.state = '{State.RUNNING}'", _LOCK)})
    UPDATE {PENDING} p SET lease_until = {NOW} + CAST(:lease AS interval)
    WHERE p.id = ANY(ARRAY(SELECT id FROM held))
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
    rows = connection.execute(
        _RENEW,
        {**fence_arrays(fences), "lease": lease, "now": now},
    ).all()
    return Renewed(
        frozenset(row.id for row in rows), frozenset(row.id for row in rows if row.cancelled)
    )
