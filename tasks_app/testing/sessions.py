"""What a test passes as its session, made into what a handler expects of ``ctx.session``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, StaticPool, create_engine
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
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

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


def async_session_on(session: Session) -> AsyncSession:
    """Return an AsyncSession that works with a synchronous one, whose connection may block.

    SQLAlchemy's own methods ask whether anybody awaited the database, and then nobody does.
    """
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession  # noqa: PLC0415  few need it

    kind: Any = lambda **_: session  # noqa: E731  a factory, as it takes the keywords of a class
    if session.get_bind().dialect.is_async:
        return AsyncSession(sync_session_class=kind)

    class BlockingConnection(AsyncConnection):
        execute = _without_await("execute")
        exec_driver_sql = _without_await("exec_driver_sql")

    class BlockingSession(AsyncSession):
        execute = _without_await("execute")
        scalar = _without_await("scalar")
        scalars = _without_await("scalars")

        async def connection(self, *_: Any, **__: Any) -> AsyncConnection:
            nothing: Any = SimpleNamespace(sync_engine=None)
            return BlockingConnection(nothing, session.connection())

    return BlockingSession(sync_session_class=kind)


def _without_await(name: str) -> Any:
    async def called(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self._proxied, name)(*arguments, **options)

    return called


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
