"""A worker that gets no messages although some wait: its consumer is restarted.

Its children see it in the database and say so in their slots; the parent reads the slots.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps

from tasks_app.broker.worker_pool import slot_path
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard import Stage
from tasks_app.runtime.scoreboard.watchdog import STALE_S, starving

log = quiet_logger(__name__)

LOOK_EVERY_S = 2.0
LONGEST_PAUSE_S = 600.0


class SilentConsumerError(ConnectionResetError):
    """An OSError, which Celery treats as a lost connection with every transport."""


class Listening(bootsteps.StartStopStep):
    """A timer of the worker's own loop: what it raises restarts the consumer, not the worker."""

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def start(self, worker: Any) -> None:
        """Start the timer; a worker without such a loop cannot be helped."""
        if not worker.hub:
            return
        self._slots = Scoreboard(slot_path())
        self._pause_s = 2 * STALE_S
        self._again_at = 0.0
        worker.timer.call_repeatedly(LOOK_EVERY_S, self._look, (worker,))

    def _look(self, worker: Any) -> None:
        """Restart the consumer if all children starve; each restart in vain doubles the pause.

        A restart in vain need not be a fault: somebody may have told this worker to leave a queue.
        """
        if (
            self._slots.stage is not Stage.RUNS
            or not worker.consumer
            or not worker.consumer.connection
        ):
            return
        now = self.clock()
        if not starving(self._slots):
            if now >= self._again_at:
                self._pause_s = 2 * STALE_S
            return
        if now < self._again_at:
            return
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        log.error("all children are idle while messages wait: restarting the consumer")
        raise SilentConsumerError("the consumer hears nothing")
