"""PoolScheduler: beat runs our scan inline, so that it never waits behind busy children.

It keeps no schedule file. Any number of beats may run: two scans at once keep each other out, and
whatever slips through is a message that finds nothing to claim.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

from celery.beat import ScheduleEntry, Scheduler

from tasks_app.broker.defaults import MAINTAIN, SCAN
from tasks_app.broker.processes import Keeper, current_keeper
from tasks_app.broker.worker import check_surroundings
from tasks_app.domain.causes import brief
from tasks_app.domain.errors import PublishError
from tasks_app.domain.settings import load_settings
from tasks_app.runtime.database import is_unanswered
from tasks_app.runtime.pulse import BEAT, Pulse

log = logging.getLogger(__name__)

AGAIN_S = 0.05
"""Pause between two scans while rows are left over and the queues have room."""


class PoolScheduler(Scheduler):
    """Celery's scheduler, with our two entries run here instead of sent."""

    sync_every = 180
    producer = None
    """Celery's own is made before each tick, and waits for a broker that is away."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._more = False
        self._failures = 0
        settings = load_settings()
        good_for_s = (settings.healthy_for + settings.scan_interval).total_seconds()
        self._pulse = Pulse(BEAT, f"beat@{socket.gethostname()}", good_for_s=good_for_s)
        self._trouble = ""
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Take the schedule from the configuration; maintain once at the start."""
        check_surroundings(self.app, load_settings())
        self.install_default_entries(self.schedule)
        self.merge_inplace(self.app.conf.beat_schedule)
        self._run_inline(MAINTAIN)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Run what is due; return the seconds until the next look."""
        self._pulse.beat(self._trouble)
        wait = float(super().tick(*args, **kwargs))
        if not self._more:
            return wait
        self._run_inline(SCAN)
        return min(wait, AGAIN_S)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Run ours inline; send all others as Celery does."""
        if entry.task in (SCAN, MAINTAIN):
            self._run_inline(entry.task)
        else:
            super().apply_entry(entry, producer)

    def close(self) -> None:
        """End in good order."""
        super().close()
        self._pulse.end()

    @property
    def _keeper(self) -> Keeper:
        return current_keeper(self.app)

    def _run_inline(self, task: str) -> None:
        """Run one of ours; whatever fails, the next tick tries again."""
        try:
            if task == SCAN:
                self._more = self._keeper.scan().more
            else:
                self._keeper.maintain()
            self._failures, self._trouble = 0, ""
        except Exception as error:
            self._more = False
            away = isinstance(error, PublishError) or is_unanswered(error)
            self._trouble = "" if away else f"{task} fails ({type(error).__name__})"
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
                log.warning("%s failed %s times in a row: %s", task, self._failures, brief(error))
