"""Outage: a run that met something which is down counts it, before it is settled."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.handlers.outages import Outages
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import NOW, PENDING

_COUNT = text(f"""
    UPDATE {PENDING} SET outages = least(coalesce(outages, 0) + 1, 32767),
        outage_since = coalesce(outage_since, {NOW})
    WHERE id = :task_id AND attempt = :attempt AND lease_token = :token
      AND state = '{State.RUNNING}'
    RETURNING outages, {NOW} - outage_since AS since
""")


def count_outage(
    connection: Connection, fence: Fence, *, now: datetime | None = None
) -> Outages | None:
    """Count one outage more; None: the fence is lost, and nothing was written."""
    row = connection.execute(_COUNT, {**fence._asdict(), "now": now}).first()
    return None if row is None else Outages(row.outages, max(row.since, timedelta(0)))
