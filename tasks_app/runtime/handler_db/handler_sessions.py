"""Sessions of handlers: their commit belongs to the executor."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from tasks_app.runtime.handler_db.lending import driver_of
from tasks_app.runtime.handler_db.statements import COMMITS_LATER

T = TypeVar("T")


class HandlerSession(Session):
    """A session of one run: it works on the run's connection, and the executor commits.

    It is bound to the engine, so that ``get_bind()`` returns that.
    """

    def __init__(
        self,
        engine: Engine,
        take: Callable[[], Connection],
        adopt: Callable[[Connection], None],
    ) -> None:
        """``take`` gives the connection of a plain run; ``adopt`` gets that of an async one.

        An async one asks the engine at its first statement: to add objects needs no greenlet.
        """
        self.is_async: bool = engine.dialect.is_async
        super().__init__(
            engine,
            join_transaction_mode="control_fully",
            close_resets_only=False,
            expire_on_commit=not self.is_async,
        )
        self._take = take
        self.adopts = adopt
        self._options: Mapping[str, Any] | None = None

    def commit(self) -> None:
        raise RuntimeError(COMMITS_LATER)

    def commit_with_outcome(self) -> None:
        super().commit()

    def rollback(self) -> None:
        """Roll back what the run did, even if the session itself did nothing."""
        super().rollback()
        if self.is_async:
            return
        connection = self._take()
        if not (connection.closed or connection.invalidated):
            connection.rollback()
            driver_of(connection).rollback()

    def close(self) -> None:
        """Stay open: what is written in ``with ctx.session`` commits with the outcome, too."""

    def end(self) -> None:
        super().close()

    def connection(
        self,
        bind_arguments: dict[str, Any] | None = None,
        execution_options: Mapping[str, Any] | None = None,
    ) -> Connection:
        """Return its connection, with options of a transaction that begins here."""
        if execution_options and not (self.is_async or self.in_transaction()):
            self._options, execution_options = execution_options, None
        return super().connection(bind_arguments, execution_options)

    def join(self) -> None:
        """Give a new transaction the connection before it asks the engine for one."""
        connection = self._take()
        options, self._options = self._options, None
        super().connection({"bind": connection}, options)


@event.listens_for(HandlerSession, "after_transaction_create")
def _join(session: HandlerSession, transaction: SessionTransaction) -> None:
    if transaction.parent is None and not session.is_async:
        session.join()


@event.listens_for(HandlerSession, "after_begin")
def _adopt(session: HandlerSession, _: SessionTransaction, connection: Connection) -> None:
    if session.is_async:
        session.adopts(connection)


class MadeCoroutines:
    """The coroutines that a handler was given and has not begun to await."""

    def __init__(self) -> None:
        self._made: list[tuple[Coroutine[Any, Any, Any], str]] = []
        self._most = 1

    def note(self, made: Any, caller: FrameType) -> Any:
        """Return ``made``. Most are begun before the next is made."""
        line = f"{made.__qualname__}(), {caller.f_globals.get('__name__')}:{caller.f_lineno}"
        self._made.append((made, line))
        if len(self._made) > self._most:
            self._made = self._left()
            self._most = 2 * len(self._made)  # thousands would take quadratic time
        return made

    def end(self) -> str | None:
        """Close those that are left; return the first, and the line that made it."""
        left, self._made = self._left(), []
        for made, _ in left:
            made.close()
        return left[0][1] if left else None

    def _left(self) -> list[tuple[Coroutine[Any, Any, Any], str]]:
        return [
            each
            for each in self._made
            if inspect.getcoroutinestate(each[0]) == inspect.CORO_CREATED
        ]


def _noted(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.note_made(method(self, *args, **kwargs), sys._getframe(1))  # noqa: SLF001

    return noted


def _noting(kind: type[T]) -> type[T]:
    """Let a class note the coroutines that its methods return."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(kind, name, _noted(method))
    return kind


@_noting
class _AsyncHandlerConnection(AsyncConnection):
    note_made: Callable[[Any, FrameType], Any]


@_noting
class AsyncHandlerSession(AsyncSession):
    """The same for async handlers; it knows what they forgot to await."""

    def __init__(self, engine: AsyncEngine, session: HandlerSession) -> None:
        whole: Any = lambda **_: session  # noqa: E731  in the place of a class
        super().__init__(engine, sync_session_class=whole)
        self.made = MadeCoroutines()
        self.note_made = self.made.note

    async def connection(self, *args: Any, **kwargs: Any) -> AsyncConnection:
        found = await super().connection(*args, **kwargs)
        if not isinstance(found, _AsyncHandlerConnection):
            found = _AsyncHandlerConnection(found.engine, found.sync_connection)
            found.note_made = self.note_made
            self._given = found  # else SQLAlchemy forgets it
        return found

    async def commit(self) -> None:
        raise RuntimeError(COMMITS_LATER)

    async def close(self) -> None:
        """Stay open, as a HandlerSession does."""
