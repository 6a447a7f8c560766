"""How runs of partitions wait, how often they look around, and which errors they wait out."""

from __future__ import annotations

from dataclasses import dataclass
from random import uniform

from sqlalchemy.orm.exc import StaleDataError

from tasks_app.domain.locks import LostUpdateError
from tasks_app.pool.fragments.conditions import LOOK_EVERY_S
from tasks_app.runtime.db.errors import sqlstate

_TRANSIENT = frozenset({"40001", "40P01", "55P03"})
"""Serialisation failure, deadlock, lock time-out."""


@dataclass(frozen=True, slots=True)
class RunTuning:
    """What the runs of a job keep to."""

    most_tries: int = 8
    """Tries of a chunk that meets transient errors; then the error is charged like any other."""
    first_wait_s: float = 0.05
    longest_wait_s: float = 5.0
    others_wait_s: float = 1.0
    """How long a run stays away when others hold the rest of its rows and may give them back."""
    look_every_s: float = LOOK_EVERY_S
    """How often a run checks whether its queue stands still."""
    steal_look_every_s: float = 1.0
    """How often a run that may be divided checks whether a partition waits."""
    measure_every_s: float = 30.0
    """How often it counts what it has left, which reads half of the keys."""
    worth_s: float = 4.0
    """Work for less time is not divided: a second worker must be told, and starts with small
    chunks."""

    def wait_s(self, tries: int) -> float:
        """Return how long to wait before the next try; ``tries`` is 1 after the first one."""
        longest = min(self.longest_wait_s, self.first_wait_s * float(2 ** (tries - 1)))
        return uniform(longest / 2, longest)  # noqa: S311  not all at once


RUN_TUNING = RunTuning()


def is_transient(error: BaseException) -> bool:
    """Whether the chunk may succeed when it is read again, as others have left the rows by then.

    A row whose version has changed since it was read counts, too.
    """
    return sqlstate(error) in _TRANSIENT or isinstance(error, StaleDataError | LostUpdateError)
