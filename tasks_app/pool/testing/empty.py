"""Empty the pool between two tests."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.tables import TABLES, VERSION, table

LARGE = 100
"""Pages. To truncate a table takes a millisecond and more: few rows are deleted."""
_VERSION = VERSION.rpartition(".")[2]
_NAMES = [table(name) for name in sorted(TABLES - {_VERSION})]
_LISTED = ", ".join(_NAMES)
_DELETES = "\n".join(
    f"IF EXISTS (SELECT FROM {name}) THEN DELETE FROM {name}; END IF;" for name in _NAMES
)
_EMPTY = text(f"""
    DO $$
    BEGIN
        IF EXISTS (
            SELECT FROM unnest(ARRAY[{", ".join(f"'{name}'" for name in _NAMES)}]) AS t(name)
            LEFT JOIN pg_partition_tree(CAST(t.name AS regclass)) ON true
            WHERE pg_table_size(coalesce(relid, CAST(t.name AS regclass))) > {LARGE} * 8192)
        THEN
            TRUNCATE {_LISTED};
        ELSE
            {_DELETES}
        END IF;
    END $$
""")


def empty(connection: Connection) -> None:
    """Remove all that any table of ours holds, but the version of the schema; ids go on rising."""
    connection.execute(_EMPTY)
