"""Unblock: an operator decides that a task that failed for good holds its order key no longer."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import Gate, Kind
from tasks_app.pool.tables import ERROR, GATE, NOW

_UNBLOCK = text(f"""
    UPDATE {ERROR} e SET order_skips = true
    WHERE e.id = :id AND e.order_key IS NOT NULL AND e.order_skips IS NOT TRUE
    RETURNING e.order_key
""")
_LOOK = text(f"""
    UPDATE {GATE} t SET look_at = {NOW} WHERE t.gate = :gate AND t.look_at IS NOT NULL
""")


def unblock(connection: Connection, task_id: int, *, now: datetime | None = None) -> bool:
    """Let those go on that wait behind a failed task; False: nobody does, or it is not there."""
    key = connection.execute(_UNBLOCK, {"id": task_id}).scalar()
    if key is None:
        return False
    connection.execute(_LOOK, {"gate": str(Gate(Kind.ORDER, key)), "now": now})
    return True
