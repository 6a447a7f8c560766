"""The trail of a task: its logged moves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.pool.tables import TRANSITION


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the log of transitions."""

    at: datetime
    attempt: int
    event: str
    from_state: str | None
    """None: it was created."""
    to_state: str
    owner: str | None
    started_at: datetime | None
    """When the claim that ended was made."""
    due_at: datetime | None
    detail: str | None
    who: str | None
    """If no child did it: an operator, or what made the task."""
    why: str | None


_COLUMNS = ", ".join(field.name for field in fields(Transition))
_READ = text(f"""
    SELECT {_COLUMNS} FROM (
        SELECT id, {_COLUMNS} FROM {TRANSITION} WHERE task_id = :id ORDER BY id DESC LIMIT :most)
        AS newest
    ORDER BY at, from_state IS NOT NULL, id
""")


def transitions(connection: Connection, task_id: int, most: int = 200) -> list[Transition]:
    """Return the newest lines of a task, oldest first."""
    return [Transition(*row) for row in connection.execute(_READ, {"id": task_id, "most": most})]
