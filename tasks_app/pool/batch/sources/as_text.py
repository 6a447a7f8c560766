"""Keys and values as text, since Python cannot hold all of them.

The server writes a key from the very expression that orders it: Python knows no infinite day, and
rounds when it calculates. Equal keys of one type are written alike, whatever the settings of the
session are. A day or time that Python cannot hold is fetched as the text that PostgreSQL writes:
infinity, a year before 1 or after 9999, 24:00.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Column, DataError
from psycopg.abc import Buffer
from psycopg.adapt import Loader, Transformer
from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Select,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tasks_app.domain.partition.keys import KeyType
from tasks_app.pool.batch.sources.predicate import sql_type

_UTC: ColumnElement[Any] = literal_column("'UTC'")
_ITSELF: ColumnElement[Any] = literal_column("'{}'")


def written(key: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    match key_type:
        case KeyType.NUMERIC:
            return cast(func.trim_scale(key), Text)
        case KeyType.TIMESTAMPTZ:
            return _iso(func.timezone(_UTC, key))
        case KeyType.DATE | KeyType.TIMESTAMP:
            return _iso(key)
        case _:
            return cast(key, Text)


def read_back(word: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    if key_type is KeyType.TIMESTAMPTZ:
        return func.timezone(_UTC, cast(word, sql_type(KeyType.TIMESTAMP)))
    return cast(word, sql_type(key_type))


def word(text: str) -> ColumnElement[Any]:
    return literal(text, Text)


def word_named(name: str) -> ColumnElement[Any]:
    """Return the parameter of a statement that is given such a text later."""
    return bindparam(name, type_=Text)


def all_read_back(texts: Sequence[str], key_type: KeyType) -> Select[Any]:
    """Return the SELECT of the keys that texts were made of."""
    each = func.unnest(literal(list(texts), ARRAY(Text))).column_valued("each")
    return select(read_back(each, key_type).label("key"))


def _iso(at: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON has one form for days and times; plain text follows DateStyle."""
    return func.to_jsonb(at).op("#>>")(_ITSELF)


_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")


def columns_of(result: CursorResult[Any]) -> list[Column]:
    """Return what the server says of this very result; SQLAlchemy may remember an earlier one."""
    return list(result.cursor.description)  # type: ignore[arg-type]


def fetch(cursor: Any) -> list[tuple[Any, ...]]:
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
