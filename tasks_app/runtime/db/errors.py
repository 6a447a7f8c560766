"""How we react when PostgreSQL refuses a statement of ours, by its SQLSTATE, and how patiently.

SQLSTATEs are those of PostgreSQL 18's appendix A. Whatever it is, no process ends for it.
"""

from __future__ import annotations

from enum import StrEnum
from random import uniform

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError


class Remedy(StrEnum):
    """What is to be done about it."""

    REPEAT = "repeat"
    """Try again after a pause: it passes, as a deadlock does, or a person sees to it, as to a
    right that is missing. What waits to be written stays where it is."""
    SPARE = "spare"
    """The same; and since it serves nobody just now, no task is charged with it."""
    REPLACE = "replace"
    """What was sent can never be stored: write down that, in its place."""


_GONE = ("08", "57P", "25P03", "25P04")
"""The session is over, so that nobody knows what its last statement did."""
_REACTIONS = {
    **dict.fromkeys(_GONE, Remedy.SPARE),
    "25006": Remedy.SPARE,  # read only: after a failover we talk to the wrong server
    "53100": Remedy.SPARE,  # its disk is full
    "53300": Remedy.SPARE,  # too many connections
    "22": Remedy.REPLACE,
    "23": Remedy.REPLACE,
    "54": Remedy.REPLACE,  # beyond a limit of PostgreSQL's
}


def remedy_for(error: BaseException) -> Remedy:
    """Return what to do; of what is not in the list, to try again."""
    if is_unanswered(error):
        return Remedy.SPARE
    state = sqlstate(error)
    found = (_REACTIONS.get(state[:length]) for length in (5, 3, 2))
    return next(filter(None, found), Remedy.REPEAT)


def spares_handlers(error: BaseException) -> bool:
    """Tell whether what a handler's transaction ran into is no fault of its task.

    That it was read only may be: a handler can ask for that itself.
    """
    return remedy_for(error) is Remedy.SPARE and sqlstate(error) != "25006"


def is_conflict(error: BaseException) -> bool:
    """Tell whether two transactions were in each other's way, through no fault of either.

    A deadlock, or one that cannot be serialized: PostgreSQL expects both to be run again.
    """
    return isinstance(error, DBAPIError) and sqlstate(error) in {"40001", "40P01"}


def is_unanswered(error: BaseException) -> bool:
    """Tell whether the database never answered, so that nobody knows what it did.

    Anything else is a definite refusal.
    """
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if not (state := sqlstate(error)):
        # It never reached the server; of other classes it is the client's own refusal.
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith(_GONE)


def sqlstate(error: BaseException) -> str:
    """Return the code, or nothing."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def patience_s() -> float:
    """How long to leave a database alone that refused us.

    A child has three threads that ask it, so that all together do so less than twice a second.
    """
    return uniform(1.5, 2.5)  # noqa: S311  not all at once
