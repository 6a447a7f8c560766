"""Late writes: statements of a handler that travel with its outcome, and are answered with it.

Names that are private to psycopg are used here; ``driver_internals`` checks them at start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer

from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES
from tasks_app.runtime.handler_db.handler_statements import COMMITS_LATER, copies, ends_transaction

if LATE_WRITES.works:
    from psycopg._queries import PostgresQuery

MOST_NAMES = 200
"""How many different statements are prepared; those of more are parsed each time."""
_NO_TEXT = (
    "ctx.write takes SQL text with %s or %(name)s, as psycopg does, not {kind}. "
    "Send statements of SQLAlchemy through ctx.session or ctx.connection."
)
_NO_COPY = "ctx.write sends no COPY, which needs an answer. Use ctx.connection for it."
_names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
_numbers = count()


class Write(NamedTuple):
    """A statement, and what stands in its places."""

    query: str
    parameters: Sequence[Any] | Mapping[str, Any] | None


class Sent(NamedTuple):
    """The same in the words of libpq."""

    name: bytes
    """Under which it is prepared; empty: it is not."""
    sql: bytes
    types: Sequence[int]
    values: Sequence[Any] | None
    formats: Sequence[Any] | None


def write_of(query: Any, parameters: Any) -> Write:
    """Return what a handler asks for.

    Raises:
        TypeError: it is no SQL text.
        RuntimeError: it would end the transaction, or is a COPY, which waits for more.
    """
    if not isinstance(query, str):
        raise TypeError(_NO_TEXT.format(kind=type(query).__name__))
    if ends_transaction(query):
        raise RuntimeError(COMMITS_LATER)
    if copies(query):
        raise RuntimeError(_NO_COPY)
    return Write(query, parameters)


def sent_as(connection: psycopg.Connection[Any] | Any, write: Write) -> Sent:
    """Return what is sent.

    Raises:
        psycopg.Error: parameters are missing, or of types that psycopg does not know.
    """
    query = PostgresQuery(Transformer.from_context(connection))
    query.convert(write.query, write.parameters)
    key = (query.query, tuple(query.types))
    name = _names.get(key, b"")
    if not name and len(_names) < MOST_NAMES:
        name = _names.setdefault(key, b"tasks_app writes %d" % next(_numbers))
    return Sent(name, query.query, query.types, query.params, query.formats)
