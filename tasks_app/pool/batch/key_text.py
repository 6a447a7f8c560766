"""Keys as text, which the server makes of the very expression that orders them.

Python need not be able to hold them: it knows no infinite day, and rounds where it counts. Equal
keys of one type are written alike, whatever the session's settings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
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
from tasks_app.pool.batch.predicate import sql_type

_UTC: ColumnElement[Any] = literal_column("'UTC'")
_ITSELF: ColumnElement[Any] = literal_column("'{}'")


def written(key: ColumnElement[Any], key_type: KeyType) -> ColumnElement[Any]:
    """Return the text of a key."""
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
    """Return the key that a text was made of."""
    if key_type is KeyType.TIMESTAMPTZ:
        return func.timezone(_UTC, cast(word, sql_type(KeyType.TIMESTAMP)))
    return cast(word, sql_type(key_type))


def word(text: str) -> ColumnElement[Any]:
    """Return such a text as a parameter."""
    return literal(text, Text)


def word_named(name: str) -> ColumnElement[Any]:
    """Return the place in a statement at which such a text is given later."""
    return bindparam(name, type_=Text)


def all_read_back(texts: Sequence[str], key_type: KeyType) -> Select[Any]:
    """Return the SELECT of the keys that texts were made of."""
    each = func.unnest(literal(list(texts), ARRAY(Text))).column_valued("each")
    return select(read_back(each, key_type).label("key"))


def _iso(at: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON has days and times in one form, as text has them in that of DateStyle."""
    return func.to_jsonb(at).op("#>>")(_ITSELF)
