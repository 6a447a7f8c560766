"""The trail that tasks leave: lines of the log of transitions go by their age."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import NOW, TRANSITION

LOOKED_AT = 5_000
"""Rows per statement: some ten milliseconds."""
_OLD = text(f"""
    WITH looked AS MATERIALIZED (SELECT id, at FROM {TRANSITION} ORDER BY id LIMIT :most)
    DELETE FROM {TRANSITION} t
    WHERE t.id = ANY(ARRAY(SELECT id FROM looked WHERE at < {NOW} - CAST(:age AS interval)))
""")
"""Ids rise with time, nearly: a pass looks no further than where nothing is old any more."""


def delete_old_lines(
    connection: Connection, age: timedelta, *, most: int = LOOKED_AT, now: datetime | None = None
) -> tuple[int, bool]:
    """Delete the oldest lines; return how many went, and whether there may be more."""
    gone = connection.execute(_OLD, {"age": age, "most": most, "now": now}).rowcount
    return gone, gone == most
