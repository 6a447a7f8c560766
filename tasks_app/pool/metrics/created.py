"""How many ids new tasks were given: the sequence counts them for nothing."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.tables import table

# A role that may not see the sequence gets null.
_CREATED = text("""
    SELECT CASE WHEN has_sequence_privilege(CAST(CAST(:name AS regclass) AS oid), 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value(CAST(:name AS regclass)), 0) END
""")


def created(connection: Connection) -> int | None:
    """Return how many; None: this role may not know. It only grows."""
    return connection.execute(_CREATED, {"name": table("task_pending_id_seq")}).scalar_one()  # type: ignore[no-any-return]
