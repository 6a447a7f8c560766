"""Shutdown: how a child whose worker stops gives back, and at last lets go of what runs.

It asks nothing of the handlers: they may catch whatever is raised, or sit in a call that never
returns. The in-flight set's mutex decides who owns a task, the fence whether its commit won; then
the process ends on the spot, and the handler's transaction with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from random import Random

from tasks_app.domain.handlers.settlement import INTERRUPTED, settle_interrupt
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.leases import rescue_claims
from tasks_app.pool.runs.settle import settle_each
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.settler import Settler, report_returned, report_settled
from tasks_app.runtime.scoreboard import Stage
from tasks_app.runtime.tracing.tracing import flush_traces

log = quiet_logger(__name__)

COMMITS_S = 0.5  # how long a run that is being committed is waited for
LONGEST_LEAVE_S = 3.0
"""Then the process ends in any case: tasks that it could not settle are rescued."""
ALONE_S = 0.5
"""A signal to a whole process group reaches the parent, too, which then speaks for all."""
ALONE_WAIT = timedelta(seconds=1)
"""The unit of the random time after which such a task is due again."""


class Shutdown:
    """One child's; the housekeeper looks at it in every round."""

    def __init__(self, parts: ChildParts, settler: Settler) -> None:
        grace = parts.settings.stop_grace
        self._max_crashes = parts.settings.max_crashes
        self._grace_s = None if grace is None else grace.total_seconds()
        self._database = parts.database
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._registry = parts.registry
        self._settler = settler
        self.end_process: Callable[[int], object] = os._exit
        self.sleep: Callable[[float], object] = time.sleep
        self._drains_since: float | None = None
        self._rng = Random()  # noqa: S311  jitter, not a secret

    def drain(self) -> None:
        """Once the worker stops, give back what has not started.

        A child that was asked alone ends by itself.
        """
        if self._slot.stage is not Stage.RUNS or _is_over(
            self._inflight.stop_requested_at, ALONE_S
        ):
            self._inflight.stop()
        if not self._inflight.stopping.is_set():
            return
        if self._drains_since is None:
            self._drains_since = time.monotonic()
        self._inflight.take_all_back()

    @property
    def due(self) -> bool:
        return self._inflight.busy and (
            self._slot.stage is Stage.LEAVES
            or _is_over(self._drains_since, self._grace_s)
            or (
                self._slot.stage is Stage.RUNS
                and _is_over(self._inflight.stop_requested_at, ALONE_S)
            )
        )

    def asked_alone(self) -> bool:
        """Whether a signal asked this child to end, and not its whole worker."""
        asked_at = self._inflight.stop_requested_at
        if asked_at is None:
            return False
        while self._slot.stage is Stage.RUNS and not _is_over(asked_at, ALONE_S):
            time.sleep(0.02)
        return self._slot.stage is Stage.RUNS

    def leave(self, last_round: Callable[[], None], last_counts: Callable[[], None]) -> None:
        """Let go of what runs and end this process, whatever its threads are doing.

        What was let go comes last: from then on it may start elsewhere, so we end at once.
        """
        last_call = threading.Timer(LONGEST_LEAVE_S, self._end)
        last_call.daemon = True
        last_call.start()
        self._inflight.stop()
        self.drain()
        tasks = self._inflight.disown()
        self._await_commits()
        tasks += self._inflight.disown(committing=True)
        log.warning("leaving; let go of tasks %s", [task.task_id for task in tasks])
        for duty in (
            self._settler.flush,
            last_round,
            lambda: self._settle(tasks),
            last_counts,
            flush_traces,
        ):
            try:
                duty()
            except Exception as error:
                log.warning(
                    "not all could be written: the rest is rescued later: %s", first_line(error)
                )
        last_call.cancel()
        self._end()

    def _await_commits(self) -> None:
        ends = time.monotonic() + COMMITS_S
        while self._inflight.running() and time.monotonic() < ends:
            self.sleep(0.005)

    def _settle(self, tasks: list[ClaimedTask]) -> None:
        """Settle them.

        A child that was asked alone may have been asked by its own task: that counts as a crash, or
        it would come back for ever.
        """
        alone = self._slot.stage is Stage.RUNS and self._inflight.stop_requested_at is not None
        endings = [
            settle_interrupt(task, self._registry.get(task.name), self._rng) for task in tasks
        ]
        free = [ending.fence for ending in endings if alone and ending.event is Event.RELEASE]
        charged = [ending for ending in endings if ending.fence not in free]
        with self._database.begin() as connection:
            moved = settle_each(connection, charged)
            back = rescue_claims(
                connection,
                free,
                lease=ALONE_WAIT,
                max_crashes=self._max_crashes,
                kind=INTERRUPTED,
            )
        report_settled(charged, moved)
        report_returned(tasks, back, Event.RESCUE, ALONE_WAIT, INTERRUPTED)

    def _end(self) -> None:
        """Free the slot first: this death is nobody's fault."""
        self._slot.free()
        self.end_process(0)


def _is_over(since: float | None, seconds: float | None) -> bool:
    return since is not None and seconds is not None and time.monotonic() - since >= seconds
