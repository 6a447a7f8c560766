"""A run: what its handler, its thread and the housekeeper tell each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from tasks_app.domain.tasks.run import ClaimedTask, Settlement


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
    stops: bool = False  # the child stops; a handler that can stop in between may do so
    is_kept: bool = True  # the task keeps its row if it succeeds
    hard_timeout_s: float | None = None  # its process is killed after so long
    returned: Settlement | None = None  # the handler's end, if its writes commit later, alone
    thread: threading.Thread = field(default_factory=threading.current_thread)
    in_loop: Callable[[], bool] | None = None  # whether a task of the event loop still runs it

    def owned(self) -> bool:
        """Return whether the thread, or the task of the event loop, that runs it still lives."""
        return self.thread.is_alive() if self.in_loop is None else self.in_loop()

    def with_sub_status(self, settlement: Settlement) -> Settlement:
        """Return the settlement with the sub-status that the handler set."""
        if self.sub_status is None:
            return settlement
        return settlement._replace(sub_status=self.sub_status)
