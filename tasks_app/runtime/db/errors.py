"""What an error of the database means, and writes that are repeated until it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import uniform

from sqlalchemy import Connection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from tasks_app.domain.config.unreachable import ROW_ERRORS, TOO_MANY

_MARK = "_tasks_app_ours"
_REFUSED = "_tasks_app_refused"


class Remedy(StrEnum):
    """What to do about an error."""

    REPEAT = "repeat"
    """Try again after a pause: it passes, as a deadlock does, or an operator removes the cause,
    such as a missing privilege."""
    SPARE = "spare"  # the same, and no task is charged: the database is unavailable to all
    REPLACE = "replace"
    """The values can never be stored: write in their place that they could not be."""


_GONE = ("08", "57P", "25P03", "25P04")
"""The session is over: what its last statement did is not known."""
_REACTIONS = {
    **dict.fromkeys(_GONE, Remedy.SPARE),
    "25006": Remedy.SPARE,  # read only: after a failover we talk to the wrong server
    "53100": Remedy.SPARE,  # its disk is full
    "53300": Remedy.SPARE,  # too many connections
    **dict.fromkeys(ROW_ERRORS, Remedy.REPLACE),
}


def remedy_for(error: BaseException) -> Remedy:
    if is_unanswered(error):
        return Remedy.SPARE
    state = sqlstate(error)
    found = (_REACTIONS.get(state[:length]) for length in (5, 3, 2))
    return next(filter(None, found), Remedy.REPEAT)


def spares_handlers(error: BaseException) -> bool:
    """Whether an error in a handler's transaction is no fault of its task.

    A read-only transaction may be its fault: a handler can ask for one.
    """
    return remedy_for(error) is Remedy.SPARE and sqlstate(error) != "25006"


def is_conflict(error: BaseException) -> bool:
    """Whether it is a deadlock or a serialization failure.

    Neither transaction is at fault: PostgreSQL expects that they are run again.
    """
    return isinstance(error, DBAPIError) and sqlstate(error) in {"40001", "40P01"}


def is_stale_plan(error: BaseException) -> bool:
    """Whether a statement was prepared before an ALTER TABLE, or is gone. A rollback forgets it."""
    return _is_raised_by("RevalidateCachedQuery", "0A000", error) or _is_raised_by(
        "FetchPreparedStatement", "26000", error
    )


def is_lock_limit(error: BaseException) -> bool:
    """Whether ``lock_timeout`` ended a wait. Not NOWAIT, by which a handler asks for the error."""
    return _is_raised_by("ProcessInterrupts", "55P03", error)


def _is_raised_by(function: str, state: str, error: BaseException) -> bool:
    """Whether that function of the server raised it; its messages are translated."""
    origin = getattr(error, "orig", None) or error.__cause__ or error
    by = getattr(getattr(origin, "diag", None), "source_function", None)
    return by == function and getattr(origin, "sqlstate", None) == state


def is_unanswered(error: BaseException) -> bool:
    """Whether the database never answered, so that it is not known what it did."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if not (state := sqlstate(error)):
        # Errors of other classes are the client's own refusals.
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith(_GONE)


def mark(context: ExceptionContext) -> None:
    """Mark an error as one of our database, unless the handler had closed its connection."""
    if context.sqlalchemy_exception is not None and not _is_closed_here(context.connection):
        mark_ours(context.sqlalchemy_exception, refused=context.connection is None)


def _is_closed_here(connection: Connection | None) -> bool:
    if connection is None or connection.closed or connection.invalidated:
        return False
    return getattr(connection.connection.driver_connection, "is_closed_here", False)


def mark_ours(error: BaseException, *, refused: bool) -> None:
    """Mark an error as one of our database; ``refused``: it gave no connection."""
    setattr(error, _MARK, True)
    setattr(error, _REFUSED, refused)


def is_ours(error: BaseException) -> bool:
    """Whether our database raised it, and no other that a handler talks to."""
    return getattr(error, _MARK, False)


def is_lost(error: BaseException) -> bool:
    """Whether our database is unavailable just now."""
    return spares_handlers(error) and is_ours(error)


def is_refused(error: BaseException) -> bool:
    """Whether our database gave no connection, so that nothing was sent."""
    return getattr(error, _REFUSED, False)


def is_crowded(error: BaseException) -> bool:
    """Whether the server gave no connection because it has none left for us."""
    return is_refused(error) and any(text in str(error) for text in TOO_MANY)


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE, or an empty text."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def patience_s() -> float:
    """Return the pause before another try; a child has three threads that try."""
    return uniform(1.5, 2.5)  # noqa: S311  jitter


PendingWrite = Callable[[Connection], object]


class PendingWrites:
    """Any thread adds one; the housekeeper takes all, and puts back those that failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[PendingWrite] = []
        self._out = False

    def add(self, pending_write: PendingWrite) -> None:
        with self._lock:
            self._waiting.append(pending_write)

    def take(self) -> list[PendingWrite]:
        """Take all; then call :meth:`leave` with those that failed."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._out = bool(taken)
            return taken

    def leave(self, pending_writes: Sequence[PendingWrite]) -> None:
        with self._lock:
            self._waiting += pending_writes
            self._out = False

    @property
    def open(self) -> bool:
        """Whether one waits, or was taken and may still fail."""
        with self._lock:
            return bool(self._waiting) or self._out
