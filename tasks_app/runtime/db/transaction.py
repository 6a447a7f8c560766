"""The transaction of one run: its handler writes in it, and its outcome commits with it.

``connection`` is a plain connection; a session is made only when it is asked for. Both work in the
same transaction, whichever was asked for first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.tasks.run import Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.handler_db.statements import Write
from tasks_app.runtime.handler_db.statements import query_of

E = TypeVar("E", bound=BaseException)
_OF_COMMIT = "_tasks_app_sent_a_commit"
LOST = "The connection was lost before the COMMIT."
NESTED = (
    "ctx.commit() was called in a savepoint (begin_nested), which would end with it. "
    "Call it when the savepoint is released."
)


class Access(Protocol):
    """What a handler sees of its transaction."""

    is_async: bool
    """Whether what it does has to be awaited."""

    @property
    def session(self) -> Any:
        """Of SQLAlchemy's ORM."""

    @property
    def connection(self) -> Connection:
        """Of SQLAlchemy, without the ORM."""

    @property
    def active(self) -> bool:
        """Whether anything was done in it that ends with the run."""

    def write(self, query: str, parameters: Any) -> None:
        """Send a statement with the next commit, whose answer nobody awaits before that.

        Raises:
            TypeError: it is no text.
            ValueError: it has a NUL.
            RuntimeError: it would end the transaction.
        """

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Commit what was done so far, ``save`` last; what follows is another transaction.

        Async handlers await it. If ``save`` raises, nothing is committed.
        """


class Transaction(Access, Protocol):
    """Begun at its first use, by one run."""

    @property
    def late_writes(self) -> tuple[Write, ...]:
        """All that the run did, if that is only what it asked to write; else nothing."""

    @property
    def ended(self) -> bool:
        """Whether the handler ended it by itself, so that what it wrote may be committed."""

    @property
    def untried(self) -> bool:
        """Whether it had a connection on which nothing was answered, so that nothing was done."""

    def conclude(self, settlement: Settlement) -> State | None:
        """Commit effect and outcome; None: the fence is lost, nothing was committed."""

    def abandon(self) -> None:
        """Roll back and give the connection back; never raises."""


def as_sqlalchemy_raises(error: psycopg.Error) -> DBAPIError:
    """Return the error as SQLAlchemy would have raised it, without the outcome in its text."""
    known = DBAPIError.instance(
        query_of(error) or "settle", None, error, psycopg.Error, hide_parameters=True
    )
    assert isinstance(known, DBAPIError)  # noqa: S101  as psycopg's own are translated
    return known


def of_commit(error: E) -> E:
    """Mark an error of a COMMIT, which may have been sent."""
    setattr(error, _OF_COMMIT, True)
    return error


def uncommitted(connection: Connection, error: psycopg.Error) -> DBAPIError:
    """Return the error of a COMMIT as SQLAlchemy would have raised it.

    A connection on which it was not answered is not used again.
    """
    known = as_sqlalchemy_raises(error)
    if is_unanswered(known):
        connection.invalidate(known)
    return of_commit(known)


def is_of_commit(error: BaseException) -> bool:
    """Whether the error came from a COMMIT that may have been sent."""
    return getattr(error, _OF_COMMIT, False)


def give_back(close: Callable[[], object], invalidate: Callable[[], object]) -> None:
    """Close a connection or session of a handler; never raises."""
    try:
        close()
    except BaseException:  # a user's listeners may raise anything, broken drivers too
        with contextlib.suppress(BaseException):
            invalidate()


def carry_out(connection: Connection, writes: list[Write]) -> None:
    """Send them one by one, each with a wait for its answer, and take out those that were sent.

    So whoever swallows an error does not lose what is behind it: the next end meets it again.
    """
    driver: Any = connection.connection.driver_connection
    while writes:
        try:
            writes[0].send(driver.cursor())
        except psycopg.Error as error:
            raise as_sqlalchemy_raises(error) from error
        del writes[0]
