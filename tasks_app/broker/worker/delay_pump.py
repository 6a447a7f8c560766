"""The pump: takes due tasks out of the delay index, in one worker's parent at a time.

The parent does it because it is idle while its children are busy: in a child, a handler that holds
the interpreter would delay due tasks as well. It needs no thread of ours and no database: a timer
of the worker's own loop asks Redis, bounded to a second, and publishes. What was taken out and not
published, because the parent was killed just then, is found by the scan.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from celery import bootsteps

from tasks_app.broker.publish.delay_index import delay_index
from tasks_app.broker.worker.shutdown import slot_path
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard.slot import Stage

log = quiet_logger(__name__)

TICK_S = 1.0
"""Between two moves, unless something becomes due earlier."""
STAND_BACK_S = 5.0
"""A pause after Redis did not answer: a parent that waits for it does nothing else."""


class Pump(bootsteps.StartStopStep):
    """A repeated timer of the worker's loop, and one more for the next due instant."""

    requires = ("celery.worker.components:Timer",)

    _pumps = False
    _not_before = 0.0

    def start(self, worker: Any) -> None:
        """Start the repeated timer, which revives the other one whatever happens to it."""
        index = delay_index(worker.app, load_settings()) if worker.hub else None
        if index is None:
            return
        self._worker = worker
        self._index = index
        self._slots = Scoreboard(slot_path())
        self._next: Any = None
        worker.timer.call_repeatedly(TICK_S, self._tick)

    def close(self, _worker: Any) -> None:
        """Let another worker pump; this one starts no further move."""
        self._not_before = float("inf")
        with suppress(Exception):
            if self._pumps:
                self._index.leave()

    def _tick(self) -> None:
        """Publish what is due, and come back when the next task is due."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        connected = self._worker.consumer and self._worker.consumer.connection
        if not connected or time.monotonic() < self._not_before:
            return
        if self._slots.stage is not Stage.RUNS:
            self.close(self._worker)
            return
        try:
            moved = self._index.move()
        except Exception as error:  # raised on, it would restart the consumer
            self._not_before = time.monotonic() + STAND_BACK_S
            self._pumps = False
            log.info("the delay index did not answer: %s", type(error).__name__)
            return
        if moved.pumps != self._pumps:
            self._pumps = moved.pumps
            log.info(
                "this worker starts delayed tasks on time"
                if moved.pumps
                else "another worker starts delayed tasks on time"
            )
        if moved.pumps and moved.wait_s < TICK_S:
            self._next = self._worker.timer.call_after(moved.wait_s, self._tick)
