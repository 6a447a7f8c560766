"""Batch commit: runs of ``commit="batch"`` handlers in one transaction, with one settle at its end.

There are no savepoints: they cost as much as commits. If anything but success comes of one run, or
not every outcome could be written, all is rolled back and each is run again alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.db.errors import is_unanswered
from tasks_app.runtime.db.shared_transaction import SharedTransaction
from tasks_app.runtime.execution.completion import UNANSWERED_WAIT
from tasks_app.runtime.execution.notices import tell_settled
from tasks_app.runtime.execution.run_shell import RunParts
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.handler_db.handler_statements import ENDED
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.time_limits import can_limit
from tasks_app.runtime.inflight.parts import ChildParts

log = quiet_logger(__name__)

HOLD_S = 0.2
"""For how long a batch goes on: its handlers' locks are held until its end."""
MOST = 500
MOMENT_S = 0.01


class BatchCommit:
    """Carries out plain tasks of one child; several threads may at once."""

    def __init__(self, parts: ChildParts, tools: RunParts, runner: Runner) -> None:
        self._registry = parts.registry
        self._database = parts.database
        self._inflight = parts.inflight
        self._shell = tools.shell
        self._limits = tools.limits
        self._run_times = tools.run_times
        self._invocation = tools.invocation
        self._runner = runner
        self.hold_s = HOLD_S
        self.pause: Callable[[float], object] = time.sleep
        self._most = MOST

    def carry_out(self, run: ActiveRun) -> None:
        """Run a started task to its outcome, with others in flight if its handler allows it."""
        if not self._may_share(run.task):
            self._runner.run(run)
            return
        runs, settlements = [run], list[Settlement]()
        shared = SharedTransaction(self._database.handler_engine)
        ends = time.monotonic() + self.hold_s
        try:
            while True:
                settlements.append(self._one(runs[-1], shared))
                if len(runs) >= self._most or time.monotonic() >= ends:
                    break
                following = self._inflight.start_next(self._may_share)
                if following is None:
                    break
                runs.append(following)
        except BaseException:  # it is told when the run ends so again, alone
            shared.abandon()
            self._each(runs, shared)
        else:
            self._commit(runs, settlements, shared)
        self._shell.stop_if_due()

    def _may_share(self, task: ClaimedTask) -> bool:
        """Whether it may join a batch. It must be known to be fast: other runs hold locks."""
        spec = self._registry.get(task.name)
        if spec is None or not spec.batched or task.runs_alone:
            return False
        limited = not spec.keeps_timeout and self._limits.timeout_s(task, spec) is not None
        return self._run_times.is_fast(task.name) and (can_limit() or not limited)

    def _one(self, run: ActiveRun, shared: SharedTransaction) -> Settlement:
        """Call one handler. While it runs, the slot names it alone."""
        task = run.task
        spec = self._registry.get(task.name)
        assert spec is not None  # noqa: S101  it may share
        announced = self._shell.start(run, self._limits.hard_timeout_s(task, spec))
        try:
            limit = self._limits.timeout_s(task, spec)
            deadline = None if limit is None else run.since + limit
            share = shared.share()
            context = TaskContext(run, share, deadline, self._runner.log_prefix, commits=False)
            try:
                settlement = self._invocation.make(run, spec, context, limit)
            finally:
                context.close()
            share.end()
            self._shell.learn(run)
            return run.said(settlement)
        finally:
            self._shell.finish(announced)

    def _commit(
        self, runs: list[ActiveRun], settlements: list[Settlement], shared: SharedTransaction
    ) -> None:
        """All effects, outcomes and moves in one commit, or none of them."""
        committing = False
        try:
            if not all(self._inflight.begin_commit(run.task.fence) for run in runs):
                shared.abandon()  # let go of, all at once: this process ends
                return
            states = self._settle(settlements, shared)
            if len(states) == len(settlements):
                committing = True
                shared.commit()
        except BaseException as error:
            shared.abandon()
            if committing and is_unanswered(error):  # its effects may be gone, or stand
                for run in runs:
                    self._inflight.give_back(run.task, UNANSWERED_WAIT, suspect=True)
            else:
                self._each(runs, shared)
            return
        if not committing:
            shared.abandon()
            self._each(runs, shared)
            return
        self._inflight.drop(*(run.task.fence for run in runs))
        shared.close()
        self._most = min(MOST, 2 * self._most)
        tell_settled(settlements, states)

    def _settle(self, settlements: list[Settlement], shared: SharedTransaction) -> dict[int, State]:
        """Settle; what is left is tried once more: our housekeeper may hold a row for a moment."""
        states = shared.settle(settlements)
        left = [s for s in settlements if s.fence.task_id not in states]
        if left:
            self.pause(MOMENT_S)
            states |= shared.settle(left)
        return states

    def _each(self, runs: list[ActiveRun], shared: SharedTransaction) -> None:
        """Run them again, each in a transaction of its own; the next batches are smaller.

        If one of them ended the transaction, they fail instead: what they wrote by then may stand.
        """
        self._most = max(1, len(runs) // 2)
        if shared.ended:
            for run in runs:
                self._runner.fail(run, ENDED)
            return
        log.info("a batch of %s is run again one by one", len(runs))
        for run in runs:
            run.commits = False
            if self._inflight.over:
                self._inflight.give_back(run.task, timedelta(0))
            else:
                self._runner.run(run)
