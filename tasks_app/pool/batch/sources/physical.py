"""The database's own partitions of a table, and which keys they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import PhysicalRange
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch.sources.relation import Relation

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

    The default partition holds the ranges between the others.

    Raises:
        PlanError: it is not partitioned by ranges of the key alone.
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
