"""The runner: one started task to its outcome. Nothing that a handler raises comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from random import uniform
from typing import Any

from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask, Run, Settlement
from tasks_app.runtime.execution.bulk_call import BulkCaller
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.completion import UNANSWERED_WAIT, Completion, EndOfRun
from tasks_app.runtime.execution.invocation import Invocation, Lane, ProcessGuard
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.flow_control.breakers import DependencyReport
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.time_limits import TimeLimits
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.locks.run_locks import LocksOfChild
from tasks_app.runtime.run_times import RunTimes

log = quiet_logger(__name__)
CONFLICT_WAIT_S = 0.02
"""The longest wait before a handler is called again; each may be twice as long as the last one."""


class Runner:
    """Runs tasks for one child; several threads may at once."""

    def __init__(
        self,
        parts: ChildParts,
        *,
        guard: ProcessGuard,
        run_times: RunTimes,
        invocation: Invocation,
        settler: Settler,
        dependencies: DependencyReport,
    ) -> None:
        settings = parts.settings
        self._registry = parts.registry
        self._inflight = parts.inflight
        self._async_concurrency = settings.async_concurrency
        self._slot = parts.slot
        self._guard = guard
        self._run_times = run_times
        self._limits = limits = TimeLimits(settings, watched=parts.identity.watched)
        self._invocation = invocation
        self._settler = settler
        self._completion = Completion(
            parts, invocation=invocation, settler=settler, dependencies=dependencies
        )
        self._unlimited = {
            spec.name: spec
            for spec in parts.registry
            if not (spec.is_async or spec.bulk or limits.limit_s(spec))
        }
        """The handlers of plain tasks that may be short."""
        self.log_prefix = settings.log_prefix and settings.log_format == "console"
        self._bulk = BulkCaller(
            parts.inflight, invocation, self._completion, log_prefix=self.log_prefix
        )
        self.locks = LocksOfChild(settings, parts.database, parts.inflight.write_later)

    def carry_out(self, run: ActiveRun) -> None:
        """Run a started task to its outcome, and the short ones behind it in flight.

        Between short ones there is as little as possible; any other goes by :meth:`run`.
        """
        try:
            if run.returned is not None or not self._is_short(run.task):
                self.run(run)
                return
            spec = self._unlimited[run.task.name]
            announced = self._start(run, self._limits.hard_limit_s(spec))
            try:
                while True:
                    settlement = self.attempt(run, spec, None)
                    self._learn(run)
                    self.stop_if_due()
                    following = self._inflight.collect_and_start_next(settlement, self._is_short)
                    if following is None:
                        return
                    run, spec = following, self._unlimited[following.task.name]
                    announced = self._follow(announced, run, self._limits.hard_limit_s(spec))
            finally:
                self._slot.finish(announced)
        finally:
            self._inflight.return_unended(run)

    def _start(self, run: ActiveRun, hard_timeout_s: float) -> Run:
        announced = run.task.run
        self._slot.start(announced, hard_timeout_s)
        run.hard_timeout_s = hard_timeout_s
        if HOOKS.wanted and run.returned is None:
            HOOKS.tell([of_claim(NoticeKind.STARTED, run.task)])
        run.since = time.monotonic()
        return announced

    def _follow(self, before: Run, run: ActiveRun, hard_timeout_s: float) -> Run:
        """Announce a run in the place of the one before, which is over. No hook is told."""
        announced = run.task.run
        self._slot.follow(before, announced, run.since, run.since + hard_timeout_s)
        run.hard_timeout_s = hard_timeout_s
        return announced

    def _learn(self, run: ActiveRun, at_once: int = 1) -> None:
        self._run_times.learn(run.task.name, (time.monotonic() - run.since) / at_once)

    def stop_if_due(self) -> None:
        """Stop the child if its worker does, or if a handler left the process unfit."""
        if self._guard.unfit or not self._slot.runs:
            self._inflight.stop()

    def _is_short(self, task: ClaimedTask) -> bool:
        """Whether it is known to be, has no limits of its own, and no hook wants to know of it."""
        return (
            task.name in self._unlimited
            and task.timeout_ms is None
            and task.hard_timeout_ms is None
            and not task.runs_alone
            and self._run_times.is_fast(task.name)
            and not HOOKS.wanted
        )

    def run(self, run: ActiveRun) -> None:
        """Run one started task to its outcome, and the others of its call.

        No exception of a handler leaves this.
        """
        if not run.others:
            self._run_alone(run)
            return
        runs, run.others = [run, *run.others], ()
        try:
            for left in self._run_together(runs):
                if self._inflight.over:
                    self._inflight.give_back(left.task, timedelta(0))
                else:
                    self._run_alone(left)
        finally:
            for each in runs:
                self._inflight.return_unended(each)

    def _run_together(self, runs: Sequence[ActiveRun]) -> list[ActiveRun]:
        """Run tasks of one bulk handler by one call; return those that are to run alone."""
        task = runs[0].task
        spec = self._registry.specs[task.name]
        if not (spec.is_async or self._run_times.is_fast(task.name)):
            self.write_all(self._settler.flush_quietly)
        announced = [self._start(run, self._limits.hard_limit_s(spec)) for run in runs]
        try:
            return self._bulk.carry_out(runs, spec, self._limits.limit_s(spec))
        finally:
            for each in announced:
                self._slot.finish(each)
            self._learn(runs[0], len(runs))
            self.stop_if_due()

    def _run_alone(self, run: ActiveRun) -> None:
        task = run.task
        spec = self._registry.get(task.name)
        if spec is None:  # claimed by names that we know, so this cannot be
            self._inflight.give_back(task, UNANSWERED_WAIT)
            return
        if run.returned is None and not (spec.is_async or self._run_times.is_fast(task.name)):
            self.write_all(self._settler.flush_quietly, before=run)
        self._limits.warn_if_unenforced(task, spec)
        announced = self._start(run, self._limits.hard_timeout_s(task, spec))
        try:
            settlement = self.attempt(run, spec, self._limits.timeout_s(task, spec))
            if settlement is not None:
                self._inflight.collect(settlement)
        finally:
            self._slot.finish(announced)
            self._learn(run, self._async_concurrency if spec.is_async else 1)
            self.stop_if_due()

    def write_all(self, flush: Callable[[], bool], before: ActiveRun | None = None) -> None:
        """Write all outcomes: together, and then those that could not be, each alone.

        ``before``: a run that would keep them waiting.
        """
        while True:
            more = flush()
            if (run := self._inflight.start_separate(before)) is not None:
                self.carry_out(run)
            elif not more:
                return

    def attempt(self, run: ActiveRun, spec: HandlerSpec, limit: float | None) -> Settlement | None:
        """Call the handler, and commit what it did; the task is announced. It never raises.

        It is called again, uncharged, where the policy says so.

        Returns:
            Its success, if that may be written together with others; anything else is done with.
        """
        # One that has returned needs no event loop any more.
        lane = self._invocation.lane(spec) if run.returned is None else self._invocation.plain
        end = EndOfRun(run, spec, limit)
        deadline = None if limit is None else run.since + limit
        while True:
            settlement = None
            transaction = end.transaction = lane.transaction(run.task.fence)
            context: TaskContext[Any] = (AsyncTaskContext if spec.is_async else TaskContext)(
                run, transaction, deadline, self.log_prefix, self.locks
            )
            try:
                try:
                    if run.returned is None:
                        made = self._invocation.make(run, spec, context, limit)
                        returned = run.with_sub_status(made)
                    else:
                        returned = run.returned
                        for write in returned.writes:
                            transaction.write(*write)
                except BaseException as error:
                    self._completion.end_without_return(end, error)
                else:
                    context.close()  # what the handler left running is too late
                    settlement = self._completion.end_after_return(end, returned, context)
            except BaseException as error:
                self._completion.give_up(run.task, spec, error)
            finally:
                context.close()
                transaction.abandon()
                context.end_locks()
            if not end.runs_again:
                return settlement
            if not self._wait_to_run_again(end, lane):
                return None

    def _wait_to_run_again(self, end: EndOfRun, lane: Lane) -> bool:
        """Return False if the child stops, and the task is given back."""
        task = end.run.task
        log.info("task %s is run again: its transaction was refused", task.task_id)
        if self._inflight.over or not self._inflight.run_again(task.fence):
            self._inflight.give_back(task, timedelta(0))
            return False
        wait_s = uniform(0, CONFLICT_WAIT_S * 2**end.repeats)  # noqa: S311  not all at once
        end.repeats += 1
        end.runs_again = False
        lane.call_blocking(partial(self._inflight.stopping.wait, wait_s))
        return True

    def is_unlimited(self, task: ClaimedTask) -> bool:
        """Whether any thread may run it: a ``timeout`` can only be raised in a main thread."""
        spec = self._registry.get(task.name)
        if spec is None or spec.is_async:
            return False
        return spec.keeps_timeout or self._limits.timeout_s(task, spec) is None
