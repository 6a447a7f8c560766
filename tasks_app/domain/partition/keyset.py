"""Keys where a walk through a table goes on, as a checkpoint keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from tasks_app.domain.partition.keys import plain

Key = tuple[Any, ...]

_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, int, int),
    "str": (str, str, str),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, plain, Decimal),
    "uuid": (UUID, str, UUID),
}
"""How each is written and read; equal keys are written alike. The order matters, as a datetime is
a date."""
_FLOAT = (
    "A key is a floating point number, which is not written as PostgreSQL compares it: rows would "
    "be given twice, or left out. Name a column of another type, or a numeric that it is cast to."
)


def pack(key: Sequence[Any]) -> list[list[Any]]:
    """Return a key as JSON values, from which :func:`unpack` makes the same again.

    Raises:
        ValueError: a part of it is null, or of a type that cannot be kept.
    """
    return [_packed(part) for part in key]


def unpack(packed: Sequence[Sequence[Any]]) -> Key:
    """Return the key.

    Raises:
        ValueError: a part of it is of a type that is kept no more.
    """
    if any(kind not in _TYPES for kind, _ in packed):
        raise ValueError(_FLOAT)
    return tuple(_TYPES[kind][2](value) for kind, value in packed)


def _packed(part: Any) -> list[Any]:
    if part is None:
        raise ValueError("A key is null. Name columns that never are, like the primary key.")
    for kind, (type_, write, _) in _TYPES.items():
        if isinstance(part, type_) and not isinstance(part, bool):
            return [kind, write(part)]
    if isinstance(part, float):
        raise ValueError(_FLOAT)
    raise ValueError(
        f"A key of type {type(part).__name__} cannot be kept. Allowed: {', '.join(_TYPES)}."
    )
