"""How a Celery worker stops: what its parent tells the children, and what signals mean to them.

Celery's own cold shutdown sleeps through the grace period inside a signal handler, and then kills.
Ours tells the children through the slot file; each gives its tasks back by itself, even while its
handler runs. The parent needs neither database nor broker for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from celery.apps.worker import Worker
from celery.concurrency.solo import TaskPool as SoloPool

from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard import Stage
from tasks_app.runtime.scoreboard.watchdog import LOOK_EVERY_S, kill_holdouts
from tasks_app.runtime.worker.child import Child

PATIENCE_S = 5.0
"""How long children may take to give back. One that takes longer lets no other thread run."""
POLL_S = 0.05
BILLIARDS = "billiard.common"
"""The module of the signal handlers in billiard's children."""


class PoolWorker(Worker):
    """Celery's worker, with a cold shutdown that charges nobody, and our handlers in its banner."""

    watch: Callable[[], None]
    """Set by the step ``Watch``."""

    def tasklist(self, *args: Any, **options: Any) -> str:
        """Return the banner's list: handlers of the pool first, then Celery's tasks."""
        theirs: str = super().tasklist(*args, **options)
        ours = [
            f"  . {spec.name} (queue {spec.queue})"
            for spec in sorted(HANDLERS, key=lambda spec: spec.name)
        ]
        return "\n".join([*ours, theirs])

    def wait_for_soft_shutdown(self) -> None:
        """Drain for the grace period, then let the children go; called in a signal handler."""
        slots = Scoreboard(slot_path())
        slots.drain()
        solo = isinstance(self.pool, SoloPool)  # its task stands still beneath this handler
        grace = 0.0 if solo else float(self.app.conf.worker_soft_shutdown_timeout)
        self._wait(grace, lambda: slots.stage is Stage.DRAINS and _is_busy(slots))
        slots.leave()
        self._wait(PATIENCE_S, lambda: _is_busy(slots))
        if kill_holdouts(slots):
            self._wait(PATIENCE_S, lambda: _has_graves(slots))

    def _wait(self, seconds: float, reason: Callable[[], bool]) -> None:
        """Wait while there is a reason. The worker's timers do not fire meanwhile."""
        now = time.monotonic()
        ends, look_at = now + seconds, now
        while now < ends and reason():
            if now >= look_at:
                look_at = now + LOOK_EVERY_S
                self.watch()
            time.sleep(POLL_S)
            now = time.monotonic()


def _is_busy(slots: Scoreboard) -> bool:
    """Say whether a living child holds tasks or messages."""
    return any((view.running or view.messages) and not view.dead for view in slots.occupied())


def _has_graves(slots: Scoreboard) -> bool:
    """Say whether a dead child's tasks wait for a living one to give them back."""
    return {view.dead for view in slots.occupied()} == {True, False}


def heed_signals(child: Child) -> None:
    """Let SIGTERM and SIGQUIT end this prefork child without an exception in its handler.

    Celery sends them to a child to end its task, process managers to the whole group. An idle
    child ends as Celery has it end; a busy one leaves the decision to its housekeeper. Called with
    every message, because billiard sets its own handlers last in a new child.
    """

    def heed(theirs: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        """Take no lock and write no log: this runs between any two steps of the main thread."""
        if child.in_hand:
            child.inflight.asked_at = time.monotonic()
        else:
            theirs(number, frame)

    for number in (signal.SIGTERM, signal.SIGQUIT):
        found = signal.getsignal(number)
        if callable(found) and found.__module__ == BILLIARDS:  # only in prefork children
            signal.signal(number, partial(heed, found))


def slot_path() -> Path:
    return Path(os.environ[SLOTS_VARIABLE])
