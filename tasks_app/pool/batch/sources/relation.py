"""A user's table or query as statements need it, with the key that it is split by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import Partition, Table

# ``char(n)``: as text it loses trailing blanks, which do not count in comparisons either.
_BLANKS = "character"
_TYPES = {
    "smallint": KeyType.INTEGER,
    "integer": KeyType.INTEGER,
    "bigint": KeyType.INTEGER,
    "numeric": KeyType.NUMERIC,
    "text": KeyType.TEXT,
    "character varying": KeyType.TEXT,
    _BLANKS: KeyType.TEXT,
    "uuid": KeyType.UUID,
    "date": KeyType.DATE,
    "timestamp without time zone": KeyType.TIMESTAMP,
    "timestamp with time zone": KeyType.TIMESTAMPTZ,
}
# The name of a type ``t``; for a domain that of its base type.
_BASE = """(
    WITH RECURSIVE base(oid, of) AS (
        SELECT t.oid, t.typbasetype
        UNION ALL SELECT d.oid, d.typbasetype FROM base JOIN pg_type d ON d.oid = base.of)
    SELECT format_type(base.oid, NULL) FROM base WHERE base.of = 0)"""


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT that a batch reads, and the name of its column that it is split by."""

    select: sa.Select[Any]
    key: str

    def __str__(self) -> str:
        return "the query"


Source = Table | Query
Expr = sa.ColumnElement[Any]
EVERYTHING: Expr = sa.literal_column("*")


@dataclass(frozen=True, slots=True)
class Relation:
    source: Source
    rows_of: sa.FromClause
    key: Expr  # as predicates use it; text as it is compared
    key_type: KeyType
    oid: int | None = None  # None: a query
    can_sample: bool = False
    has_nulls: bool = True  # False: each row has a key
    is_indexed: bool = False  # an index has the keys in their order
    rows: int | None = None  # from the statistics; None: there are none
    size_bytes: int | None = None

    @property
    def ordered(self) -> Expr:
        return in_order(self.key, self.key_type)


def find(connection: sa.Connection, source: Source) -> Relation:
    """Raises PlanError if there is no such table or column, or its type cannot be a key."""
    if isinstance(source, Query):
        return _of_query(connection, source, source.select.subquery("q"))
    query = sa.text(f"""
        SELECT c.oid, c.relkind IN ('r', 'p', 'm') AS can_sample, a.attnotnull,
            EXISTS (SELECT FROM pg_index i
                    WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid
                      AND i.indpred IS NULL
                      AND i.indcollation[0] IN (0, CAST('pg_catalog."C"' AS regcollation)))
                AS is_indexed,
            {_BASE} AS type,
            CASE WHEN bool_and(l.reltuples >= 0) THEN CAST(sum(l.reltuples) AS bigint) END AS rows,
            CAST(coalesce(sum(pg_relation_size(l.oid)), 0) AS bigint) AS bytes
        FROM pg_class c
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = :key AND a.attnum > 0
            AND NOT a.attisdropped
        LEFT JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN LATERAL (
            SELECT l.oid, l.reltuples
            FROM pg_partition_tree(c.oid) f JOIN pg_class l ON l.oid = f.relid
            WHERE f.isleaf AND l.relkind IN ('r', 'm')
            UNION SELECT c.oid, c.reltuples WHERE c.relkind IN ('r', 'm')) AS l ON true
        WHERE c.oid = to_regclass(:name)
        GROUP BY c.oid, c.relkind, a.attnum, a.attnotnull, t.oid, t.typbasetype
    """)
    row = connection.execute(query, {"name": str(source), "key": source.key}).one_or_none()
    if row is None:
        raise PlanError(f"There is no table {source}. Check its name and schema.")
    if row.type is None:
        raise PlanError(f"{source} has no column {source.key}. Name one of its columns as the key.")
    return Relation(
        *(source, sa.table(source.name, schema=source.schema)),
        *_key(source, sa.column(source.key), row.type),
        *(row.oid, row.can_sample, not row.attnotnull, row.is_indexed, row.rows, row.bytes),
    )


def by_column(connection: sa.Connection, found: Relation, name: str) -> Relation:
    """Return the same rows, split by another of their columns. Raises PlanError as ``find``."""
    of = found.source
    if isinstance(of, Table):
        return find(connection, Table(of.name, name, of.schema))
    return _of_query(connection, Query(of.select, name), found.rows_of)


def by_bucket(relation: Relation, name: str) -> Relation:
    key: Expr = sa.column(name, sa.Integer)
    return replace(relation, key=key, key_type=KeyType.INTEGER, has_nulls=True)


def source_of(source: Source, partition: Partition) -> Source:
    """Return where a partition's rows are: in its view, its own table, or the program's."""
    name = partition.view or partition.source
    return source if name is None else Table.named(name, source.key)


def quoted(table: Table) -> str:
    names = (table.schema, table.name) if table.schema else (table.name,)
    return ".".join(map(identifier, names))


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def in_order(key: Expr, key_type: KeyType) -> Expr:
    """Return the key as ranges compare it: text by code points."""
    return key.collate("C") if key_type is KeyType.TEXT else key


def _of_query(connection: sa.Connection, source: Query, rows: sa.FromClause) -> Relation:
    if source.key not in rows.c:
        raise PlanError(
            f"The query has no column {source.key}. Name one of its columns as the key."
        )
    nothing = sa.select(rows.c[source.key]).limit(0).scalar_subquery()
    oid = connection.execute(
        sa.select(sa.cast(sa.func.pg_typeof(nothing), postgresql.OID))
    ).scalar_one()
    query = sa.text(f"SELECT {_BASE} FROM pg_type t WHERE t.oid = CAST(:oid AS oid)")
    name = connection.execute(query, {"oid": oid}).scalar_one()
    return Relation(source, rows, *_key(source, rows.c[source.key], name))


def _key(source: Source, key: Expr, name: str) -> tuple[Expr, KeyType]:
    """Return the key as it is compared, and its type of this name."""
    if name not in _TYPES:
        raise PlanError(
            f"{source.key} of {source} is of type {name}, which cannot be a key. "
            "Split by whole numbers, numeric, text, uuid, date or a timestamp."
        )
    return sa.cast(key, sa.Text) if name == _BLANKS else key, _TYPES[name]
