"""The runner: one started task to its outcome. Nothing that a handler raises comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import uniform
from typing import Any

from tasks_app.domain.encryption import MissingKeyError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask, Run, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.runtime.db.errors import is_ours, is_refused
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.completion import (
    UNANSWERED_WAIT,
    Completion,
    Ending,
    FailurePolicy,
    RunAgainError,
)
from tasks_app.runtime.execution.invocation import (
    FenceLostError,
    Invocation,
    Lane,
    NotBegunError,
    ProcessGuard,
)
from tasks_app.runtime.execution.settler import Settler, count_stale
from tasks_app.runtime.flow_control.breakers import DependencyReport
from tasks_app.runtime.handler_db.statements import ENDED
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.time_limits import TimeLimits
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.locks.run_locks import LocksOfChild
from tasks_app.runtime.run_times import RunTimes

log = quiet_logger(__name__)
CONFLICT_WAIT_S = 0.02
"""The longest wait before a handler is called again; each may be twice as long as the last one."""


@dataclass(frozen=True, slots=True)
class RunParts:
    """What all ways through a run share."""

    guard: ProcessGuard
    run_times: RunTimes
    limits: TimeLimits
    invocation: Invocation
    settler: Settler
    calls: DependencyReport


class Runner:
    """Runs tasks for one child; several threads may at once."""

    def __init__(self, parts: ChildParts, tools: RunParts) -> None:
        settings = parts.settings
        self._registry = parts.registry
        self._inflight = parts.inflight
        self._async_concurrency = settings.async_concurrency
        self._settler = tools.settler
        self._slot = parts.slot
        self._guard = tools.guard
        self._limits = tools.limits
        self._unlimited = {
            spec.name: spec
            for spec in parts.registry
            if not (spec.is_async or tools.limits.limit_s(spec))
        }
        """The handlers of plain tasks that may be short."""
        self._run_times = tools.run_times
        self._invocation = tools.invocation
        self._calls = tools.calls
        self._policy = FailurePolicy(settings, parts.database, tools.invocation)
        self._completion = Completion(parts, tools.invocation, tools.settler, self._policy)
        self.log_prefix: bool = settings.log_prefix and settings.log_format == "console"
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
        """Announce a run, before its payload is touched."""
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
        """Learn the time of a run that is over; ``at_once`` runs shared it."""
        self._run_times.learn(run.task.name, (time.monotonic() - run.since) / at_once)

    def stop_if_due(self) -> None:
        """Stop the child if its worker does, or if a handler left the process unfit."""
        if self._guard.unfit or not self._slot.runs:
            self._inflight.stop()

    def _is_short(self, task: ClaimedTask) -> bool:
        """Whether it is known to be, has no limits of its own, and nobody hears of it."""
        return (
            task.name in self._unlimited
            and task.timeout_ms is None
            and task.hard_timeout_ms is None
            and not task.runs_alone
            and self._run_times.is_fast(task.name)
            and not HOOKS.wanted
        )

    def run(self, run: ActiveRun) -> None:
        """Run one started task to its outcome. Nothing that a handler raises comes out."""
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
            if (run := self._inflight.start_refused(before)) is not None:
                self.carry_out(run)
            elif not more:
                return

    def attempt(self, run: ActiveRun, spec: HandlerSpec, limit: float | None) -> Settlement | None:
        """Call the handler, and commit what it did; the task is announced. Nothing comes out.

        It is called again, uncharged, where the policy says so.

        Returns:
            Its success, if that may be written together with others; anything else is done with.
        """
        lane = self._lane(run, spec)
        while True:
            try:
                return self._attempt(run, spec, limit)
            except RunAgainError:
                self._inflight.run_again(run.task.fence)
                log.info("task %s is run again: its transaction was refused", run.task.task_id)
                if self._inflight.over:
                    self._inflight.give_back(run.task, timedelta(0))
                    return None
                wait_s = uniform(0, CONFLICT_WAIT_S * 2**run.repeats)  # noqa: S311  not all at once
                run.repeats += 1
                lane.aside(partial(self._inflight.stopping.wait, wait_s))

    def _attempt(self, run: ActiveRun, spec: HandlerSpec, limit: float | None) -> Settlement | None:
        task = run.task
        transaction = self._lane(run, spec).transaction(task.fence)
        deadline = None if limit is None else run.since + limit
        context = (AsyncTaskContext if spec.is_async else TaskContext)(
            run, transaction, deadline, self.log_prefix, self.locks
        )
        try:
            settlement = self._call(run, spec, context, transaction, limit)
            if settlement is None:
                log.warning("task %s: the lease was lost before it began", task.task_id)
                count_stale(task)
                self._inflight.drop(task.fence)
            elif transaction.active:
                ending = Ending(run, spec, transaction, settlement, limit)
                return self._committed(ending, locked=context.has_locks)
            elif settlement.event is Event.SUCCEED and not task.at_most_once:
                return settlement
            else:
                self._keep(task, spec, settlement)
        except RunAgainError:
            raise
        except NotBegunError:
            self._inflight.give_back(task, UNANSWERED_WAIT)
        except MissingKeyError as error:
            self._completion.park(task, spec, error)
        except BaseException as error:
            self._completion.give_up(run.task, spec, error)
        finally:
            context.close()
            transaction.abandon()
            context.end_locks()
        return None

    def _committed(self, ending: Ending, *, locked: bool) -> Settlement | None:
        """Commit what the run did; return its success if that may be committed beside others.

        ``locked``: it holds locks, which end with the run.
        """
        transaction, settlement = ending.transaction, ending.settlement
        may_wait = ending.run.returned is None and not locked
        if may_wait and (writes := transaction.late_writes):
            late = settlement._replace(writes=writes)
            if self._settler.takes(late):
                return late
        self._completion.commit(ending)
        return None

    def _lane(self, run: ActiveRun, spec: HandlerSpec) -> Lane:
        """Return how to call its handler; one that has returned needs no event loop any more."""
        return self._invocation.lane(spec) if run.returned is None else self._invocation.plain

    def _keep(self, task: ClaimedTask, spec: HandlerSpec, settlement: Settlement) -> None:
        self._completion.keep(task, settlement)
        if spec.depends_on is not None:  # its breaker hears of a failure before the next call
            self._invocation.lane(spec).aside(self._calls.tell_failures)

    def _call(
        self,
        run: ActiveRun,
        spec: HandlerSpec,
        context: TaskContext[Any],
        transaction: Transaction,
        limit: float | None,
    ) -> Settlement | None:
        """Call the handler, unless it has returned; what it raises is an outcome, after a rollback.

        None: the fence was lost, so that the handler was not called.

        Raises:
            NotBegunError: it was not called either, and the run is to be given back.
            MissingKeyError: nor here, and the run is to wait for a key.
            RunAgainError: it may be called once more.
        """
        if run.returned is not None:
            for write in run.returned.writes:
                transaction.write(*write)
            return run.returned
        try:
            said = run.said(self._invocation.make(run, spec, context, limit))
        except FenceLostError:
            return None
        except (NotBegunError, MissingKeyError):
            raise
        except BaseException as error:
            ended, untried = transaction.ended, transaction.untried
            transaction.abandon()
            if is_refused(error):  # by no task's fault
                self._inflight.note_outage()
            ours = not ended and is_ours(error)
            if ours and self._policy.runs_again(run, spec, error, untried=untried):
                raise RunAgainError from error
            error = Fail(ENDED) if ended else error
            return run.said(self._policy.on_handler(run.task, spec, error))
        context.close()  # what the handler left running is too late for this commit
        return said

    def is_unlimited(self, task: ClaimedTask) -> bool:
        """Whether any thread may run it: a ``timeout`` can only be raised in a main thread."""
        spec = self._registry.get(task.name)
        if spec is None or spec.is_async:
            return False
        return spec.keeps_timeout or self._limits.timeout_s(task, spec) is None
