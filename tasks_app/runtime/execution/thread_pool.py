"""Further threads of one child, for plain handlers that wait for others: sockets, files, locks.

They take from the in-flight set beside the main thread. A time limit can only be raised in a main
thread, so tasks that have one are left to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.inflight.inflight import InFlight

PATIENCE_S = 0.5
"""Between two looks at the in-flight set without being called."""
POLL_S = 0.05
"""The same, when something waits: it may have come between our look and our wait."""


class ThreadPool:
    """Threads that start with the first call and end when the in-flight set stops."""

    def __init__(
        self,
        number: int,
        inflight: InFlight,
        suits: Callable[[ClaimedTask], bool],
        carry_out: Callable[[ActiveRun], None],
    ) -> None:
        self.number = number
        self._inflight = inflight
        self._suits = suits
        self._carry_out = carry_out
        self._started: list[threading.Thread] = []
        self._room = threading.Condition()
        self._aboard = 0

    @property
    def busy(self) -> bool:
        return self._aboard > 0

    def start(self) -> None:
        """Start the threads, once; never before a fork."""
        if self._started:
            return
        for n in range(1, self.number + 1):
            thread = threading.Thread(target=self._work, name=f"tasks_app thread {n}", daemon=True)
            self._started.append(thread)
            thread.start()

    def join(self, patience_s: float | None = None) -> None:
        for thread in self._started:
            thread.join(patience_s)

    def await_end(self, patience_s: float) -> None:
        """Wait until one of them has nothing to do."""
        with self._room:
            if self._aboard == self.number:
                self._room.wait(patience_s)

    def _work(self) -> None:
        while not self._inflight.stopping.is_set():
            with self._room:
                self._aboard += 1
            run = self._inflight.start_next(self._suits) or self._inflight.start_refused()
            if run is not None:
                self._carry_out(run)
            with self._room:
                self._aboard -= 1
                self._room.notify_all()
            if run is not None:
                continue
            with self._inflight.arrived:
                self._inflight.arrived.wait(POLL_S if self._inflight.waiting else PATIENCE_S)
