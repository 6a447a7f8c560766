"""Outcomes: in which states some tasks are."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tasks_app.pool.tables import ALL

_STATES = text(f"""
    SELECT t.state, count(*) AS number FROM {ALL} t WHERE t.id = ANY(:ids) GROUP BY t.state
""")


def states_of(connection: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Count the tasks by state; those that were pruned are not counted."""
    if not ids:
        return {}
    return {row.state: row.number for row in connection.execute(_STATES, {"ids": list(ids)})}
