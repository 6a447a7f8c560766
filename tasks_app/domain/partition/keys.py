"""Keys that a batch can be split by, half-open ranges of them, and keys in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import pairwise
from typing import Any
from uuid import UUID

Key = int | Decimal | str | UUID | date | datetime


class KeyType(StrEnum):
    """The type of a key. Text is ordered by code points, as with the collation "C"."""

    INTEGER = "integer"
    NUMERIC = "numeric"
    TEXT = "text"
    UUID = "uuid"
    DATE = "date"
    TIMESTAMP = "timestamp"  # without a zone
    TIMESTAMPTZ = "timestamptz"

    @property
    def is_time(self) -> bool:
        return self in (KeyType.DATE, KeyType.TIMESTAMP, KeyType.TIMESTAMPTZ)

    @property
    def is_number(self) -> bool:
        return self in (KeyType.INTEGER, KeyType.NUMERIC)

    def admits(self, key: object) -> bool:
        """Whether ``key`` is of this type, and can be a bound or a value."""
        if isinstance(key, bool):
            return False
        match self:
            case KeyType.INTEGER:
                return isinstance(key, int)
            case KeyType.NUMERIC:
                return isinstance(key, int | Decimal) and math.isfinite(key)
            case KeyType.TEXT:
                return isinstance(key, str)
            case KeyType.UUID:
                return isinstance(key, UUID)
            case KeyType.DATE:
                return isinstance(key, date) and not isinstance(key, datetime)
            case KeyType.TIMESTAMP:
                return isinstance(key, datetime) and key.tzinfo is None
            case KeyType.TIMESTAMPTZ:
                return isinstance(key, datetime) and key.tzinfo is not None

    def parse(self, text: str) -> Key:
        """Return the key that :func:`write_key` wrote; instants without a zone are in UTC.

        Raises ValueError: it is not of this type.
        """
        match self:
            case KeyType.INTEGER:
                return int(text)
            case KeyType.NUMERIC:
                try:
                    return Decimal(text)
                except InvalidOperation:
                    raise ValueError(f"{text[:40]!r} is not a number") from None
            case KeyType.TEXT:
                return text
            case KeyType.UUID:
                return UUID(text)
            case KeyType.DATE:
                at = datetime.fromisoformat(text)
                if at != datetime.combine(at.date(), datetime.min.time()):
                    raise ValueError(f"{at} is not a day")
                return at.date()
            case KeyType.TIMESTAMP:
                return datetime.fromisoformat(text)
            case KeyType.TIMESTAMPTZ:
                at = datetime.fromisoformat(text)
                return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def write_key(key: Key) -> str:
    """Return a key as text; equal keys of one type are written alike."""
    match key:
        case Decimal():
            return plain_decimal(key)
        case datetime(tzinfo=None):
            return key.isoformat()
        case datetime():
            return key.astimezone(UTC).replace(tzinfo=None).isoformat()
        case date():
            return key.isoformat()
        case _:
            return str(key)


def in_utc(key: Any) -> Any:
    """Return a key for comparisons, with times in UTC.

    Python compares two times of one zone by their clocks, so two instants in the hour that a clock
    shows twice would be equal.
    """
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    return key


def plain_decimal(key: Decimal) -> str:
    """Return all digits of a number; normalize() and arithmetic would round it."""
    if not key:
        return "0"  # there is no minus zero
    words = format(key, "f")
    return words.rstrip("0").rstrip(".") if "." in words else words


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low`` (included) to ``high`` (excluded). Nothing checks that both have one type."""

    low: Key | None = None
    high: Key | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", in_utc(self.low))
        object.__setattr__(self, "high", in_utc(self.high))

    def __contains__(self, key: Any) -> bool:
        return (self.low is None or self.low <= key) and (self.high is None or key < self.high)

    def __str__(self) -> str:
        return self.words("key")

    def words(self, what: str) -> str:
        """Return it in words; ``what`` names the values in it."""
        match self.low, self.high:
            case None, None:
                return f"every {what}"
            case None, high:
                return f"{what} < {quoted_key(high)}"
            case low, None:
                return f"{quoted_key(low)} <= {what}"
            case low, high:
                return f"{quoted_key(low)} <= {what} < {quoted_key(high)}"

    @property
    def bounds(self) -> tuple[Key, ...]:
        return tuple(bound for bound in (self.low, self.high) if bound is not None)

    @property
    def is_reversed(self) -> bool:
        return not _before(self.low, self.high) and not self.is_empty

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.low == self.high

    def overlaps(self, other: Range) -> bool:
        return _before(self.low, other.high) and _before(other.low, self.high)


def ranges_between(cuts: Iterable[Key]) -> list[Range]:
    """Return the ranges between ascending cuts; the first and the last are open."""
    bounds = [None, *cuts, None]
    return [Range(low, high) for low, high in pairwise(bounds)]


def quoted_key(key: Key | None) -> str:
    """Return a key for messages: text in quotes, and shortened."""
    if key is None:
        return "NULL"
    most, text = 60, write_key(key)
    text = text if len(text) <= most else text[:most] + "…"
    return repr(text) if isinstance(key, str) else text


def _before(low: Any, high: Any) -> bool:
    return low is None or high is None or bool(low < high)


KeysetKey = tuple[Any, ...]
# How each type is written and read. The order matters, as a datetime is a date.
_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, int, int),
    "str": (str, str, str),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, plain_decimal, Decimal),
    "uuid": (UUID, str, UUID),
}
_FLOAT = (
    "A key is a floating point number, which Python and PostgreSQL write differently: rows would "
    "be read twice, or left out. Name a column of another type, or a cast to numeric."
)


def pack_keyset(key: Sequence[Any]) -> list[list[Any]]:
    """Return a key as JSON values for :func:`unpack_keyset`; raises ValueError."""
    return [_pack(part) for part in key]


def _pack(part: Any) -> list[Any]:
    if part is None:
        raise ValueError("A key is null. Name columns without nulls, such as the primary key.")
    for kind, (type_, write, _) in _TYPES.items():
        if isinstance(part, type_) and not isinstance(part, bool):
            return [kind, write(part)]
    if isinstance(part, float):
        raise ValueError(_FLOAT)
    raise ValueError(
        f"A key of type {type(part).__name__} cannot be kept. Allowed: {', '.join(_TYPES)}."
    )


def unpack_keyset(packed: Sequence[Sequence[Any]]) -> KeysetKey:
    """Return the key. Raises ValueError: a part of it has a type that is no longer allowed."""
    if any(kind not in _TYPES for kind, _ in packed):
        raise ValueError(_FLOAT)
    return tuple(_TYPES[kind][2](value) for kind, value in packed)
