"""What a test passes as its session, made into what a handler expects of ``ctx.session``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, StaticPool, create_engine
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidConnectionError
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.runtime.db.connections import (
    Async,
    Raw,
    Sync,
    checked_async,
    is_raw,
    unwrapped,
    writing_connection_of,
)

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncSession

JOINS: Final = "create_savepoint"
"""How sessions of handlers join the transaction of the test: what they end is a savepoint."""
_AUTOCOMMIT = (
    "This connection is in autocommit, so there is no transaction that the test could roll back. "
    "Open one, or leave out the session: drain() works on what is committed."
)


def outer_session(given: Async | Sync | Raw) -> Session | AsyncSession:
    """Return the session itself, or one on the connection that was given."""
    whole: Any = unwrapped(given)
    if isinstance(whole, Session):
        return whole
    if hasattr(whole, "run_sync"):
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession  # noqa: PLC0415  few need it

        side = checked_async(whole)
        if isinstance(side, AsyncConnection):
            return AsyncSession(side, join_transaction_mode=JOINS)
        return side
    connection = sync_connection(whole)
    if not connection.in_transaction():
        connection.begin()  # or the session's own commit would end it
    return Session(connection, join_transaction_mode=JOINS)


def sync_connection(given: Sync | Raw) -> Connection:
    """Return the connection of the test's transaction.

    Raises:
        InvalidConnectionError: it is none, or in autocommit.
    """
    whole: Any = unwrapped(given)
    if is_raw(whole):
        return borrowed(whole)
    connection = writing_connection_of(whole)
    if commits_itself(connection):
        raise InvalidConnectionError(_AUTOCOMMIT)
    return connection


@contextmanager
def joined(given: Any) -> Iterator[Connection]:
    """Yield the connection of the test's transaction; then its session sees what was done there.

    Async ones only in a greenlet, where their objects can be read anew.

    Raises:
        InvalidConnectionError: it is none, in autocommit, or of another driver than psycopg.
    """
    whole: Any = unwrapped(given)
    whole = getattr(whole, "sync_session", getattr(whole, "sync_connection", whole))
    connection = sync_connection(whole)
    if connection.dialect.driver != "psycopg":
        raise InvalidConnectionError(
            f"This connection is of {connection.dialect.driver}, and workers use psycopg. "
            "Use postgresql+psycopg:// in your tests, or commit and call drain() without a session."
        )
    session = whole if isinstance(whole, Session) else None
    if session is not None:
        session.flush()
    if not connection.in_transaction():
        connection.begin()
    try:
        yield connection
    finally:
        if session is not None:
            session.expire_all()  # handlers have sessions of their own
            for found in list(session) if connection.dialect.is_async else ():
                with suppress(InvalidRequestError):  # its row is gone
                    session.refresh(found)


def borrowed(raw: psycopg.Connection[Any]) -> Connection:
    """Return SQLAlchemy's Connection on one of psycopg, whose transaction stays its owner's.

    Raises:
        InvalidConnectionError: it is in no transaction and would not begin one.
    """
    from psycopg.pq import TransactionStatus  # noqa: PLC0415  who has a connection has imported it

    if raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE:
        raise InvalidConnectionError(_AUTOCOMMIT)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: BorrowedConnection(raw),
        poolclass=StaticPool,
        pool_reset_on_return=None,
        use_native_hstore=False,
    )
    return engine.connect()


class BorrowedConnection:
    """A connection of psycopg that SQLAlchemy can use, and cannot end."""

    autocommit = False

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        """Pass all else on."""
        return getattr(self._raw, name)

    def cursor(self, *_: Any, **__: Any) -> psycopg.Cursor[Any]:
        """Return a plain one, whatever factories its owner has set."""
        import psycopg  # noqa: PLC0415  who has a connection has imported it
        from psycopg.rows import tuple_row  # noqa: PLC0415

        return psycopg.Cursor(self._raw, row_factory=tuple_row)

    def commit(self) -> None:
        """Leave that to its owner."""

    def rollback(self) -> None:
        """Leave that to its owner."""

    def close(self) -> None:
        """Leave that to its owner."""
