"""Conditions and values in SQL on users' tables: bound, as text, or written into the statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from psycopg import ClientCursor, Column, DataError
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Date,
    DateTime,
    Integer,
    Numeric,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.types import TypeEngine

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType, Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Table
from tasks_app.pool.batch.sources.relation import (
    EVERYTHING,
    Source,
    find,
    in_order,
    quoted,
    source_of,
)

_TYPES: dict[KeyType, TypeEngine[Any]] = {
    KeyType.INTEGER: BigInteger(),
    KeyType.NUMERIC: Numeric(),
    KeyType.TEXT: Text(),
    KeyType.UUID: Uuid(),
    KeyType.DATE: Date(),
    KeyType.TIMESTAMP: DateTime(),
    KeyType.TIMESTAMPTZ: DateTime(timezone=True),
}
_BIGGEST = 2**63 - 1


def predicate(
    partition: Partition, key: ColumnElement[Any], key_type: KeyType
) -> ColumnElement[bool]:
    """Return the condition; ``key`` is the program's key.

    Raises PlanError if its rows are not known by their keys: it is a segment, or rows are marked.
    """
    if partition.column is not None:
        key = column(partition.column)
    match partition.kind:
        case PartitionKind.RANGE:
            owned = _within(partition.range, in_order(key, key_type), key_type)
        case PartitionKind.VALUES:
            owned = _one_of(partition.values, in_order(key, key_type), key_type)
        case PartitionKind.HASH:
            owned = _hashed(partition, key, key_type)
        case _:
            raise PlanError(
                f"The rows of {partition} are not known by their keys. Read them as they are taken."
            )
    return or_(owned, key.is_(None)) if partition.owns_null else owned


def bucket(key: ColumnElement[Any], key_type: KeyType, modulus: int) -> ColumnElement[int]:
    """Return the bucket of a key, 0 <= bucket < ``modulus``; NULL for NULL.

    It does not depend on the session or a restart, so an index or a stored column may hold it.
    """
    return cast(func.abs(_hash(key, key_type) % literal(modulus, BigInteger)), Integer)


def bound(key: Key, key_type: KeyType) -> ColumnElement[Any]:
    """Return a key as a parameter of its type."""
    if isinstance(key, int) and abs(key) > _BIGGEST:
        return literal(key, Numeric())
    return literal(key, _TYPES[key_type])


def sql_type(key_type: KeyType) -> TypeEngine[Any]:
    return _TYPES[key_type]


def _within(span: Range | None, key: ColumnElement[Any], key_type: KeyType) -> ColumnElement[bool]:
    if span is None:
        return false()
    conditions = []
    if span.low is not None:
        conditions.append(key >= bound(span.low, key_type))
    if span.high is not None:
        conditions.append(key < bound(span.high, key_type))
    return and_(*conditions) if conditions else key.is_not(None)


def _one_of(
    values: tuple[Key, ...], key: ColumnElement[Any], key_type: KeyType
) -> ColumnElement[bool]:
    return key == any_(literal(list(values), ARRAY(_TYPES[key_type])))


def _hashed(
    partition: Partition, key: ColumnElement[Any], key_type: KeyType
) -> ColumnElement[bool]:
    span, modulus = partition.range, partition.modulus
    if span is None or modulus is None:
        return false()
    found = bucket(key, key_type, modulus) if partition.column is None else key
    low = span.low if isinstance(span.low, int) else 0
    high = span.high if isinstance(span.high, int) else modulus
    if high == low + 1:
        return found == literal(low, Integer)
    return and_(found >= literal(low, Integer), found < literal(high, Integer))


def _hash(key: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    """Return the hash; equal keys have equal hashes, however they are written."""
    seed = literal(0, BigInteger)
    match key_type:
        case KeyType.NUMERIC:
            return func.hash_numeric_extended(key, seed)
        case KeyType.DATE | KeyType.TIMESTAMP:
            return func.timestamp_hash_extended(cast(key, TIMESTAMP()), seed)
        case KeyType.TIMESTAMPTZ:
            return func.timestamp_hash_extended(func.timezone(literal("UTC", Text), key), seed)
        case _:
            return func.hashtextextended(cast(key, Text).collate("C"), seed)


_UTC: ColumnElement[Any] = literal_column("'UTC'")
_ITSELF: ColumnElement[Any] = literal_column("'{}'")


def key_as_text(key: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    match key_type:
        case KeyType.NUMERIC:
            return cast(func.trim_scale(key), Text)
        case KeyType.TIMESTAMPTZ:
            return _iso(func.timezone(_UTC, key))
        case KeyType.DATE | KeyType.TIMESTAMP:
            return _iso(key)
        case _:
            return cast(key, Text)


def key_from_text(word: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    if key_type is KeyType.TIMESTAMPTZ:
        return func.timezone(_UTC, cast(word, sql_type(KeyType.TIMESTAMP)))
    return cast(word, sql_type(key_type))


def text_literal(text: str) -> ColumnElement[Any]:
    return literal(text, Text)


def text_parameter(name: str) -> ColumnElement[Any]:
    """Return the parameter of a statement that is given such a text later."""
    return bindparam(name, type_=Text)


def keys_from_texts(texts: Sequence[str], key_type: KeyType) -> Select[Any]:
    """Return the SELECT of the keys that texts were made of."""
    each = func.unnest(literal(list(texts), ARRAY(Text))).column_valued("each")
    return select(key_from_text(each, key_type).label("key"))


def _iso(at: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON has one form for days and times; plain text follows DateStyle."""
    return func.to_jsonb(at).op("#>>")(_ITSELF)


_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")


def columns_of(result: CursorResult[Any]) -> list[Column]:
    """Return what the server says of this very result; SQLAlchemy may remember an earlier one."""
    return list(result.cursor.description)  # type: ignore[arg-type]


def fetch_rows(cursor: Any) -> list[tuple[Any, ...]]:
    try:
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    except (DataError, OverflowError):
        rows = _or_text(cursor)
    return rows


def _or_text(cursor: Any) -> list[tuple[Any, ...]]:
    """Load again the rows that have arrived."""
    for name in _TIMES:
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


def inline(connection: Connection, statement: Select[Any] | ColumnElement[Any]) -> str:
    """Return the statement with its values, quoted by the driver."""
    compiled = statement.compile(dialect=connection.dialect)
    driver: Any = connection.connection.driver_connection
    with ClientCursor(driver) as cursor:
        return cursor.mogrify(str(compiled), compiled.params)


def execute_inline(connection: Connection, sql: str) -> CursorResult[Any]:
    """Execute a text that ``inline`` helped to make, in the caller's transaction."""
    return connection.exec_driver_sql(sql.replace("%", "%%"))


def copy_as_csv(connection: Connection, source: Source, out: BinaryIO) -> int:
    """Write all rows as CSV with a header, as one snapshot has them; return how many bytes."""
    relation = find(connection, source)
    rows = select(EVERYTHING).select_from(relation.rows_of)
    sql = f"COPY ({inline(connection, rows)}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    written = 0
    with driver.cursor() as cursor, cursor.copy(sql) as copied:
        for piece in copied:
            written += out.write(piece)
    return written


def create_view(
    connection: Connection, source: Source, partition: Partition, key_type: KeyType, view: Table
) -> None:
    """Create or replace the view of a partition's rows; the source must be a table or view."""
    relation = find(connection, source_of(source, partition))
    rows = (
        select(EVERYTHING)
        .select_from(relation.rows_of)
        .where(predicate(partition, relation.key, key_type))
    )
    execute_inline(
        connection, f"CREATE OR REPLACE VIEW {quoted(view)} AS {inline(connection, rows)}"
    )


def drop_views(connection: Connection, partitions: Iterable[Partition]) -> list[str]:
    """Drop the views of partitions that are still there; return their names."""
    names = [each.view for each in partitions if each.view is not None]
    for name in names:
        execute_inline(connection, f"DROP VIEW IF EXISTS {quoted(Table.named(name, ''))}")
    return names
