"""Fetch: the rows of a user's table, as the driver has them.

A day or time that Python cannot hold comes as the text that PostgreSQL writes: infinity, a year
before 1 or behind 9999, 24:00. All others are as they always are.
"""

from __future__ import annotations

from typing import Any

from psycopg import DataError
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer

_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")


def fetch(cursor: Any) -> list[tuple[Any, ...]]:
    """Return all rows of a cursor that was just executed."""
    try:
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    except (DataError, OverflowError):
        rows = _or_text(cursor)
    return rows


def _or_text(cursor: Any) -> list[tuple[Any, ...]]:
    """Load the rows that have come once more."""
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
