"""Views: one for each partition, so that a program reads its rows and knows of no keys."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select

from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.inline import execute, inline
from tasks_app.pool.batch.predicate import predicate
from tasks_app.pool.batch.relation import EVERYTHING, Source, find, quoted, source_of


def create(
    connection: Connection, source: Source, partition: Partition, key_type: KeyType, view: Table
) -> None:
    """Make the view of a partition's rows, or make it anew; the source must be a table or view."""
    relation = find(connection, source_of(source, partition))
    rows = (
        select(EVERYTHING)
        .select_from(relation.rows_of)
        .where(predicate(partition, relation.key, key_type))
    )
    execute(connection, f"CREATE OR REPLACE VIEW {quoted(view)} AS {inline(connection, rows)}")


def drop(connection: Connection, partitions: Iterable[Partition]) -> list[str]:
    """Drop the views of partitions, where they are still there; return their names."""
    names = [each.view for each in partitions if each.view is not None]
    for name in names:
        execute(connection, f"DROP VIEW IF EXISTS {quoted(Table.named(name, ''))}")
    return names
