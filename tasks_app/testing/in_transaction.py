"""A drain in the transaction of a test: claim, run and settle on its one connection.

The parts are a worker's own. What would be a commit is the release of a savepoint, so that all of
it ends with the rollback of the test.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.flow_control.order_and_limits import in_front
from tasks_app.pool.runs.claim_next import claim_next
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.db.pending_writes import PendingWrite
from tasks_app.runtime.execution.failure_policy import FailurePolicy
from tasks_app.runtime.execution.notices import notices_of
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.flow_control.breakers import Breakers, bring_in_breakers
from tasks_app.runtime.flow_control.dependency_report import DependencyReport
from tasks_app.runtime.handlers.active_run import ActiveRun
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_claim
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.leader.sweeper import Sweeper
from tasks_app.runtime.locks.run_locks import LocksOfChild
from tasks_app.runtime.schedules.declared import bring_in_schedules
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.testing.collecting import RunCollector, collected
from tasks_app.testing.contexts import LocklessContext
from tasks_app.testing.faults import CrashOrdered, layer, rescue
from tasks_app.testing.handler_call import in_own_loop
from tasks_app.testing.one_connection import InlineInvocation, OneConnection
from tasks_app.testing.results import Drained

MOST_RUNS = 100
"""Of one task in one drain."""
OWNER = "tasks_app.testing"
CAUGHT = (Exception, SystemExit, asyncio.CancelledError)
"""What is the outcome of a run. The rest ends the test: an interrupt, or pytest's own."""


class TransactionDrain:
    """One drain."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        registry: Registry,
        queues: Sequence[str],
        middleware: Sequence[Middleware],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._registry = registry
        self._queues = tuple(queues) or registry.queues
        self._database = database = OneConnection(connection)
        self._invocation = InlineInvocation(settings, database, (layer(), *middleware))
        self._policy = FailurePolicy(settings, database, self._invocation)
        self._admission = AdmissionControl(database)
        self._rescuer = Rescuer(settings, database)
        self._sweeper = Sweeper(database)
        self._scheduler = Scheduler(database)
        self._breakers = Breakers(database)
        self._calls = DependencyReport(database, self._invocation.dependencies)
        self._locks = LocksOfChild(settings, database, self._write)
        self._claimer = _claimer(settings, registry)
        self._collector = RunCollector()

    def run(self) -> Drained:
        """Run due tasks until none is left.

        Raises:
            RuntimeError: there is no end of it.
        """
        bring_in_schedules(self._database, self._registry)
        bring_in_breakers(self._database, self._registry)
        runs = Counter[int]()
        with collected() as self._collector:
            while (task := self._next()) is not None:
                runs[task.task_id] += 1
                if runs[task.task_id] > MOST_RUNS:
                    raise RuntimeError(
                        f"{task.name} comes back at once, again and again, and there is no end. "
                        "Let it wait for longer than 0 s, or return."
                    )
                self._carry_out(task)
        return self._collector.drained()

    def _next(self) -> ClaimedTask | None:
        task = self._claimed()
        if task is None:
            self._look()
            task = self._claimed()
        return task

    def _look(self) -> None:
        """Do what a leader does in between."""
        self._breakers.look()
        self._scheduler.run_once()
        self._rescuer.run_once()
        self._sweeper.run_once()
        self._admission.look()

    def _write(self, write: PendingWrite) -> None:
        with self._database.begin() as connection:
            write(connection)

    def _claimed(self) -> ClaimedTask | None:
        token = uuid4()
        with self._database.begin() as connection:
            claimed = claim_next(connection, self._queues, 1, self._claimer, token)
            waiting = [] if claimed else in_front(connection, self._queues, self._claimer.names)
        if waiting:
            claimed = self._admission.claim(waiting, self._claimer, token, 1)
        return claimed[0] if claimed else None

    def _carry_out(self, task: ClaimedTask) -> None:
        spec = self._registry.get(task.name)
        assert spec is not None  # noqa: S101  it was claimed by the names of the registry
        HOOKS.tell([of_claim(NoticeKind.STARTED, task)])
        if spec.is_async and not self._connection.dialect.is_async:
            in_own_loop(self._run, task, spec)
        else:
            self._run(task, spec)
        if self._admission.ended([task.fence]):
            self._admission.pass_on()
        self._calls.tell_failures()
        self._calls.tell()

    def _run(self, task: ClaimedTask, spec: HandlerSpec) -> None:
        transaction = self._invocation.lane(spec).transaction(task.fence)
        run = ActiveRun(task, time.monotonic(), task.cancel_requested)
        in_loop = spec.is_async and self._connection.dialect.is_async
        made = LocklessContext if in_loop else TaskContext  # locks would block the loop
        context = made(run, transaction, None, self._settings.log_prefix, self._locks)
        try:
            with self._database.run(transaction):
                settlement = run.said(self._invocation.make(run, spec, context, None))
                context.close()
                state = transaction.conclude(settlement)
        except CrashOrdered:
            rescue(self._database, task.fence, self._settings.max_crashes)
            return
        except CAUGHT as raised:
            self._collector.raised[task.run] = raised
            settlement = run.said(self._policy.on_handler(task, spec, raised))
            with self._database.begin() as connection:
                state = settle_one(connection, settlement)
        finally:
            context.close()
            context.end_locks()
        if state is None:
            raise RuntimeError(
                f"Task {task.task_id} ({task.name}) was taken from its run: "
                "the handler, or what it called, moved its row."
            )
        HOOKS.tell(notices_of([settlement], {task.task_id: state}))


def _claimer(settings: Settings, registry: Registry) -> Claimer:
    specs = tuple(registry)
    return Claimer(
        OWNER,
        settings.lease,
        tuple(spec.name for spec in specs),
        tuple(spec.max_attempts for spec in specs),
        tuple(spec.at_most_once for spec in specs),
    )
