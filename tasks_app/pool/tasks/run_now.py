"""Run now: a task that waits for its time becomes due."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import NOW, PENDING

_RUN = text(f"""
    UPDATE {PENDING} SET due_at = {NOW}, scan_at = {NOW}
    WHERE id = :id AND state = '{State.PENDING}' AND due_at > {NOW} RETURNING id
""")


def run_now(connection: Connection, task_id: int, *, now: datetime | None = None) -> bool:
    """Make a waiting task due; False: it is due, runs, has ended, or is not there."""
    return connection.execute(_RUN, {"id": task_id, "now": now}).first() is not None
