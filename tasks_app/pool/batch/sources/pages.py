"""The rows of a partition page by page, each behind the last key of the page before.

Never OFFSET, never a cursor that outlives a commit. Rows are ordered by the key that the source is
split by, then by a unique column if that is another; rows without a key by the unique one alone.
The server writes the place where a page ends, from the very expressions that order the rows.

A partition ends with the last row that it has when it is first read. So a chunk that inserts rows
behind all others is not given its own for ever.

Statements name the columns that there are when a run begins: others may be added, moved or dropped
meanwhile. Where one of them changes its type, the page is refused.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Column as ResultColumn
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    column,
    select,
    text,
    tuple_,
)

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition, PartitionKind, Table
from tasks_app.pool.batch.sources import relation
from tasks_app.pool.batch.sources.measure import has_nulls
from tasks_app.pool.batch.sources.predicate import (
    columns_of,
    fetch_rows,
    key_as_text,
    key_from_text,
    predicate,
    text_parameter,
)
from tasks_app.pool.batch.sources.relation import EVERYTHING, Relation, Source, source_of

_PRIMARY = text("""
    SELECT a.attname FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = to_regclass(:name) AND i.indisprimary AND k.place <= i.indnkeyatts
    ORDER BY k.place
""")
_NO_ORDER = (
    "Rows of {} have the same {}, or none, so pages would leave some out. Give the step page_by, "
    "the name of a column that is unique and not null."
)
Place = list[str]  # where a row stands in the order: its keys, as the server writes them


@dataclass(frozen=True, slots=True)
class Order:
    """One column of the order."""

    name: str
    key_type: KeyType
    column: ColumnElement[Any]

    @property
    def written(self) -> ColumnElement[Any]:
        return key_as_text(self.column, self.key_type)


class Pages:
    """How a partition's rows are read."""

    def __init__(
        self,
        found: Relation,
        columns: Sequence[ResultColumn],
        own: ColumnElement[bool],
        order: Sequence[Order],
        until: Place | None = None,
        named_from: int = 0,
    ) -> None:
        self.until = until
        """The place of the last row to read; None: not looked up yet, or there was none."""
        self._named_from = named_from
        self._source = found.source
        self._order = order
        places = [each.written.label(f"tasks_app_place_{n}") for n, each in enumerate(order)]
        by = [each.column for each in order]
        self._last = (
            select(*places)
            .select_from(found.rows_of)
            .where(own)
            .order_by(*(each.desc() for each in by))
            .limit(1)
        )
        self._columns = columns
        names = [each.name for each in columns]
        named: list[ColumnElement[Any]] = [*map(column, names), *places]
        rows: Select[Any] = select(*named).select_from(found.rows_of)
        at = _tuple(by)
        self._first: Select[Any] = (
            rows.where(own, at <= self._place_named("until"))
            .order_by(*by)
            .limit(bindparam("most", type_=Integer()))
        )
        self._next: Select[Any] = self._first.where(at > self._place_named("after"))
        self._row = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024  its names are known now only
        self._rows: list[Any] = []
        self._places: list[Place] = []
        """Places of the rows that were read last, and of the one behind them."""

    def read(self, connection: Connection, after: Place | None, size: int) -> list[Any]:
        """Return up to ``size`` rows behind ``after``, a place that :meth:`after` gave, or None.

        Raises PlanError if what orders them is not unique, or null, where this page ends; or a
        column has another type than before.
        """
        if self.until is None:
            self.until = self._end(connection)
        if self.until is None:
            return []
        values = {"most": size + 1, **_named("until", self.until), **_named("after", after or [])}
        result = connection.execute(self._first if after is None else self._next, values)
        hidden = -len(self._order)
        self._check_types(columns_of(result)[:hidden])
        found = fetch_rows(
            result.cursor
        )  # rows of SQLAlchemy cost as much as it takes to update them
        result.close()
        made, make = self._row, tuple.__new__  # as _make does, which also counts
        rows = [make(made, row[:hidden]) for row in found[:size]]
        self._rows, self._places = rows, [list(row[hidden:]) for row in found]
        self._check_end(self._places[size - 1 :])
        return rows

    def is_last(self, _connection: Connection, rows: Sequence[Any], size: int) -> bool:
        return len(rows) < size

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, rows: Sequence[Any]) -> Place:
        return self._places[len(rows) - 1]

    def name(self, row: Any) -> str:
        """Return the unique part of its place, by which people find the row."""
        place = next(n for n, one in enumerate(self._rows) if one is row)
        return ", ".join(self._places[place][self._named_from :])

    def _check_types(self, now: Sequence[ResultColumn]) -> None:
        for old, new in zip(self._columns, now, strict=True):
            if old.type_code != new.type_code:
                raise PlanError(
                    f"Column {old.name} of {self._source} was {old.type_display} when this run "
                    f"began, and is {new.type_display} now. Run it again: what is done stays done."
                )

    def _end(self, connection: Connection) -> Place | None:
        last = connection.execute(self._last).one_or_none()
        if last is not None:
            self._check_end([list(last)])
        return None if last is None else list(last)

    def _place_named(self, name: str) -> Any:
        """Return the parameters that take the texts of a place, as keys."""
        words = (text_parameter(f"{name}_{n}") for n in range(len(self._order)))
        pairs = zip(words, self._order, strict=True)
        return _tuple([key_from_text(word, each.key_type) for word, each in pairs])

    def _check_end(self, ends: Sequence[Place]) -> None:
        """Refuse a page whose last place is not unique: the next page would leave rows out."""
        if any(None in end for end in ends) or (len(ends) > 1 and ends[0] == ends[1]):
            raise PlanError(_NO_ORDER.format(self._source, self._names))

    @property
    def _names(self) -> str:
        return ", ".join(each.name for each in self._order)


def pages_of(
    connection: Connection,
    source: Source,
    partition: Partition,
    page_by: str | None = None,
    until: Place | None = None,
    key_type: KeyType | None = None,
) -> Pages:
    """Return the pages of a partition of a table or query.

    ``page_by`` is a unique column; None: the table's primary key, else the key that it is split by.
    ``until`` is the end that an earlier run of the partition found, ``key_type`` the type of its
    bounds. Raises PlanError if the source is not there, its rows have no order, or its key has
    another type.
    """
    found = relation.find(connection, source_of(source, partition))
    if key_type not in (None, found.key_type):
        raise PlanError(
            f"{source.key} of {source} was of type {key_type} when it was split, and is "
            f"{found.key_type} now. Abandon the batch and start it anew."
        )
    unique = [page_by] if page_by else _primary(connection, source) or [source.key]
    if unique == [source.key] and partition.owns_null:
        raise PlanError(
            f"Some rows of {source} have no {source.key}, and nothing else orders them. "
            "Give the step page_by, the name of a unique column."
        )
    by_key = (
        partition.kind in {PartitionKind.RANGE, PartitionKind.VALUES} and not partition.owns_null
    )
    order = [Order(source.key, found.key_type, found.ordered)] if by_key else []
    order += [
        _order(connection, found, name, may_be_null=name == page_by)
        for name in unique
        if not (by_key and name == source.key)
    ]
    own = predicate(partition, found.key, found.key_type)
    nothing = connection.execute(select(EVERYTHING).select_from(found.rows_of).limit(0))
    columns = columns_of(nothing)
    nothing.close()
    return Pages(found, columns, own, order, until, len(order) - len(unique))


def _order(connection: Connection, found: Relation, name: str, *, may_be_null: bool) -> Order:
    other = relation.by_column(connection, found, name)
    if may_be_null and has_nulls(connection, other):
        raise PlanError(_NO_ORDER.format(found.source, name))
    return Order(name, other.key_type, other.ordered)


def _primary(connection: Connection, source: Source) -> list[str]:
    if not isinstance(source, Table):
        return []
    return list(connection.execute(_PRIMARY, {"name": str(source)}).scalars())


def _tuple(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else tuple_(*columns)


def _named(name: str, place: Place) -> dict[str, str]:
    return {f"{name}_{n}": word for n, word in enumerate(place)}
