"""Facts of a relation that plans need: its keys, how many, the database's own partitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range, in_utc
from tasks_app.domain.partition.records import (
    Extent,
    Facts,
    PartitionKind,
    PhysicalRange,
    Plan,
    Table,
)
from tasks_app.pool.batch.sources.predicate import SQL_TYPES
from tasks_app.pool.batch.sources.relation import Expr, Relation, Source, by_bucket, find

MOST_VALUES = 100_000  # a key with more different values is not split by values


def gather_facts(
    connection: sa.Connection,
    source: Source,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Facts:
    """Return the keys of now; ``aligned``: with the bounds of the database's partitions."""
    relation = find(connection, source)
    key_type = relation.key_type
    if any(each.source is not None for each in plan.partitions):
        parts = leaves(connection, relation)
        extents = {str(leaf): extent(connection, find(connection, leaf)) for leaf in parts}
        return Facts(key_type, dict(extents.items()), at_least=at_least)
    columns = {each.column for each in plan.partitions if each.kind is PartitionKind.HASH}
    if columns == {None}:
        found = Extent(nulls=has_nulls(connection, relation))
    elif len(columns) == 1:
        found = extent(connection, by_bucket(relation, str(*columns)))
    else:
        found = extent(connection, relation)
    has_values = any(each.kind is PartitionKind.VALUES for each in plan.partitions)
    values = histogram(connection, relation) if has_values else None
    physical = physical_ranges(connection, relation) if aligned else ()
    return Facts(key_type, {None: found}, values, physical, at_least)


# Keys beyond these, such as NaN and infinity, are no bounds that Python knows, in any zone.
_ENDS = {
    KeyType.NUMERIC: ("-Infinity", "Infinity"),
    KeyType.DATE: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMP: ("0001-01-01", "10000-01-01"),
    KeyType.TIMESTAMPTZ: ("0001-01-02 00:00Z", "9999-12-31 00:00Z"),
}


def extent(connection: sa.Connection, relation: Relation) -> Extent:
    """Return the least and the greatest key, by an index or by one scan."""
    below, above = _beyond(relation)
    has_bound = usable(relation)
    if relation.is_indexed or relation.key_type is KeyType.UUID:  # which has no min() before 18
        keys = sa.select(relation.key).select_from(relation.rows_of).where(has_bound).limit(1)
        return Extent(
            in_utc(connection.execute(keys.order_by(relation.ordered)).scalar()),
            in_utc(connection.execute(keys.order_by(relation.ordered.desc())).scalar()),
            nulls=has_nulls(connection, relation),
            below=below is not None and _exists(connection, relation, below),
            above=above is not None and _exists(connection, relation, above),
        )
    flags = [
        sa.false() if each is None else sa.func.coalesce(sa.func.bool_or(each), sa.false())
        for each in (relation.key.is_(None), below, above)
    ]
    ends = (
        sa.func.min(relation.ordered).filter(has_bound),
        sa.func.max(relation.ordered).filter(has_bound),
    )
    query = sa.select(*ends, *flags).select_from(relation.rows_of)
    least, most, *found = connection.execute(query).one()
    return Extent(in_utc(least), in_utc(most), *map(bool, found))


def has_nulls(connection: sa.Connection, relation: Relation) -> bool:
    return relation.has_nulls and _exists(connection, relation, relation.key.is_(None))


def count(connection: sa.Connection, relation: Relation) -> int:
    return _count(connection, relation, relation.key.is_not(None))


def count_nulls(connection: sa.Connection, relation: Relation) -> int:
    if not relation.has_nulls:
        return 0
    return _count(connection, relation, relation.key.is_(None))


def _count(connection: sa.Connection, relation: Relation, which: Expr) -> int:
    query = sa.select(sa.func.count()).select_from(relation.rows_of).where(which)
    return int(connection.execute(query).scalar_one())


def histogram(connection: sa.Connection, relation: Relation) -> dict[Key, int]:
    """Return how many rows each key has, of keys that a bound can name."""
    query = (
        sa.select(relation.ordered, sa.func.count())
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


def usable(relation: Relation) -> Expr:
    below, above = _beyond(relation)
    if below is None or above is None:
        return relation.key.is_not(None)
    return sa.and_(~below, ~above)


def _beyond(relation: Relation) -> tuple[Expr | None, Expr | None]:
    """Return the conditions that a key lies below and above all bounds; None: none can."""
    kind = relation.key_type
    if kind not in _ENDS:
        return None, None
    low, high = (sa.cast(sa.literal(end), SQL_TYPES[kind]) for end in _ENDS[kind])
    if kind is KeyType.NUMERIC:
        return relation.key <= low, relation.key >= high
    return relation.key < low, relation.key >= high


def _exists(connection: sa.Connection, relation: Relation, which: Expr) -> bool:
    query = sa.select(sa.literal(1)).select_from(relation.rows_of).where(which).limit(1)
    return connection.execute(query).first() is not None


def leaves(connection: sa.Connection, relation: Relation) -> list[Table]:
    query = sa.text("""
        SELECT n.nspname AS schema, c.relname AS name
        FROM pg_partition_tree(CAST(:oid AS oid)) f
        JOIN pg_class c ON c.oid = f.relid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE f.isleaf AND f.level > 0 ORDER BY n.nspname, c.relname
    """)
    found = connection.execute(query, {"oid": relation.oid})
    return [Table(row.name, relation.source.key, row.schema) for row in found]


def is_divided(connection: sa.Connection, relation: Relation) -> bool:
    query = sa.text("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST(:oid AS oid)")
    return bool(connection.execute(query, {"oid": relation.oid}).scalar())


def physical_ranges(connection: sa.Connection, relation: Relation) -> tuple[PhysicalRange, ...]:
    """Return the range of each of the database's partitions; of the default one the gaps."""
    query = sa.text("""
        SELECT n.nspname AS schema, c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound,
            p.partstrat = 'r' AND p.partnatts = 1 AND a.attname = :key AS by_key,
            c.relkind = 'p' AS is_split
        FROM pg_partitioned_table p
        JOIN pg_inherits i ON i.inhparent = p.partrelid
        JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
        WHERE p.partrelid = CAST(:oid AS oid) ORDER BY n.nspname, c.relname
    """)
    rows = connection.execute(query, {"oid": relation.oid, "key": relation.source.key}).all()
    if any(not row.by_key or row.is_split for row in rows) or (
        rows and relation.key_type is KeyType.TEXT
    ):
        raise PlanError(
            f"{relation.source} is not partitioned by ranges of {relation.source.key} alone, so "
            "ranges cannot be aligned to its partitions. Split it by Physical."
        )
    bounds = {str(Table(row.name, relation.source.key, row.schema)): row.bound for row in rows}
    named = [
        PhysicalRange(name, _range(bound, relation.key_type))
        for name, bound in bounds.items()
        if bound != "DEFAULT"
    ]
    default = [name for name, bound in bounds.items() if bound == "DEFAULT"]
    return (*named, *(PhysicalRange(name, gap) for name in default for gap in _gaps(named)))


_END = r"('(?:[^']|'')*'|[^'(),]+)"
_FROM_TO = re.compile(rf"FOR VALUES FROM \({_END}\) TO \({_END}\)")


def _range(bound: str, key_type: KeyType) -> Range:
    found = _FROM_TO.fullmatch(bound)
    words = found.groups() if found else ()
    texts = [word[1:-1].replace("''", "'") if word[0] == "'" else word for word in words]
    open_ends = {"MINVALUE", "MAXVALUE"}
    try:
        low, high = (None if text in open_ends else key_type.parse(text) for text in texts)
    except ValueError:  # also if there are not two
        raise PlanError(f"The bound {bound} cannot be read. Split by Physical.") from None
    return Range(low, high)


def _gaps(named: Sequence[PhysicalRange]) -> list[Range]:
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
