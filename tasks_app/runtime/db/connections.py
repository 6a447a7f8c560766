"""What callers pass: sessions and connections of SQLAlchemy, or connections of psycopg.

Or a proxy of one of them: a scoped session, as Flask-SQLAlchemy's ``db.session``, and Django's
``connection``. A caller that has an object of a library has imported the library, so we look for it
in ``sys.modules`` and import none. Anything else is an InvalidConnectionError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from tasks_app.domain.errors import InvalidConnectionError
from tasks_app.pool.connection.sessions import make_readable

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from typing_extensions import TypeIs

P = ParamSpec("P")
T = TypeVar("T")


class DjangoConnection(Protocol):
    """``django.db.connection``, or one of ``connections``, for type checkers."""

    def __getattr__(self, name: str, /) -> Any:
        """It passes all on."""


Sync: TypeAlias = "Session | Connection | scoped_session[Any]"
Async: TypeAlias = "AsyncSession | AsyncConnection | async_scoped_session[Any]"
Raw: TypeAlias = "psycopg.Connection[Any] | DjangoConnection"
AsyncRaw: TypeAlias = "psycopg.AsyncConnection[Any]"


@contextmanager
def on_connection(session: Sync | Raw) -> Iterator[Connection]:
    """Yield the connection of the caller's transaction; with autocommit, of one of its own."""
    caller: Any = unwrapped(session)
    if not is_raw(caller):
        yield connection_of(caller)
        return
    from tasks_app.pool.connection.psycopg_connection import on_psycopg  # noqa: PLC0415  it brings psycopg

    with caller.transaction() if caller.autocommit else nullcontext():
        yield on_psycopg(caller)


def made_async(
    verb: Callable[Concatenate[Sync, P], T],
) -> Callable[Concatenate[Async | AsyncRaw, P], Coroutine[Any, Any, T]]:
    """Return the same verb for async callers; with autocommit, in a transaction of its own."""

    @wraps(verb)
    async def made(session: Async | AsyncRaw, /, *args: P.args, **kwargs: P.kwargs) -> T:
        caller: Any = unwrapped(session)
        if not is_async_raw(caller):
            return await checked_async(caller).run_sync(verb, *args, **kwargs)
        from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415  it is rare

        from tasks_app.pool.connection.psycopg_connection import on_psycopg  # noqa: PLC0415  it brings psycopg

        async with caller.transaction() if caller.autocommit else nullcontext():
            return await greenlet_spawn(lambda: verb(on_psycopg(caller), *args, **kwargs))

    made.__name__ = made.__qualname__ = f"a{verb.__name__}"
    return noted(made)


def noted(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the same; the session of an async handler notes what was made with it."""

    @wraps(verb)
    def made(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        coroutine = verb(*args, **kwargs)
        session = args[0] if args else kwargs.get("session")
        note: Any = getattr(session, "note_made", None)
        if note is not None:
            note(coroutine, sys._getframe(1))  # noqa: SLF001  the caller's
        return coroutine

    return made


def connection_of(session: Sync) -> Connection:
    """Return the transaction's connection, on which psycopg can read intervals and instants."""
    connection = writing_connection_of(session)
    if connection is not session or isinstance(session, Connection):  # else it is readable
        make_readable(connection)
    return connection


def writing_connection_of(session: Sync) -> Connection:
    """Return the connection, for statements that return neither intervals nor instants."""
    match unwrapped(session):
        case Session() as whole:
            connection = whole.connection()
        case Connection() as connection:
            pass
        case made if _is(made, "tasks_app.pool.connection.psycopg_connection", "OnPsycopg"):
            return cast("Connection", made)  # by made_async
        case _:
            raise InvalidConnectionError(
                f"{shown(session)} isn't a Session or Connection. "
                "Pass the session of your transaction; async ones go to acreate_task, aget_task …"
            )
    if connection.dialect.name != "postgresql":
        raise InvalidConnectionError(
            f"This session writes to {connection.dialect.name}, and tasks live in PostgreSQL. "
            "Pass a session of the database that TASKS_APP_DATABASE_URL names."
        )
    return connection


def checked_engine(engine: object, *, advice: str) -> Engine:
    if not isinstance(engine, Engine):
        raise InvalidConnectionError(f"{shown(engine)} isn't an Engine. {advice}")
    return engine


def is_async_engine(engine: object) -> bool:
    return _is(engine, "sqlalchemy.ext.asyncio", "AsyncEngine")


def is_async_session(session: object) -> bool:
    return _is(session, "sqlalchemy.ext.asyncio", "AsyncSession", "AsyncConnection")


def checked_async(session: Async) -> AsyncSession | AsyncConnection:
    whole: AsyncSession | AsyncConnection = unwrapped(session)
    if not is_async_session(whole):
        raise InvalidConnectionError(
            f"{shown(session)} isn't an AsyncSession or AsyncConnection. "
            "Pass the async session of your transaction; others go to create_task, get_task …"
        )
    return whole


def unwrapped(session: Any) -> Any:
    """Return the session or connection that a proxy stands for at the moment."""
    kind: Any = type(session)
    unwrap = _way_into(kind)
    return session if unwrap is None else unwrap(session)


@lru_cache(64)
def _way_into(kind: Any) -> Callable[[Any], Any] | None:
    scoped = _descends(kind, "sqlalchemy.ext.asyncio", ("async_scoped_session",))
    if scoped or issubclass(kind, scoped_session):
        return _of_registry
    if _descends(kind, "django.utils.connection", ("ConnectionProxy",)):
        return _of_django
    if _descends(kind, "django.db.backends.base.base", ("BaseDatabaseWrapper",)):
        return _of_django
    return None


def _of_registry(scoped: Any) -> Any:
    return scoped()


def _of_django(wrapper: Any) -> Any:
    """Return psycopg's connection, in the transaction that Django has begun on it."""
    if getattr(wrapper, "vendor", None) == "postgresql":
        wrapper.ensure_connection()
        if is_raw(wrapper.connection):
            wrapper.validate_no_broken_transaction()  # what is written now would be rolled back
            return wrapper.connection
    raise InvalidConnectionError(
        "This connection of Django's is none of psycopg 3 to PostgreSQL. "
        "Install psycopg and no psycopg2, or pass another of Django's connections."
    )


def commit_of_django(session: object) -> Callable[[Callable[[], object]], None]:
    """Return what takes a function to call after the commit, if that is one of Django's.

    The commit of any other connection is not noticed, so nothing is called.

    Raises:
        InvalidConnectionError: there is no transaction, so that a new task would commit alone.
    """
    django: Any = session
    kind: Any = type(session)
    if _way_into(kind) is not _of_django:
        return _unheard
    if django.in_atomic_block:
        return partial(django.on_commit, robust=True)
    if not django.get_autocommit():
        return _unheard
    raise InvalidConnectionError(
        f"Django's connection {django.alias!r} is in no transaction, so that the task would commit "
        f"alone. Create it within transaction.atomic(using={django.alias!r})."
    )


def _unheard(_after_commit: Callable[[], object]) -> None:
    pass


def is_raw(session: object) -> TypeIs[psycopg.Connection[Any]]:
    return _is(session, "psycopg", "Connection")


def is_async_raw(session: object) -> TypeIs[AsyncRaw]:
    return _is(session, "psycopg", "AsyncConnection")


def _is(session: object, library: str, *names: str) -> bool:
    kind: Any = type(session)
    return _descends(kind, library, names)


@lru_cache(64)
def _descends(kind: type, library: str, names: tuple[str, ...]) -> bool:
    module = sys.modules.get(library)
    return module is not None and issubclass(kind, tuple(getattr(module, n) for n in names))


def shown(session: object) -> str:
    """Name the type of what is refused; SQLAlchemy and psycopg share some names."""
    kind = type(session)
    if session is None:
        return "None"
    article = "An" if kind.__name__[0] in "AEIOUaeiou" else "A"
    return f"{article} {kind.__name__}{' of psycopg' * ('psycopg' in kind.__module__)}"
