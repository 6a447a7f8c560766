"""Measure: what keys a relation has, how many, and where to cut them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    cast,
    false,
    func,
    literal,
    select,
    tablesample,
)

from tasks_app.domain.partition.cuts import Cut
from tasks_app.domain.partition.keys import Key, KeyType, in_utc
from tasks_app.domain.partition.records import Extent, Partition
from tasks_app.pool.batch.predicate import bound, predicate, sql_type
from tasks_app.pool.batch.relation import Relation

_SEED = 4711
"""The same blocks each time, so that they can be counted first and read then."""

_ENDS = {
    KeyType.NUMERIC: ("-Infinity", "Infinity"),
    KeyType.DATE: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMP: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMPTZ: ("0001-01-02 00:00Z", "9999-12-31 00:00Z"),
}
"""What lies beyond, NaN and infinity among it, is no bound that Python knows, in any zone."""


def extent(connection: Connection, relation: Relation) -> Extent:
    """Return the least and the greatest key; with an index on the key without reading the rows."""
    if relation.is_indexed or relation.key_type is KeyType.UUID:  # which has no min() before 18
        return _by_index(connection, relation)
    below, above = _beyond(relation)
    usable = _usable(relation)
    flags = [
        false() if each is None else func.coalesce(func.bool_or(each), false())
        for each in (relation.key.is_(None), below, above)
    ]
    ends = (func.min(relation.ordered).filter(usable), func.max(relation.ordered).filter(usable))
    query = select(*ends, *flags).select_from(relation.rows_of)
    least, most, *found = connection.execute(query).one()
    return Extent(in_utc(least), in_utc(most), *map(bool, found))


def _by_index(connection: Connection, relation: Relation) -> Extent:
    key = relation.ordered
    named = select(relation.key).select_from(relation.rows_of).where(_usable(relation))
    below, above = _beyond(relation)
    return Extent(
        in_utc(connection.execute(named.order_by(key).limit(1)).scalar()),
        in_utc(connection.execute(named.order_by(key.desc()).limit(1)).scalar()),
        nulls=has_nulls(connection, relation),
        below=below is not None and _is_there(connection, relation, below),
        above=above is not None and _is_there(connection, relation, above),
    )


def has_nulls(connection: Connection, relation: Relation) -> bool:
    """Tell whether there are rows without a key."""
    return relation.has_nulls and _is_there(connection, relation, relation.key.is_(None))


def count(connection: Connection, relation: Relation) -> int:
    """Count the rows that have a key."""
    query = select(func.count()).select_from(relation.rows_of).where(relation.key.is_not(None))
    return int(connection.execute(query).scalar_one())


def count_nulls(connection: Connection, relation: Relation) -> int:
    """Count the rows without a key."""
    if not relation.has_nulls:
        return 0
    query = select(func.count()).select_from(relation.rows_of).where(relation.key.is_(None))
    return int(connection.execute(query).scalar_one())


def histogram(connection: Connection, relation: Relation, most: int) -> dict[Key, int] | None:
    """Return how many rows each key has; None: there are more than ``most`` different ones.

    Keys that no bound can name are left out.
    """
    query = (
        select(relation.ordered, func.count())
        .select_from(relation.rows_of)
        .where(_usable(relation))
        .group_by(relation.ordered)
        .limit(most + 1)
    )
    found = {in_utc(row[0]): int(row[1]) for row in connection.execute(query)}
    return None if len(found) > most else found


def owned(connection: Connection, relation: Relation, partitions: Sequence[Partition]) -> list[int]:
    """Count the rows of each partition, by reading all rows once; not of marked ones or segments.

    It tells how uneven a plan is. Partitions of other tables than the relation have none here.
    """
    of_each = [
        func.count().filter(predicate(each, relation.key, relation.key_type)).label(f"n{place}")
        for place, each in enumerate(partitions)
    ]
    if not of_each:
        return []
    counted = connection.execute(select(*of_each).select_from(relation.rows_of)).one()
    return [int(number) for number in counted]


def exact_cuts(connection: Connection, relation: Relation, parts: int, rows: int) -> list[Cut]:
    """Return the cuts that make parts of equal size, as ``ntile`` does, of ``rows`` rows.

    Reads and sorts all keys, unless an index has them sorted.
    """
    return _cuts(connection, relation, relation.rows_of, parts, rows)


def sampled_cuts(
    connection: Connection, relation: Relation, parts: int, percent: float
) -> tuple[list[Cut], int]:
    """Return the cuts by so much of the table's blocks, and how many rows there are, about."""
    sample = tablesample(relation.rows_of, func.system(percent), seed=literal(_SEED))
    counted = select(func.count()).select_from(sample).where(relation.key.is_not(None))
    seen = int(connection.execute(counted).scalar_one())
    scale = 100 / percent
    cuts = _cuts(connection, relation, sample, parts, seen)
    return [Cut(cut.key, round(cut.before * scale)) for cut in cuts], round(seen * scale)


def upper_half(connection: Connection, relation: Relation, rows: int) -> Key | None:
    """Return the key with which the second half of ``rows`` rows begins.

    Rows of one key stay together, in the first half; None: nothing comes behind them. Reads half of
    the keys, by an index if there is one.
    """
    usable, key = _usable(relation), relation.ordered
    keys = select(relation.key).select_from(relation.rows_of).where(usable).order_by(key).limit(1)
    middle = connection.execute(keys.offset(max(0, rows - 1) // 2)).scalar()
    if middle is None:
        return None
    behind = key > bound(middle, relation.key_type)
    found: Key | None = in_utc(connection.execute(keys.where(behind)).scalar())
    return found


def _cuts(
    connection: Connection, relation: Relation, rows_of: FromClause, parts: int, rows: int
) -> list[Cut]:
    starts = sorted({part * rows // parts + 1 for part in range(parts)})
    query = _ranked(relation, rows_of, starts)
    found = dict.fromkeys(Cut(in_utc(key), before) for key, before in connection.execute(query))
    return list(found)[1:]  # the first part begins without a bound


def _ranked(relation: Relation, rows_of: FromClause, starts: list[int]) -> Select[Any]:
    key = relation.ordered
    ranked = (
        select(
            relation.key.label("key"),
            func.row_number().over(order_by=key).label("at"),
            (func.rank().over(order_by=key) - 1).label("before"),
        )
        .select_from(rows_of)
        .where(_usable(relation))
        .subquery()
    )
    return (
        select(ranked.c.key, ranked.c.before)
        .where(ranked.c.at == func.any(literal(starts)))
        .order_by(ranked.c.at)
    )


def _usable(relation: Relation) -> ColumnElement[bool]:
    """Whether a bound can name the key."""
    below, above = _beyond(relation)
    if below is None or above is None:
        return relation.key.is_not(None)
    return and_(~below, ~above)


def _beyond(
    relation: Relation,
) -> tuple[ColumnElement[bool] | None, ColumnElement[bool] | None]:
    if relation.key_type not in _ENDS:
        return None, None
    low, high = (
        cast(literal(end), sql_type(relation.key_type)) for end in _ENDS[relation.key_type]
    )
    if relation.key_type is KeyType.NUMERIC:
        return relation.key <= low, relation.key >= high
    return relation.key < low, relation.key >= high


def _is_there(connection: Connection, relation: Relation, what: ColumnElement[bool]) -> bool:
    query = select(literal(1)).select_from(relation.rows_of).where(what).limit(1)
    return connection.execute(query).first() is not None
