"""Keys that a batch can be split by: their types, and how they are written down."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any
from uuid import UUID

Key = int | Decimal | str | UUID | date | datetime


class KeyType(StrEnum):
    """What a key is. Text is ordered by code points, as under the collation "C"."""

    INTEGER = "integer"
    NUMERIC = "numeric"
    TEXT = "text"
    UUID = "uuid"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """Without a zone."""
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
        """Return the key that :meth:`write` wrote. Instants without a zone are of UTC.

        Raises:
            ValueError: it is not of this type.
        """
        match self:
            case KeyType.INTEGER:
                return int(text)
            case KeyType.NUMERIC:
                return _decimal(text)
            case KeyType.TEXT:
                return text
            case KeyType.UUID:
                return UUID(text)
            case KeyType.DATE:
                return _day(datetime.fromisoformat(text))
            case KeyType.TIMESTAMP:
                return datetime.fromisoformat(text)
            case KeyType.TIMESTAMPTZ:
                return _instant(datetime.fromisoformat(text))


def write_key(key: Key) -> str:
    """Return a key as text; equal keys of one type are written alike."""
    match key:
        case Decimal():
            return plain(key)
        case datetime(tzinfo=None):
            return key.isoformat()
        case datetime():
            return key.astimezone(UTC).replace(tzinfo=None).isoformat()
        case date():
            return key.isoformat()
        case _:
            return str(key)


def in_utc(key: Any) -> Any:
    """Return a key as it is compared: Python compares two times of one zone by their clocks.

    So two instants that a clock shows alike when it is put back would be equal.
    """
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    return key


def plain(key: Decimal) -> str:
    """Return a number with all its digits; normalize() and other arithmetic would round it."""
    if not key:
        return "0"  # there is no minus zero
    words = format(key, "f")
    return words.rstrip("0").rstrip(".") if "." in words else words


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is no number") from None


def _day(at: datetime) -> date:
    if at != datetime.combine(at.date(), datetime.min.time()):
        raise ValueError(f"{at} is no day")
    return at.date()


def _instant(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
