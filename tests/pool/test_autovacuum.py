"""The tables that change all the time are vacuumed before they grow, whatever the server says."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

OPTIONS = text("""
    SELECT option_name, CAST(option_value AS double precision)
    FROM pg_class c CROSS JOIN LATERAL pg_options_to_table(c.reloptions)
    WHERE c.oid = CAST(:name AS regclass) AND option_value ~ '^[0-9.]+$'
""")
ROWS = 1_000_000
SERVERS_OWN = 50 + 0.2 * ROWS
"""Dead rows at which a server vacuums by default."""


@pytest.mark.parametrize("name", ["task_pending", "task_progress", "task_lock", "task_batch"])
def test_dead_rows_are_cleared_away_early_and_updates_have_room(
    connection: Connection, name: str
) -> None:
    found = dict(tuple(row) for row in connection.execute(OPTIONS, {"name": name}))
    share = found["autovacuum_vacuum_scale_factor"]

    assert found["autovacuum_vacuum_threshold"] + share * ROWS <= SERVERS_OWN / 2 + 1_000
    assert found.get("fillfactor", 70) <= 70
