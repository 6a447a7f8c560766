"""What a child works on: a run, and a claim that it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement


@dataclass(slots=True)
class ActiveRun:
    """A task that a thread runs. The housekeeper writes most flags, the handler reads them."""

    task: ClaimedTask
    since: float
    cancelled: bool
    progress: tuple[float, str] | None = None
    sub_status: str | None = None  # what the handler set; empty: clear it, None: leave it
    held_until: float = inf  # by time.monotonic: the lease ends no earlier, as far as we know
    in_async_pool: bool = False
    repeats: int = 0  # how often it was called again at once, uncharged
    commits: bool = False  # its transaction is being committed: too late to release it
    again: bool = False  # repeat it: its connection was dead, or older than its table
    stops: bool = False  # the child stops; a handler that can stop in between may do so
    is_kept: bool = True  # the task keeps its row if it succeeds
    hard_timeout_s: float | None = None  # its process is killed after so long
    returned: Settlement | None = None  # the handler's end, if its writes commit later, alone
    # Whether the thread, or the task of the event loop, that carries it out still lives.
    owned: Callable[[], bool] = field(default_factory=lambda: threading.current_thread().is_alive)

    def said(self, settlement: Settlement) -> Settlement:
        """Return the settlement with the sub-status that the handler set."""
        if self.sub_status is None:
            return settlement
        return settlement._replace(sub_status=self.sub_status)


@dataclass(frozen=True, slots=True)
class ReturnedClaim:
    """A claim on its way back to the pool, due again after ``wait``."""

    task: ClaimedTask
    wait: timedelta
    suspect: str = ""  # what ended it, perhaps by its own fault: ``crashes`` rises. Empty: nothing

    @property
    def fence(self) -> Fence:
        return self.task.fence
