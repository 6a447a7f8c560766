"""Amend: a run gives its own task another payload, for the attempts to come."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.states import State
from tasks_app.domain.task import Fence
from tasks_app.pool.tables import PENDING

_AMEND = text(f"""
    UPDATE {PENDING} SET payload = CAST(:payload AS jsonb)
    WHERE id = :task_id AND attempt = :attempt AND lease_token = :token
      AND state = '{State.RUNNING}'
    RETURNING id
""")


def amend(connection: Connection, fence: Fence, payload: str) -> bool:
    """Replace the payload, JSON text; False: the fence is lost, and nothing was written."""
    values = {**fence._asdict(), "payload": payload}
    return connection.execute(_AMEND, values).first() is not None
