"""What a relation holds: its keys, how many, its own partitions; the facts that plans need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    cast,
    false,
    func,
    literal,
    select,
    text,
)

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range, in_utc
from tasks_app.domain.partition.records import (
    Extent,
    Facts,
    Partition,
    PartitionKind,
    PhysicalRange,
    Plan,
    Table,
)
from tasks_app.pool.batch.sources.predicate import predicate, sql_type
from tasks_app.pool.batch.sources.relation import Relation, Source, by_bucket, find

MOST_VALUES = 100_000  # a key with more different values is not split by values


def gather_facts(
    connection: Connection,
    source: Source,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Facts:
    """Return which keys there are now; ``aligned``: with the bounds of the database's partitions.

    Raises PlanError if the source does not exist, or has no such partitions or keys.
    """
    relation = find(connection, source)
    key_type = relation.key_type
    kinds = {each.kind for each in plan.partitions}
    if any(each.source is not None for each in plan.partitions):
        parts = leaves(connection, relation)
        extents = {str(leaf): extent(connection, find(connection, leaf)) for leaf in parts}
        return Facts(key_type, dict(extents.items()), at_least=at_least)
    found = _extent(connection, relation, plan)
    values = histogram(connection, relation) if PartitionKind.VALUES in kinds else None
    physical = physical_ranges(connection, relation) if aligned else ()
    return Facts(key_type, {None: found}, values, physical, at_least)


def _extent(connection: Connection, relation: Relation, plan: Plan) -> Extent:
    stored = {each.column for each in plan.partitions if each.kind is PartitionKind.HASH}
    if len(stored) == 1:
        (name,) = stored
        if name is None:
            return Extent(nulls=has_nulls(connection, relation))
        relation = by_bucket(relation, name)
    return extent(connection, relation)


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


def histogram(connection: Connection, relation: Relation) -> dict[Key, int]:
    """Return how many rows each key has, of keys that a bound can name.

    Raises PlanError if there are more than ``MOST_VALUES`` different ones.
    """
    query = (
        select(relation.ordered, func.count())
        .select_from(relation.rows_of)
        .where(usable(relation))
        .group_by(relation.ordered)
        .limit(MOST_VALUES + 1)
    )
    found = {in_utc(row[0]): int(row[1]) for row in connection.execute(query)}
    if len(found) > MOST_VALUES:
        raise PlanError(
            f"{relation.source} has more than {MOST_VALUES} different keys. "
            "Split it by ranges or by hash."
        )
    return found


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


_LEAVES = text("""
    SELECT n.nspname AS schema, c.relname AS name
    FROM pg_partition_tree(CAST(:oid AS oid)) f
    JOIN pg_class c ON c.oid = f.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE f.isleaf AND f.level > 0 ORDER BY n.nspname, c.relname
""")
_IS_DIVIDED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST(:oid AS oid)")
_BOUNDS = text("""
    SELECT n.nspname AS schema, c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound,
        p.partstrat = 'r' AND p.partnatts = 1 AND a.attname = :key AS by_key,
        c.relkind = 'p' AS is_split
    FROM pg_partitioned_table p
    JOIN pg_inherits i ON i.inhparent = p.partrelid
    JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
    WHERE p.partrelid = CAST(:oid AS oid) ORDER BY n.nspname, c.relname
""")
_ONE = r"('(?:[^']|'')*'|[^'(),]+)"
_FROM_TO = re.compile(rf"FOR VALUES FROM \({_ONE}\) TO \({_ONE}\)")
_DEFAULT = "DEFAULT"


def leaves(connection: Connection, relation: Relation) -> list[Table]:
    """Return the partitions that hold rows, by name."""
    found = connection.execute(_LEAVES, {"oid": relation.oid})
    return [Table(row.name, relation.source.key, row.schema) for row in found]


def is_divided(connection: Connection, relation: Relation) -> bool:
    """Whether a table can have partitions; it may have none yet."""
    return bool(connection.execute(_IS_DIVIDED, {"oid": relation.oid}).scalar())


def physical_ranges(connection: Connection, relation: Relation) -> tuple[PhysicalRange, ...]:
    """Return which range of keys each partition of the database holds.

    The default partition holds the ranges between the others. Raises PlanError if it is not
    partitioned by ranges of the key alone.
    """
    rows = connection.execute(_BOUNDS, {"oid": relation.oid, "key": relation.source.key}).all()
    if any(not row.by_key or row.is_split for row in rows) or (
        rows and relation.key_type is KeyType.TEXT
    ):
        raise PlanError(
            f"{relation.source} is not partitioned by ranges of {relation.source.key} alone, so "
            "ranges cannot be aligned to its partitions. Split it by Physical."
        )
    named = [
        PhysicalRange(_name(row, relation), _range(row.bound, relation.key_type))
        for row in rows
        if row.bound != _DEFAULT
    ]
    rest = [_name(row, relation) for row in rows if row.bound == _DEFAULT]
    return (*named, *(PhysicalRange(name, gap) for name in rest for gap in _gaps(named)))


def _name(row: Any, relation: Relation) -> str:
    return str(Table(row.name, relation.source.key, row.schema))


def _range(bound: str, key_type: KeyType) -> Range:
    found = _FROM_TO.fullmatch(bound)
    if found is None:
        raise PlanError(f"The bound {bound} cannot be read. Split by Physical.")
    low, high = (_key(word, key_type) for word in found.groups())
    return Range(low, high)


def _key(word: str, key_type: KeyType) -> Key | None:
    if word in ("MINVALUE", "MAXVALUE"):
        return None
    text = word[1:-1].replace("''", "'") if word.startswith("'") else word
    try:
        return key_type.parse(text)
    except ValueError:
        raise PlanError(f"The bound {word} cannot be read. Split by Physical.") from None


def _gaps(named: Sequence[PhysicalRange]) -> list[Range]:
    """Return what lies between ranges that do not overlap."""
    lows: list[Any] = [one.range.low for one in named]
    highs: list[Any] = [one.range.high for one in named]
    begins = [None, *sorted(high for high in highs if high is not None)]
    ends = [*sorted(low for low in lows if low is not None), None]
    if None in lows:
        begins = begins[1:]
    if None in highs:
        ends = ends[:-1]
    gaps = (Range(low, high) for low, high in zip(begins, ends, strict=True))
    return [gap for gap in gaps if not gap.is_empty]
