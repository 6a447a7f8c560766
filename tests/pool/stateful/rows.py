"""What the database holds, in the words of the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tests.pool.stateful.world import Changes, Row

_OF_PENDING = {"scan_at", "parked", "lease_token", "lease_until", "held_due_at"}
_OF_THE_OTHERS = {"error", "result"}
_NAMES = ["lease_token" if f.name == "token" else f.name for f in fields(Row)]


def _select(table: str, absent: set[str]) -> str:
    """A cast gives each NULL its type."""
    types = {"lease_token": "uuid", "result": "jsonb", "error": "text", "parked": "text"}
    columns = (
        f"CAST(NULL AS {types.get(name, 'timestamptz')}) AS {name}" if name in absent else name
        for name in _NAMES
    )
    return f"SELECT {', '.join(columns)}, idempotency_key FROM {table}"


_ROWS = text(
    f"{_select('task_pending', _OF_THE_OTHERS)} UNION ALL "
    f"{_select('task_completed', _OF_PENDING)} UNION ALL {_select('task_error', _OF_PENDING)}"
)
_PAUSES = text("SELECT queue, reason FROM task_queue_pause")
_NOTES = text("""
    SELECT event, task_id, attempt FROM task_attempt
    UNION ALL SELECT 'effect', task_id, attempt FROM stateful_effect
""")


def read_rows(connection: Connection) -> list[tuple[Row, Any]]:
    """All rows of all pools, each with its idempotency key."""
    read = connection.execute(_ROWS).all()
    return [(_row(values), key) for *values, key in read]


def _row(values: Any) -> Row:
    row = Row(*values)
    return row.but(state=State(row.state))


def read_pauses(connection: Connection) -> Changes:
    return dict(connection.execute(_PAUSES).all())


def read_notes(connection: Connection) -> Counter:
    return Counter(map(tuple, connection.execute(_NOTES)))
