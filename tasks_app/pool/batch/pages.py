"""Pages: the rows of a partition, some at a time, each page behind the last key of the one before.

Never OFFSET, never a cursor that outlives a commit. Rows are ordered by the key that the source is
split by, and by one that is unique, where that is another; of rows without a key by that one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    literal_column,
    select,
    text,
    tuple_,
)

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, write_key
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch import relation
from tasks_app.pool.batch.predicate import bound, predicate
from tasks_app.pool.batch.relation import Relation, Source, source_of

_PRIMARY = text("""
    SELECT a.attname FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = to_regclass(:name) AND i.indisprimary AND i.indnkeyatts = 1
""")


@dataclass(frozen=True, slots=True)
class Order:
    """One column of the order, and the name that its value has in a row."""

    name: str
    key_type: KeyType
    column: ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Pages:
    """How a partition's rows are read."""

    rows_of: FromClause
    own: ColumnElement[bool]
    order: tuple[Order, ...]

    def read(
        self, connection: Connection, after: Sequence[str] | None, size: int
    ) -> list[Row[Any]]:
        """Return the next rows behind ``after``, which :meth:`after` wrote; None: the first."""
        columns = [each.column for each in self.order]
        statement: Select[Any] = (
            select(literal_column("*")).select_from(self.rows_of).where(self.own)
        )
        if after is not None:
            keys = [
                bound(each.key_type.parse(text), each.key_type)
                for each, text in zip(self.order, after, strict=True)
            ]
            behind = columns[0] > keys[0] if len(keys) == 1 else tuple_(*columns) > tuple_(*keys)
            statement = statement.where(behind)
        return list(connection.execute(statement.order_by(*columns).limit(size)).all())

    def after(self, rows: Sequence[Row[Any]]) -> list[str]:
        """Return what the next page is behind of."""
        return [write_key(self._value(rows[-1], each.name)) for each in self.order]

    def name(self, row: Row[Any]) -> str:
        """Return the key by which people find the row."""
        return write_key(self._value(row, self.order[-1].name))

    @staticmethod
    def _value(row: Row[Any], name: str) -> Key:
        value: Key = row._mapping[name]  # noqa: SLF001  as SQLAlchemy publishes it
        return value


def pages_of(
    connection: Connection, source: Source, partition: Partition, page_by: str | None = None
) -> Pages:
    """Return how to read a partition of a table or query.

    ``page_by`` is a unique column; None: the table's primary key, else the key that it is split by.

    Raises:
        PlanError: the source is not there, or its rows have no order.
    """
    found = relation.find(connection, source)
    unique = page_by or _primary(connection, source) or source.key
    by_key = partition.kind in {Kind.RANGE, Kind.VALUES} and not partition.owns_null
    if unique == source.key and partition.owns_null:
        raise PlanError(
            f"Some rows of {source} have no {source.key}, and nothing else orders them. "
            "Give the step page_by, the name of a unique column."
        )
    order = [Order(source.key, found.key_type, found.ordered)] if by_key else []
    if unique != source.key or not by_key:
        order.append(_order(connection, source, unique, found))
    return Pages(
        relation.rows_of(source_of(source, partition)),
        predicate(partition, found.key, found.key_type),
        tuple(order),
    )


def _order(connection: Connection, source: Source, name: str, found: Relation) -> Order:
    if name == source.key:
        return Order(name, found.key_type, found.ordered)
    of = Table(source.name, name, source.schema) if isinstance(source, Table) else None
    other = relation.find(connection, of or relation.Query(source.select, name))  # type: ignore[union-attr]
    return Order(name, other.key_type, other.ordered)


def _primary(connection: Connection, source: Source) -> str | None:
    if not isinstance(source, Table):
        return None
    name: str | None = connection.execute(_PRIMARY, {"name": str(source)}).scalar()
    return name
