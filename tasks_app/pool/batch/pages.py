"""Pages: the rows of a partition, some at a time, each page behind the last key of the one before.

Never OFFSET, never a cursor that outlives a commit. Rows are ordered by the key that the source is
split by, and by one that is unique, where that is another; of rows without a key by that one alone.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, text

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType, write_key
from tasks_app.domain.partition.records import Kind, Partition
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch import relation
from tasks_app.pool.batch.predicate import predicate
from tasks_app.pool.batch.relation import EVERYTHING, Query, Relation, Source, in_order, source_of
from tasks_app.pool.paging import Paged

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


class Pages:
    """How a partition's rows are read."""

    def __init__(self, found: Relation, own: ColumnElement[bool], order: Sequence[Order]) -> None:
        self._source = found.source
        self._order = order
        self._places: list[int] = []
        self._row: Any = None
        """Makes a row of a tuple."""
        rows = select(EVERYTHING).select_from(found.rows_of).where(own)
        self._paged = Paged(rows, [each.column for each in order])

    def read(self, connection: Connection, after: Sequence[str] | None, size: int) -> list[Any]:
        """Return the next rows behind ``after``, which :meth:`after` wrote; None: the first.

        Raises:
            PlanError: what orders them is not unique, or null, where this page ends.
        """
        keys = None
        if after is not None:
            pairs = zip(self._order, after, strict=True)
            keys = tuple(each.key_type.parse(key) for each, key in pairs)
        result = connection.execute(*self._paged.page(keys, size + 1))
        if self._row is None:
            made = namedtuple("Row", result.keys(), rename=True)  # type: ignore[misc]  # noqa: PYI024  its names are known now only
            self._row = partial(tuple.__new__, made)  # as _make does, which also counts
            self._places = [list(result.keys()).index(each.name) for each in self._order]
        cursor: Any = result.cursor  # rows of SQLAlchemy cost as much as it takes to update them
        rows = list(map(self._row, cursor.fetchall()))
        result.close()
        self._check_end(rows[size - 1 :])
        return rows[:size]

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether the page was not full."""
        return len(rows) < size

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None:
        """Do nothing: a table does not want to know."""

    def after(self, rows: Sequence[Any]) -> list[str]:
        """Return what the next page is behind of."""
        return [write_key(rows[-1][place]) for place in self._places]

    def name(self, row: Any) -> str:
        """Return the key by which people find the row."""
        return write_key(row[self._places[-1]])

    def _check_end(self, rows: Sequence[Any]) -> None:
        """Pass if the next page begins behind the last row of this one, and leaves nothing out."""
        ends = [[row[place] for place in self._places] for row in rows]
        if any(None in end for end in ends) or (
            len(rows) > 1 and self.after(rows[:1]) == self.after(rows)
        ):
            names = ", ".join(each.name for each in self._order)
            raise PlanError(
                f"Rows of {self._source} have the same {names}, or none, so pages would leave "
                "some out. Give the step page_by, the name of a column that is unique and not null."
            )


def pages_of(
    connection: Connection, source: Source, partition: Partition, page_by: str | None = None
) -> Pages:
    """Return how to read a partition of a table or query.

    ``page_by`` is a unique column; None: the table's primary key, else the key that it is split by.

    Raises:
        PlanError: the source is not there, or its rows have no order.
    """
    found = relation.find(connection, source_of(source, partition))
    unique = page_by or _primary(connection, source) or source.key
    if unique == source.key and partition.owns_null:
        raise PlanError(
            f"Some rows of {source} have no {source.key}, and nothing else orders them. "
            "Give the step page_by, the name of a unique column."
        )
    by_key = partition.kind in {Kind.RANGE, Kind.VALUES} and not partition.owns_null
    order = [Order(source.key, found.key_type, found.ordered)]
    if unique != source.key:
        order = [*order[:by_key], _order(connection, found, unique)]
    return Pages(found, predicate(partition, found.key, found.key_type), order)


def _order(connection: Connection, found: Relation, name: str) -> Order:
    of = found.source
    if isinstance(of, Table):
        other = relation.find(connection, Table(of.name, name, of.schema))
        return Order(name, other.key_type, other.ordered)
    key_type = relation.find(connection, Query(of.select, name)).key_type
    return Order(name, key_type, in_order(found.rows_of.c[name], key_type))


def _primary(connection: Connection, source: Source) -> str | None:
    if not isinstance(source, Table):
        return None
    name: str | None = connection.execute(_PRIMARY, {"name": str(source)}).scalar()
    return name
