"""What keys a relation has, and how many."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    cast,
    false,
    func,
    literal,
    select,
)

from tasks_app.domain.partition.keys import Key, KeyType, in_utc
from tasks_app.domain.partition.records import Extent, Partition
from tasks_app.pool.batch.sources.predicate import predicate, sql_type
from tasks_app.pool.batch.sources.relation import Relation

_ENDS = {
    KeyType.NUMERIC: ("-Infinity", "Infinity"),
    KeyType.DATE: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMP: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMPTZ: ("0001-01-02 00:00Z", "9999-12-31 00:00Z"),
}
"""Keys beyond these, as NaN and infinity, are no bounds that Python knows, in any zone."""


def extent(connection: Connection, relation: Relation) -> Extent:
    """Return the least and the greatest key; an index on the key saves reading the rows."""
    if relation.is_indexed or relation.key_type is KeyType.UUID:  # which has no min() before 18
        return _by_index(connection, relation)
    below, above = _beyond(relation)
    has_bound = usable(relation)
    flags = [
        false() if each is None else func.coalesce(func.bool_or(each), false())
        for each in (relation.key.is_(None), below, above)
    ]
    ends = (
        func.min(relation.ordered).filter(has_bound),
        func.max(relation.ordered).filter(has_bound),
    )
    query = select(*ends, *flags).select_from(relation.rows_of)
    least, most, *found = connection.execute(query).one()
    return Extent(in_utc(least), in_utc(most), *map(bool, found))


def _by_index(connection: Connection, relation: Relation) -> Extent:
    key = relation.ordered
    named = select(relation.key).select_from(relation.rows_of).where(usable(relation))
    below, above = _beyond(relation)
    return Extent(
        in_utc(connection.execute(named.order_by(key).limit(1)).scalar()),
        in_utc(connection.execute(named.order_by(key.desc()).limit(1)).scalar()),
        nulls=has_nulls(connection, relation),
        below=below is not None and _is_there(connection, relation, below),
        above=above is not None and _is_there(connection, relation, above),
    )


def has_nulls(connection: Connection, relation: Relation) -> bool:
    return relation.has_nulls and _is_there(connection, relation, relation.key.is_(None))


def count(connection: Connection, relation: Relation) -> int:
    query = select(func.count()).select_from(relation.rows_of).where(relation.key.is_not(None))
    return int(connection.execute(query).scalar_one())


def count_nulls(connection: Connection, relation: Relation) -> int:
    if not relation.has_nulls:
        return 0
    query = select(func.count()).select_from(relation.rows_of).where(relation.key.is_(None))
    return int(connection.execute(query).scalar_one())


def histogram(connection: Connection, relation: Relation, most: int) -> dict[Key, int] | None:
    """Return how many rows each key has; None: there are more than ``most`` different keys.

    Keys that no bound can name are left out.
    """
    query = (
        select(relation.ordered, func.count())
        .select_from(relation.rows_of)
        .where(usable(relation))
        .group_by(relation.ordered)
        .limit(most + 1)
    )
    found = {in_utc(row[0]): int(row[1]) for row in connection.execute(query)}
    return None if len(found) > most else found


def owned(connection: Connection, relation: Relation, partitions: Sequence[Partition]) -> list[int]:
    """Count the rows of each partition in one pass over all rows; not for marks or segments.

    It tells how uneven a plan is. Partitions of other tables than the relation count 0.
    """
    of_each = [
        func.count().filter(predicate(each, relation.key, relation.key_type)).label(f"n{place}")
        for place, each in enumerate(partitions)
    ]
    if not of_each:
        return []
    counted = connection.execute(select(*of_each).select_from(relation.rows_of)).one()
    return [int(number) for number in counted]


def usable(relation: Relation) -> ColumnElement[bool]:
    """Return the condition that a bound can name the key."""
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
