"""The rows of a partition page by page, each behind the last key of the page before.

It uses no OFFSET and no cursor that outlives a commit. Rows are ordered by the key that the source
is split by, then by a unique column if that is another; rows without a key by the unique one alone.
The server writes the place where a page ends, from the expressions that order the rows.

A partition ends with the last row that it has when it is first read. So a chunk that inserts rows
behind all others does not read its own for ever.

Statements name the columns that exist when a run begins: others may be added, moved or dropped
meanwhile. If one of them changes its type, the page is refused.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from psycopg import Column as ResultColumn

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
)
from tasks_app.pool.batch.sources.relation import EVERYTHING, Expr, Relation, Source, source_of

_NO_ORDER = (
    "Several rows of {} have the same {}, or none, so pages would miss some. Give the step "
    "page_by, the name of a column that is unique and not null."
)
Place = list[str]  # of a row in the order: its keys, as the server writes them


class Order(NamedTuple):
    name: str
    key_type: KeyType
    column: Expr


def pages_of(
    connection: sa.Connection,
    source: Source,
    partition: Partition,
    page_by: str | None = None,
    until: Place | None = None,
    key_type: KeyType | None = None,
) -> Pages:
    """Return the pages of a partition of a table or query.

    ``page_by`` is a unique column; None: the table's primary key, or the key that it is split by.
    ``until`` is the end that an earlier run found, ``key_type`` the type of the bounds. Raises
    PlanError if the source does not exist, its rows have no order, or its key has another type.
    """
    found = relation.find(connection, source_of(source, partition))
    if key_type not in (None, found.key_type):
        raise PlanError(
            f"{source.key} of {source} was of type {key_type} when it was split, and is "
            f"{found.key_type} now. Abandon the batch and start it again."
        )
    unique = [page_by] if page_by else _primary(connection, source) or [source.key]
    if unique == [source.key] and partition.owns_null:
        raise PlanError(
            f"Some rows of {source} have no {source.key}, and nothing else orders them. "
            "Give the step page_by, the name of a unique column."
        )
    has_key = partition.kind in {PartitionKind.RANGE, PartitionKind.VALUES}
    by_key = has_key and not partition.owns_null
    order = [Order(source.key, found.key_type, found.ordered)] if by_key else []
    order += [
        _order(connection, found, name, may_be_null=name == page_by)
        for name in unique
        if not (by_key and name == source.key)
    ]
    own = predicate(partition, found.key, found.key_type)
    nothing = connection.execute(sa.select(EVERYTHING).select_from(found.rows_of).limit(0))
    columns = columns_of(nothing)
    nothing.close()
    return Pages(found, columns, own, order, until, len(order) - len(unique))


def _order(connection: sa.Connection, found: Relation, name: str, *, may_be_null: bool) -> Order:
    other = relation.by_column(connection, found, name)
    if may_be_null and has_nulls(connection, other):
        raise PlanError(_NO_ORDER.format(found.source, name))
    return Order(name, other.key_type, other.ordered)


def _primary(connection: sa.Connection, source: Source) -> list[str]:
    if not isinstance(source, Table):
        return []
    query = sa.text("""
        SELECT a.attname FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = to_regclass(:name) AND i.indisprimary AND k.place <= i.indnkeyatts
        ORDER BY k.place
    """)
    return list(connection.execute(query, {"name": str(source)}).scalars())


class Pages:
    def __init__(
        self,
        found: Relation,
        columns: Sequence[ResultColumn],
        own: Expr,
        order: Sequence[Order],
        until: Place | None = None,
        named_from: int = 0,
    ) -> None:
        self.until = until  # the place of the last row to read; None: not read yet, or no row
        self._named_from = named_from
        self._source = found.source
        self._order = order
        places = [
            key_as_text(each.column, each.key_type).label(f"tasks_app_place_{n}")
            for n, each in enumerate(order)
        ]
        by = [each.column for each in order]
        self._last = (
            sa.select(*places)
            .select_from(found.rows_of)
            .where(own)
            .order_by(*(each.desc() for each in by))
            .limit(1)
        )
        self._columns = columns
        names = [each.name for each in columns]
        named: list[Expr] = [*map(sa.column, names), *places]
        rows: sa.Select[Any] = sa.select(*named).select_from(found.rows_of)
        at = _tuple(by)
        self._first: sa.Select[Any] = (
            rows.where(own, at <= self._place_named("until"))
            .order_by(*by)
            .limit(sa.bindparam("most", type_=sa.Integer()))
        )
        self._next: sa.Select[Any] = self._first.where(at > self._place_named("after"))
        self._row = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024  its names are known now only
        self._rows: list[Any] = []
        self._places: list[Place] = []  # of the last page's rows, and of the row behind them

    def read(self, connection: sa.Connection, after: Place | None, size: int) -> list[Any]:
        """Return up to ``size`` rows behind ``after``; the last one's place must be unique."""
        if self.until is None:
            last = connection.execute(self._last).one_or_none()
            if last is None:
                return []
            self._check_end([list(last)])
            self.until = list(last)
        values = {"most": size + 1, **_named("until", self.until), **_named("after", after or [])}
        result = connection.execute(self._first if after is None else self._next, values)
        hidden = -len(self._order)
        for old, new in zip(self._columns, columns_of(result)[:hidden], strict=True):
            if old.type_code != new.type_code:
                raise PlanError(
                    f"Column {old.name} of {self._source} was {old.type_display} when this run "
                    f"began, and is {new.type_display} now. Run it again: what is done stays done."
                )
        # Rows of SQLAlchemy would take as long as it takes to update them.
        found = fetch_rows(result.cursor)
        result.close()
        made, make = self._row, tuple.__new__  # as _make does, which also counts
        rows = [make(made, row[:hidden]) for row in found[:size]]
        self._rows, self._places = rows, [list(row[hidden:]) for row in found]
        self._check_end(self._places[size - 1 :])
        return rows

    def is_last(self, _connection: sa.Connection, rows: Sequence[Any], size: int) -> bool:
        return len(rows) < size

    def leave_out(self, _connection: sa.Connection, _rows: Sequence[Any]) -> None: ...

    def after(self, rows: Sequence[Any]) -> Place:
        return self._places[len(rows) - 1]

    def name(self, row: Any) -> str:
        place = next(n for n, one in enumerate(self._rows) if one is row)
        return ", ".join(self._places[place][self._named_from :])

    def _place_named(self, name: str) -> Any:
        words = (sa.bindparam(f"{name}_{n}", type_=sa.Text) for n in range(len(self._order)))
        pairs = zip(words, self._order, strict=True)
        return _tuple([key_from_text(word, each.key_type) for word, each in pairs])

    def _check_end(self, ends: Sequence[Place]) -> None:
        """Refuse a page whose last place is not unique: the next page would leave rows out."""
        if any(None in end for end in ends) or (len(ends) > 1 and ends[0] == ends[1]):
            names = ", ".join(each.name for each in self._order)
            raise PlanError(_NO_ORDER.format(self._source, names))


def _tuple(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else sa.tuple_(*columns)


def _named(name: str, place: Place) -> dict[str, str]:
    return {f"{name}_{n}": word for n, word in enumerate(place)}
