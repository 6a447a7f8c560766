"""Late writes: statements of a handler that travel with its outcome, and are answered with it.

Names that are private to psycopg are used here; ``driver_internals`` checks them at start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_NUL = "The text of ctx.write has a NUL in it, which SQL cannot hold. Take it out."
NO_COPY = "ctx.write sends no COPY, which needs an answer. Use ctx.connection for it."
_QUERY = "_tasks_app_query"
_names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
_numbers = count()


class Write(NamedTuple):
    """A statement, and what stands in its places."""

    query: str
    parameters: Sequence[Any] | Mapping[str, Any] | None

    def send(self, cursor: Any) -> None:
        """Send it by itself, and wait for its answer."""
        with blaming(self):
            cursor.execute(*self)

    async def asend(self, cursor: Any) -> None:
        with blaming(self):
            await cursor.execute(*self)


class Sent(NamedTuple):
    """The same in the words of libpq."""

    name: bytes
    """Under which it is prepared; empty: it is not."""
    sql: bytes
    types: Sequence[int]
    values: Sequence[Any] | None
    formats: Sequence[Any] | None


@contextmanager
def blaming(write: Write) -> Iterator[None]:
    """Note in an error which statement it is about."""
    try:
        yield
    except psycopg.Error as error:
        blame(error, write)
        raise


def blame(error: psycopg.Error, write: Write) -> None:
    setattr(error, _QUERY, write.query)


def query_of(error: psycopg.Error) -> str:
    """Return the text of the late write that failed; empty: it was something else."""
    return getattr(error, _QUERY, "")


def write_of(query: Any, parameters: Any) -> Write:
    """Return what a handler asks for.

    Raises:
        TypeError: it is no text.
        ValueError: it has a NUL.
        RuntimeError: it would end the transaction, or is a COPY, which waits for more.
    """
    if not isinstance(query, str):
        raise TypeError(_NO_TEXT.format(kind=type(query).__name__))
    if "\0" in query:
        raise ValueError(_NUL)
    if ends_transaction(query):
        raise RuntimeError(COMMITS_LATER)
    if copies(query):
        raise RuntimeError(NO_COPY)
    if isinstance(parameters, Mapping):
        parameters = dict(parameters)  # the handler may change its own before they are sent
    elif isinstance(parameters, list):
        parameters = [*parameters]
    return Write(query, parameters)


def sent_as(connection: psycopg.Connection[Any] | Any, write: Write) -> Sent:
    """Return what is sent.

    Raises:
        psycopg.Error: parameters are missing, or of types that psycopg does not know.
    """
    query = PostgresQuery(Transformer.from_context(connection))
    with blaming(write):
        query.convert(write.query, write.parameters)
    key = (query.query, tuple(query.types))
    name = _names.get(key, b"")
    if not name and len(_names) < MOST_NAMES:
        name = _names.setdefault(key, b"tasks_app writes %d" % next(_numbers))
    return Sent(name, query.query, query.types, query.params, query.formats)
