"""What callers pass: sessions and connections of SQLAlchemy, or connections of psycopg.

Who has an object of a library has imported it; we do not, for those who use the other one.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from tasks_app.pool.readable import make_readable

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from typing_extensions import TypeIs

Sync: TypeAlias = Session | Connection
Async: TypeAlias = "AsyncSession | AsyncConnection"
Raw: TypeAlias = "psycopg.Connection[Any]"
AsyncRaw: TypeAlias = "psycopg.AsyncConnection[Any]"


def connection_of(session: Sync) -> Connection:
    """Return the connection whose transaction it is, on which everything can be read.

    Raises:
        TypeError: it is of another kind.
    """
    connection = writing_connection_of(session)
    make_readable(connection)
    return connection


def writing_connection_of(session: Sync) -> Connection:
    """Return the connection for statements that return neither intervals nor instants.

    Raises:
        TypeError: it is of another kind.
    """
    match session:
        case Session():
            return session.connection()
        case Connection():
            return session
        case _:
            raise TypeError(
                f"A {_kind(session)} is no Session or Connection. "
                "Pass the SQLAlchemy session of your transaction; async ones go to acreate_task."
            )


def checked_async(session: Async) -> Async:
    """Return what is an AsyncSession or AsyncConnection.

    Raises:
        TypeError: it is of another kind.
    """
    if not _is(session, "sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection"):
        raise TypeError(
            f"A {_kind(session)} is no AsyncSession or AsyncConnection. "
            "Pass the async session of your transaction; others go to create_task."
        )
    return session


def is_raw(session: object) -> TypeIs[Raw]:
    """Whether it is a connection of psycopg."""
    return _is(session, "psycopg", "Connection")


def is_async_raw(session: object) -> TypeIs[AsyncRaw]:
    """Whether it is an async connection of psycopg."""
    return _is(session, "psycopg", "AsyncConnection")


def _is(session: object, library: str, *names: str) -> bool:
    kind: Any = type(session)
    return _descends(kind, library, names)


@lru_cache(64)
def _descends(kind: type, library: str, names: tuple[str, ...]) -> bool:
    module = sys.modules.get(library)
    return module is not None and issubclass(kind, tuple(getattr(module, n) for n in names))


def _kind(session: object) -> str:
    """Name the kind; SQLAlchemy and psycopg have names in common."""
    kind = type(session)
    return f"{kind.__name__} of psycopg" if "psycopg" in kind.__module__ else kind.__name__
