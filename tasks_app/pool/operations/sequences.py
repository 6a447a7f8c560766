"""Sequences that are behind the ids of their tables, as after a switch to a logical replica.

Sequences are not replicated, nor part of a restore of rows alone. The ids of old rows are then
given again, and two tasks have one.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.pool import tables
from tasks_app.pool.tables import COMPLETED, ERROR, GROUP, LOCK_FENCE, LOCK_HOLDER, PENDING, table

_OWN = (
    *(tables.SCHEDULE, tables.AUDIT, tables.GROUP, tables.PARTITION),
    *(tables.BATCH, tables.BATCH_SKIP, tables.ALERT, tables.TRANSITION, tables.TOTAL, LOCK_HOLDER),
)
GIVEN = {
    table("task_pending_id_seq"): (
        *((pool, "id") for pool in (PENDING, COMPLETED, ERROR)),
        (GROUP, "callback_id"),
    ),
    LOCK_FENCE: ((LOCK_HOLDER, "fence"),),
    **{f"{name}_id_seq": ((name, "id"),) for name in _OWN},
}
"""Each sequence, and where the numbers lie that it has given."""
MARGIN = 10_000
"""Left out when one is set: others may draw from it at this moment."""
_READABLE = text("""
    SELECT s.name FROM unnest(CAST(:names AS text[])) AS s(name)
    WHERE has_sequence_privilege(s.name, 'SELECT')
""")
_SET = text("SELECT setval(CAST(:name AS regclass), :value)")


class Behind(NamedTuple):
    """A sequence that will give numbers which are taken."""

    name: str
    next: int
    highest: int


def behind(connection: Connection) -> list[Behind]:
    """Return the sequences that are behind, of those that this role may read."""
    names = connection.execute(_READABLE, {"names": list(GIVEN)}).scalars().all()
    found = []
    for name in names:
        highest = ", ".join(f"(SELECT max({column}) FROM {of})" for of, column in GIVEN[name])
        row = connection.execute(
            text(f"SELECT last_value + CAST(is_called AS int), greatest({highest}) FROM {name}")
        ).one()
        if row[1] is not None and row[1] >= row[0]:
            found.append(Behind(name, *row))
    return found


def advance(connection: Connection) -> list[Behind]:
    """Set those that are behind to where they should be; return how they stood."""
    found = behind(connection)
    for each in found:
        connection.execute(_SET, {"name": each.name, "value": each.highest + MARGIN})
    return found
