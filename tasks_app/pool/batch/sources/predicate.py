"""SQL conditions and values on users' tables: bound, as text, or written into the statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import sqlalchemy as sa
from psycopg import ClientCursor, Column, DataError
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.types import TypeEngine

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Table
from tasks_app.pool.batch.sources.relation import (
    EVERYTHING,
    Expr,
    Source,
    find,
    in_order,
    quoted,
    source_of,
)

SQL_TYPES: dict[KeyType, TypeEngine[Any]] = {
    KeyType.INTEGER: sa.BigInteger(),
    KeyType.NUMERIC: sa.Numeric(),
    KeyType.TEXT: sa.Text(),
    KeyType.UUID: sa.Uuid(),
    KeyType.DATE: sa.Date(),
    KeyType.TIMESTAMP: sa.DateTime(),
    KeyType.TIMESTAMPTZ: sa.DateTime(timezone=True),
}


def predicate(partition: Partition, key: Expr, key_type: KeyType) -> Expr:
    """Return the condition of a partition's rows; ``key`` is the program's key."""
    if partition.column is not None:
        key = sa.column(partition.column)
    match partition.kind:
        case PartitionKind.RANGE:
            owned = _within(partition.range, in_order(key, key_type), key_type)
        case PartitionKind.VALUES:
            values = sa.literal(list(partition.values), ARRAY(SQL_TYPES[key_type]))
            owned = in_order(key, key_type) == sa.any_(values)
        case PartitionKind.HASH:
            owned = _hashed(partition, key, key_type)
        case _:
            raise PlanError(
                f"No condition on keys selects the rows of {partition}. Read them by its reader."
            )
    return sa.or_(owned, key.is_(None)) if partition.owns_null else owned


def bucket(key: Expr, key_type: KeyType, modulus: int) -> Expr:
    """Return the bucket, from 0 to ``modulus`` - 1; no setting changes it, so it can be stored."""
    found = sa.func.abs(_hash(key, key_type) % sa.literal(modulus, sa.BigInteger))
    return sa.cast(found, sa.Integer)


def bound(key: Key, key_type: KeyType) -> Expr:
    beyond_bigint = isinstance(key, int) and abs(key) > 2**63 - 1
    return sa.literal(key, sa.Numeric() if beyond_bigint else SQL_TYPES[key_type])


def _within(span: Range | None, key: Expr, key_type: KeyType) -> Expr:
    if span is None:
        return sa.false()
    conditions = []
    if span.low is not None:
        conditions.append(key >= bound(span.low, key_type))
    if span.high is not None:
        conditions.append(key < bound(span.high, key_type))
    return sa.and_(*conditions) if conditions else key.is_not(None)


def _hashed(partition: Partition, key: Expr, key_type: KeyType) -> Expr:
    span, modulus = partition.range, partition.modulus
    if span is None or modulus is None:
        return sa.false()
    found = bucket(key, key_type, modulus) if partition.column is None else key
    low = span.low if isinstance(span.low, int) else 0
    high = span.high if isinstance(span.high, int) else modulus
    if high == low + 1:
        return found == sa.literal(low, sa.Integer)
    return sa.and_(found >= sa.literal(low, sa.Integer), found < sa.literal(high, sa.Integer))


def _hash(key: Expr, key_type: KeyType) -> Expr:
    """Return the hash; equal keys have equal hashes, however they are written."""
    seed = sa.literal(0, sa.BigInteger)
    match key_type:
        case KeyType.NUMERIC:
            return sa.func.hash_numeric_extended(key, seed)
        case KeyType.DATE | KeyType.TIMESTAMP:
            return sa.func.timestamp_hash_extended(sa.cast(key, TIMESTAMP()), seed)
        case KeyType.TIMESTAMPTZ:
            return sa.func.timestamp_hash_extended(
                sa.func.timezone(sa.literal("UTC", sa.Text), key), seed
            )
        case _:
            return sa.func.hashtextextended(sa.cast(key, sa.Text).collate("C"), seed)


_UTC: Expr = sa.literal_column("'UTC'")


def key_as_text(key: Expr, key_type: KeyType) -> Expr:
    match key_type:
        case KeyType.NUMERIC:
            return sa.cast(sa.func.trim_scale(key), sa.Text)
        case KeyType.TIMESTAMPTZ:
            return _iso(sa.func.timezone(_UTC, key))
        case KeyType.DATE | KeyType.TIMESTAMP:
            return _iso(key)
        case _:
            return sa.cast(key, sa.Text)


def key_from_text(word: Expr, key_type: KeyType) -> Expr:
    if key_type is KeyType.TIMESTAMPTZ:
        return sa.func.timezone(_UTC, sa.cast(word, SQL_TYPES[KeyType.TIMESTAMP]))
    return sa.cast(word, SQL_TYPES[key_type])


def keys_from_texts(texts: Sequence[str], key_type: KeyType) -> sa.Select[Any]:
    each = sa.func.unnest(sa.literal(list(texts), ARRAY(sa.Text))).column_valued("each")
    return sa.select(key_from_text(each, key_type).label("key"))


def _iso(at: Expr) -> Expr:
    """JSON has one form for days and times; plain text follows DateStyle."""
    return sa.func.to_jsonb(at).op("#>>")(sa.literal_column("'{}'"))


def columns_of(result: sa.CursorResult[Any]) -> list[Column]:
    """Return the columns of this very result; SQLAlchemy may remember those of an earlier one."""
    return list(result.cursor.description)  # type: ignore[arg-type]


def fetch_rows(cursor: Any) -> list[tuple[Any, ...]]:
    """Return all rows; of times that Python cannot hold the texts."""
    try:
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    except (DataError, OverflowError):
        rows = _load_again(cursor)
    return rows


def _load_again(cursor: Any) -> list[tuple[Any, ...]]:
    for name in ("date", "time", "timetz", "timestamp", "timestamptz", "interval"):
        oid = cursor.adapters.types[name].oid
        known = cursor.adapters.get_loader(oid, cursor.pgresult.fformat(0))
        cursor.adapters.register_loader(oid, _tolerant(known))
    again = Transformer(cursor)
    again.set_pgresult(cursor.pgresult)
    return again.load_rows(0, cursor.pgresult.ntuples, tuple)


def _tolerant(known: Any) -> type[Loader]:
    class OrText(Loader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._known = known(oid, context)

        def load(self, data: Buffer) -> Any:
            try:
                return self._known.load(data)
            except (DataError, OverflowError):
                return bytes(data).decode()

    return OrText


def inline(connection: sa.Connection, statement: sa.Select[Any] | Expr) -> str:
    """Return the statement with its values, quoted by the driver."""
    compiled = statement.compile(dialect=connection.dialect)
    driver: Any = connection.connection.driver_connection
    with ClientCursor(driver) as cursor:
        return cursor.mogrify(str(compiled), compiled.params)


def execute_inline(connection: sa.Connection, sql: str) -> sa.CursorResult[Any]:
    return connection.exec_driver_sql(sql.replace("%", "%%"))


def copy_as_csv(connection: sa.Connection, source: Source, out: BinaryIO) -> int:
    """Write all rows of one snapshot as CSV with a header; return how many bytes."""
    relation = find(connection, source)
    rows = sa.select(EVERYTHING).select_from(relation.rows_of)
    sql = f"COPY ({inline(connection, rows)}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    written = 0
    with driver.cursor() as cursor, cursor.copy(sql) as copied:
        for piece in copied:
            written += out.write(piece)
    return written


def create_view(
    connection: sa.Connection, source: Source, partition: Partition, key_type: KeyType, view: Table
) -> None:
    """Create or replace the view of a partition's rows; the source must be a table or view."""
    relation = find(connection, source_of(source, partition))
    own = predicate(partition, relation.key, key_type)
    rows = inline(connection, sa.select(EVERYTHING).select_from(relation.rows_of).where(own))
    execute_inline(connection, f"CREATE OR REPLACE VIEW {quoted(view)} AS {rows}")


def drop_views(connection: sa.Connection, partitions: Iterable[Partition]) -> list[str]:
    names = [each.view for each in partitions if each.view is not None]
    for name in names:
        execute_inline(connection, f"DROP VIEW IF EXISTS {quoted(Table.named(name, ''))}")
    return names
