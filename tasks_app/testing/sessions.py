"""What a test passes as its session, made into what a handler expects of ``ctx.session``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, StaticPool, create_engine
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidConnectionError
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.runtime.db.connections import is_raw, unwrapped, writing_connection_of

_AUTOCOMMIT = (
    "This connection is in autocommit, so there is no transaction that the test could roll back. "
    "Open one, or leave out the session: drain() works on what is committed."
)


def session_of(given: Any) -> Session | AsyncSession:
    """Return the session itself, or one on the connection that was given.

    What that one ends is a savepoint.
    """
    whole = unwrapped(given)
    if isinstance(whole, Session | AsyncSession):
        return whole
    if isinstance(whole, AsyncConnection):
        return AsyncSession(whole, join_transaction_mode="create_savepoint")
    return Session(_connection_of(whole), join_transaction_mode="create_savepoint")


@contextmanager
def joined(given: Any) -> Iterator[Connection]:
    """Yield the connection of the test's transaction; then its session sees what was done there.

    Async ones only in a greenlet, where their objects can be read anew.

    Raises:
        InvalidConnectionError: it is none, in autocommit, or of another driver than psycopg.
    """
    whole = unwrapped(given)
    whole = getattr(whole, "sync_session", getattr(whole, "sync_connection", whole))
    connection = _connection_of(whole)
    if connection.dialect.driver != "psycopg":
        raise InvalidConnectionError(
            f"This connection is of {connection.dialect.driver}, and workers use psycopg. "
            "Use postgresql+psycopg:// in your tests, or commit and call drain() without a session."
        )
    if not isinstance(whole, Session):
        yield connection
        return
    whole.flush()
    try:
        yield connection
    finally:
        whole.expire_all()  # handlers have sessions of their own
        for found in list(whole) if connection.dialect.is_async else ():
            with suppress(InvalidRequestError):  # its row is gone
                whole.refresh(found)


def _connection_of(whole: Any) -> Connection:
    """Return the connection of the test's transaction, which is begun at the latest here."""
    connection = _borrowed(whole) if is_raw(whole) else writing_connection_of(whole)
    if commits_itself(connection):
        raise InvalidConnectionError(_AUTOCOMMIT)
    if not connection.in_transaction():
        connection.begin()  # or a session's own commit would end it
    return connection


def _borrowed(raw: psycopg.Connection[Any]) -> Connection:
    """Return SQLAlchemy's Connection on one of psycopg, whose transaction stays its owner's."""
    if raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE:
        raise InvalidConnectionError(_AUTOCOMMIT)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _Borrowed(raw),
        poolclass=StaticPool,
        pool_reset_on_return=None,
        use_native_hstore=False,
    )
    return engine.connect()


class _Borrowed:
    """A connection of psycopg that SQLAlchemy can use; to end anything is left to its owner."""

    autocommit = False

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def cursor(self, *_: Any, **__: Any) -> psycopg.Cursor[Any]:
        return psycopg.Cursor(self._raw, row_factory=tuple_row)  # whatever its owner has set

    def commit(self) -> None:
        pass

    rollback = close = commit
