"""A stored column that holds the hash bucket of each row's key, with an index.

The database computes it, for new rows, too. To add it or to change its modulus writes the whole
table under an exclusive lock: do it between windows, not in one.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.sources.inline import execute, inline
from tasks_app.pool.batch.sources.predicate import bucket
from tasks_app.pool.batch.sources.relation import find, identifier, quoted

_GENERATED = text("""
    SELECT a.attgenerated = 's' FROM pg_attribute a
    WHERE a.attrelid = to_regclass(:name) AND a.attname = :column AND NOT a.attisdropped
""")


def add_bucket(connection: Connection, table: Table, column: str, modulus: int) -> None:
    """Add the column, and an index on it and the key."""
    execute(connection, f"ALTER TABLE {quoted(table)} {_added(connection, table, column, modulus)}")
    _index(connection, table, column)


def rebalance(connection: Connection, table: Table, column: str, modulus: int) -> None:
    """Compute the column again, with another modulus.

    Raises:
        PlanError: the database does not compute it: its writer has to.
    """
    added = _added(connection, table, column, modulus)
    _check(connection, table, column)
    dropped = f"DROP COLUMN {identifier(column)}"
    execute(connection, f"ALTER TABLE {quoted(table)} {dropped}, {added}")
    _index(connection, table, column)


def drop_bucket(connection: Connection, table: Table, column: str) -> None:
    """Drop the column, and with it its index.

    Raises:
        PlanError: it is not one that the database computes.
    """
    _check(connection, table, column)
    execute(connection, f"ALTER TABLE {quoted(table)} DROP COLUMN {identifier(column)}")


def _added(connection: Connection, table: Table, column: str, modulus: int) -> str:
    relation = find(connection, table)
    computed = inline(connection, bucket(relation.key, relation.key_type, modulus))
    return f"ADD COLUMN {identifier(column)} integer GENERATED ALWAYS AS ({computed}) STORED"


def _index(connection: Connection, table: Table, column: str) -> None:
    columns = f"{identifier(column)}, {identifier(table.key)}"
    execute(connection, f"CREATE INDEX ON {quoted(table)} ({columns})")


def _check(connection: Connection, table: Table, column: str) -> None:
    values = {"name": str(table), "column": column}
    if not connection.execute(_GENERATED, values).scalar():
        raise PlanError(
            f"{column} of {table} is no column that the database computes. "
            "Write it anew yourself, or add one by add_bucket."
        )
