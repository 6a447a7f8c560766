"""The run shell: what surrounds every run of a child, whichever way it goes.

A run is announced before its payload is touched; its time is learned; after it the child stops if
its worker does, or if a handler left the process unfit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.execution.run_times import RunTimes
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.flow_control.dependency_report import DependencyReport
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.time_limits import TimeLimits
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.scoreboard.slot import Slot


class RunShell:
    """All threads of a child use it at once."""

    def __init__(
        self, inflight: InFlight, slot: Slot, run_times: RunTimes, guard: ProcessGuard
    ) -> None:
        self._inflight = inflight
        self._slot = slot
        self._run_times = run_times
        self._guard = guard

    def start(self, run: ActiveRun, hard_timeout_s: float) -> Run:
        announced = run.task.run
        self._slot.start(announced, hard_timeout_s)
        run.hard_timeout_s = hard_timeout_s
        if HOOKS.wanted and run.returned is None:
            HOOKS.tell([of_claim(NoticeKind.STARTED, run.task)])
        run.since = time.monotonic()
        return announced

    def follow(self, before: Run, run: ActiveRun, hard_timeout_s: float) -> Run:
        """Announce a run in the place of the one before, which is over. No hook is told."""
        announced = run.task.run
        self._slot.follow(before, announced, run.since, run.since + hard_timeout_s)
        run.hard_timeout_s = hard_timeout_s
        return announced

    def learn(self, run: ActiveRun, at_once: int = 1) -> None:
        """Learn from a run that is over; ``at_once`` runs shared that time."""
        self._run_times.learn(run.task.name, (time.monotonic() - run.since) / at_once)

    def finish(self, announced: Run) -> None:
        self._slot.finish(announced)

    def stop_if_due(self) -> None:
        if self._guard.unfit or not self._slot.runs:
            self._inflight.stop()


@dataclass(frozen=True, slots=True)
class RunParts:
    """What all ways through a run share."""

    shell: RunShell
    run_times: RunTimes
    limits: TimeLimits
    invocation: Invocation
    settler: Settler
    calls: DependencyReport
