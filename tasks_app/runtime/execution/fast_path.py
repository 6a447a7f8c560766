"""Sprints: short plain tasks in a row, with as little between two of them as can be.

What a row has in common is looked up once. What takes its time, has limits of its own or is
watched one by one goes the longer way, which does the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.execution.time_limits import Allowance
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.scoreboard.slot import Slot


@dataclass(frozen=True, slots=True)
class Way:
    """What is the same for all tasks of a name."""

    spec: HandlerSpec
    hard_timeout_s: float


class FastPath:
    """Carries out plain tasks of one child; several threads may at once."""

    def __init__(
        self,
        registry: Registry,
        inflight: InFlight,
        slot: Slot,
        runner: Runner,
        allowance: Allowance,
        aftermath: ProcessGuard,
        otherwise: Callable[[ActiveRun], None],
    ) -> None:
        self._inflight = inflight
        self._slot = slot
        self._runner = runner
        self._aftermath = aftermath
        self._otherwise = otherwise
        self._ways = {
            spec.name: Way(spec, allowance.hard_limit_s(spec))
            for spec in registry
            if not (spec.is_async or spec.batched or allowance.limit_s(spec))
        }

    def carry_out(self, run: ActiveRun) -> None:
        """Run a started task to its outcome, and those behind it in flight as long as it fits."""
        if run.task.runs_alone or not self._suits(run.task):
            self._otherwise(run)
            return
        announced = run.task.run
        self._slot.start(announced, self._ways[run.task.name].hard_timeout_s)
        try:
            following: ActiveRun | None = self._one(run)
            while following is not None:
                before, announced = announced, following.task.run
                kill_at = following.since + self._ways[following.task.name].hard_timeout_s
                self._slot.follow(before, announced, following.since, kill_at)
                following = self._one(following)
        finally:
            self._runner.rest()
            self._slot.finish(announced)

    def _suits(self, task: ClaimedTask) -> bool:
        """Whether it is known to be short, and has nothing of its own to be looked after."""
        return (
            task.name in self._ways
            and task.timeout_ms is None
            and task.hard_timeout_ms is None
            and self._runner.pace.is_fast(task.name)
            and not HOOKS.wanted
        )

    def _one(self, run: ActiveRun) -> ActiveRun | None:
        """Run one task, which is announced; return the next one, started."""
        name, began = run.task.name, run.since
        more = self._inflight.waiting > 0
        settlement = self._runner.attempt(run, self._ways[name].spec, None, more=more)
        self._runner.pace.learn(name, time.monotonic() - began)
        if self._aftermath.unfit or not self._slot.runs:
            self._inflight.stop()
        return self._inflight.go_on(settlement, self._suits)
