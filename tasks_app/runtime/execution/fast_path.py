"""The fast path: short plain tasks in a row, with as little between them as possible.

What such tasks have in common is looked up once. A task that may be slow, has limits of its own
or is reported to hooks goes through the runner, which does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.runtime.execution.run_shell import RunParts
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.inflight.parts import ChildParts


@dataclass(frozen=True, slots=True)
class _Known:
    """What is the same for all tasks of a name."""

    spec: HandlerSpec
    hard_timeout_s: float


class FastPath:
    """Carries out plain tasks of one child; several threads may at once."""

    def __init__(self, parts: ChildParts, tools: RunParts, runner: Runner) -> None:
        limits = tools.limits
        self._inflight = parts.inflight
        self._shell = tools.shell
        self._run_times = tools.run_times
        self._runner = runner
        self._known = {
            spec.name: _Known(spec, limits.hard_limit_s(spec))
            for spec in parts.registry
            if not (spec.is_async or limits.limit_s(spec))
        }

    def carry_out(self, run: ActiveRun) -> None:
        """Run a started task to its outcome, and those behind it in flight as long as they suit."""
        try:
            if run.returned is not None or run.task.runs_alone or not self._suits(run.task):
                self._runner.run(run)
                return
            announced = self._shell.start(run, self._known[run.task.name].hard_timeout_s)
            try:
                while (following := self._one(run)) is not None:
                    run = following
                    hard_timeout_s = self._known[run.task.name].hard_timeout_s
                    announced = self._shell.follow(announced, run, hard_timeout_s)
            finally:
                self._shell.finish(announced)
        finally:
            self._inflight.leave(run)

    def _suits(self, task: ClaimedTask) -> bool:
        """Whether it is known to be short, and has no limits of its own."""
        return (
            task.name in self._known
            and task.timeout_ms is None
            and task.hard_timeout_ms is None
            and self._run_times.is_fast(task.name)
            and not HOOKS.wanted
        )

    def _one(self, run: ActiveRun) -> ActiveRun | None:
        """Run one task, which is announced; return the next one, started."""
        spec = self._known[run.task.name].spec
        settlement = self._runner.attempt(run, spec, None)
        self._shell.learn(run)
        self._shell.stop_if_due()
        return self._inflight.go_on(settlement, self._suits)
