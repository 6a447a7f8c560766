"""How late delayed tasks start."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tests.broker.conftest import House

DUE, PUMP = "tasks_app:delay.due", "tasks_app:delay.pump"


def lateness(house: House, ids: list[int]) -> list[float]:
    """How many seconds after they were due tasks were claimed."""
    late = text(
        "SELECT EXTRACT(EPOCH FROM started_at - due_at)::float FROM task_completed"
        " WHERE id = ANY(:ids)"
    )
    with house.engine.connect() as connection:
        found: list[Any] = list(connection.execute(late, {"ids": ids}).scalars())
    return found
