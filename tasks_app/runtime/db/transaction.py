"""The transaction of one run: what its handler writes through, and what its outcome commits with.

``connection`` is a plain connection; a session is made only when it is asked for. Whichever was
asked for first, both stand for the same transaction.
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

E = TypeVar("E", bound=BaseException)
_OF_COMMIT = "_tasks_app_sent_a_commit"
LOST = "The connection was lost before the COMMIT."
NO_COMMIT = (
    "A handler with commit='batch' shares its transaction with others, so it cannot commit on the "
    "way. Declare it without commit=."
)
NESTED = (
    "ctx.commit() was called in a savepoint (begin_nested), which would end with it. "
    "Call it when the savepoint is released."
)


class SpoiledError(Exception):
    """One run of a batch did what only a transaction of its own can bear."""


class Access(Protocol):
    """What a handler sees of it."""

    @property
    def session(self) -> Any:
        """The ORM's way."""

    @property
    def connection(self) -> Connection:
        """The way without the ORM."""

    @property
    def active(self) -> bool:
        """Whether anything was done in it, and it is to be ended with the run."""

    def keep(self, save: Callable[[Connection], None]) -> Any:
        """Commit what was done so far, ``save`` last; what follows is a transaction of its own.

        In async handlers it is awaited. What ``save`` raises prevents the commit.
        """


class Transaction(Access, Protocol):
    """Made when it is first touched; used by one run."""

    @property
    def ended(self) -> bool:
        """Whether the handler ended it by itself, so that what it wrote may stand."""

    @property
    def untried(self) -> bool:
        """Whether it had a connection, on which nothing was answered: so nothing was done."""

    def conclude(self, settlement: Settlement) -> State | None:
        """Commit effect and outcome; None: the fence is lost, nothing was committed."""

    def abandon(self) -> None:
        """Roll back and give the connection back; never raises."""


def as_sqlalchemy_raises(error: psycopg.Error) -> DBAPIError:
    """Return the error as SQLAlchemy would have raised it, without the outcome in its text."""
    known = DBAPIError.instance("settle", None, error, psycopg.Error, hide_parameters=True)
    assert isinstance(known, DBAPIError)  # noqa: S101  as psycopg's own are translated
    return known


def of_commit(error: E) -> E:
    """Mark an error of a COMMIT, which may have been sent."""
    setattr(error, _OF_COMMIT, True)
    return error


def is_of_commit(error: BaseException) -> bool:
    """Tell whether a COMMIT may have been sent that brought this error, or no answer."""
    return getattr(error, _OF_COMMIT, False)


def give_back(close: Callable[[], object], invalidate: Callable[[], object]) -> None:
    """Close what a handler had; never raises."""
    try:
        close()
    except BaseException:  # listeners of the user's may raise anything, broken drivers too
        with contextlib.suppress(BaseException):
            invalidate()
