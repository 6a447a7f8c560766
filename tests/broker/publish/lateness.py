"""How late delayed tasks start."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tasks_app.pool.pool_name import pool_name
from tests.broker.conftest import House


def keys_of(house: House) -> tuple[str, str]:
    """The index of this pool, and who pumps it."""
    with house.engine.connect() as connection:
        place = f"tasks_app:delay.{pool_name(connection)}"
    return f"{place}.due", f"{place}.pump"


def lateness(house: House, ids: list[int]) -> list[float]:
    """How many seconds after they were due tasks were claimed."""
    late = text(
        "SELECT EXTRACT(EPOCH FROM started_at - due_at)::float FROM task_completed"
        " WHERE id = ANY(:ids)"
    )
    with house.engine.connect() as connection:
        found: list[Any] = list(connection.execute(late, {"ids": ids}).scalars())
    return found
