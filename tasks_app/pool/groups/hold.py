"""Hold: the groups of tasks that are to be cancelled together, before any of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tasks_app.pool.groups.count import locking
from tasks_app.pool.tables import PENDING

_HOLD = text(f"""
    WITH {locking(f"SELECT p.batch_id FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[]))")}
    SELECT id FROM own
""")


def hold(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Lock the groups of these tasks that are not over; return their ids.

    A run that ends locks its group and then its row: who locked the row first would stop it, and
    then wait for it.
    """
    return list(connection.execute(_HOLD, {"ids": list(ids)}).scalars())
