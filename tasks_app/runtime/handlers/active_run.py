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
    sub_status: str | None = None
    """What it said of the task's state; empty: to forget it. None: nothing."""
    held_until: float = inf
    """By ``time.monotonic``: its lease does not end before, as far as is known."""
    in_async_pool: bool = False
    """It is async: it takes no thread."""
    stops: bool = False
    """The child stops; a handler that can stop in between may do so."""
    is_kept: bool = True
    """Its task keeps its row if it succeeds."""
    hard_timeout_s: float | None = None
    """After so long its process is killed."""
    returned: Settlement | None = None
    """What its handler came to: what it asked to write is still to be committed, alone."""
    thread: threading.Thread = field(default_factory=threading.current_thread)
    """Which carries it out, unless ``in_loop`` says that a task of the event loop still does."""
    in_loop: Callable[[], bool] | None = None

    def owned(self) -> bool:
        """Whether what carries it out still lives."""
        return self.thread.is_alive() if self.in_loop is None else self.in_loop()

    def said(self, settlement: Settlement) -> Settlement:
        """Return the end of this run with what its handler said of the state."""
        if self.sub_status is None:
            return settlement
        return settlement._replace(sub_status=self.sub_status)
