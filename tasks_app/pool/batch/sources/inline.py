"""Statements with their values in them, where none can be bound: views, columns, COPY."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

from psycopg import ClientCursor
from sqlalchemy import ColumnElement, Connection, CursorResult, Select, select

from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.sources.predicate import predicate
from tasks_app.pool.batch.sources.relation import EVERYTHING, Source, find, quoted, source_of


def inline(connection: Connection, statement: Select[Any] | ColumnElement[Any]) -> str:
    """Return the statement with its values, quoted by the driver."""
    compiled = statement.compile(dialect=connection.dialect)
    driver: Any = connection.connection.driver_connection
    with ClientCursor(driver) as cursor:
        return cursor.mogrify(str(compiled), compiled.params)


def execute(connection: Connection, sql: str) -> CursorResult[Any]:
    """Execute a text that ``inline`` helped to make, in the caller's transaction."""
    return connection.exec_driver_sql(sql.replace("%", "%%"))


def extract(connection: Connection, source: Source, out: BinaryIO) -> int:
    """Write all rows as CSV with a header, as one snapshot has them; return how many bytes."""
    relation = find(connection, source)
    rows = select(EVERYTHING).select_from(relation.rows_of)
    sql = f"COPY ({inline(connection, rows)}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    written = 0
    with driver.cursor() as cursor, cursor.copy(sql) as copied:
        for piece in copied:
            written += out.write(piece)
    return written


def create_view(
    connection: Connection, source: Source, partition: Partition, key_type: KeyType, view: Table
) -> None:
    """Create or replace the view of a partition's rows; the source must be a table or view."""
    relation = find(connection, source_of(source, partition))
    rows = (
        select(EVERYTHING)
        .select_from(relation.rows_of)
        .where(predicate(partition, relation.key, key_type))
    )
    execute(connection, f"CREATE OR REPLACE VIEW {quoted(view)} AS {inline(connection, rows)}")


def drop_views(connection: Connection, partitions: Iterable[Partition]) -> list[str]:
    """Drop the views of partitions that are still there; return their names."""
    names = [each.view for each in partitions if each.view is not None]
    for name in names:
        execute(connection, f"DROP VIEW IF EXISTS {quoted(Table.named(name, ''))}")
    return names
