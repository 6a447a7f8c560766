"""Which errors of the database a chunk waits out, and for how long."""

from __future__ import annotations

from random import uniform

from sqlalchemy.orm.exc import StaleDataError

from tasks_app.domain.coordination.locks import LostUpdateError
from tasks_app.runtime.db.errors import sqlstate

MOST_TRIES = 8
"""Of one chunk; then the error is the run's, charged as any other."""
FIRST_S, LONGEST_S = 0.05, 5.0
_PASSES = frozenset({"40001", "40P01", "55P03"})
"""Serialisation failure, deadlock, a lock not to be had in time."""


def passes(error: BaseException) -> bool:
    """Whether the same chunk may do when it is read anew: its rows are as others left them then.

    So is a row whose version has changed since it was read.
    """
    return sqlstate(error) in _PASSES or isinstance(error, StaleDataError | LostUpdateError)


def wait_s(tries: int) -> float:
    """Return how long to wait before the next try; ``tries`` is 1 after the first one."""
    longest = min(LONGEST_S, FIRST_S * float(2 ** (tries - 1)))
    return uniform(longest / 2, longest)  # noqa: S311  not all at once
