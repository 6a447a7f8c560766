"""What a child has in its hands: a run, and a claim on its way back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Fence


@dataclass(slots=True)
class ActiveRun:
    """A task in a thread's hands. The housekeeper writes most flags, the handler reads them."""

    task: ClaimedTask
    since: float
    cancelled: bool
    progress: tuple[float, str] | None = None
    held_until: float = inf
    """Its lease is not over before, by ``time.monotonic``; so far as is known."""
    in_async_pool: bool = False
    """It is async: it takes no thread."""
    may_repeat: bool = False
    """If other transactions are in the way of its own, it is called again at once, uncharged."""
    commits: bool = False
    """Its transaction is being committed: too late to let go of it."""
    again: bool = False
    """It began on a connection that was dead before, did nothing, and begins once more."""
    stops: bool = False
    """The child stops; whoever can give back in between may do so."""


@dataclass(frozen=True, slots=True)
class ReturnedClaim:
    """A claim on its way back, due again after ``wait``."""

    task: ClaimedTask
    wait: timedelta
    suspect: bool = False
    """Its connection was lost, perhaps through its own doing: only if no other was lost, too."""

    @property
    def fence(self) -> Fence:
        """The fence alone."""
        return self.task.fence
