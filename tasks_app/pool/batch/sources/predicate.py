"""The condition that a row of a table belongs to a partition.

Each row belongs to exactly one partition of a checked plan; a row without a key to the one that
owns NULL.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Date,
    DateTime,
    Integer,
    Numeric,
    Text,
    Uuid,
    and_,
    any_,
    cast,
    column,
    false,
    func,
    literal,
    or_,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.types import TypeEngine

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key, KeyType
from tasks_app.domain.partition.ranges import Range
from tasks_app.domain.partition.records import Partition, PartitionKind
from tasks_app.pool.batch.sources.relation import in_order

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

    Raises:
        PlanError: its rows are not known by their keys: it is a segment, or rows are marked.
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
