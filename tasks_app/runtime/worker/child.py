"""A child: one process (or one worker without a broker) with all that it needs to run tasks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.run_time_report import PaceReport
from tasks_app.runtime.execution.async_pool import AsyncPool
from tasks_app.runtime.execution.attempt_log import ATTEMPTS
from tasks_app.runtime.execution.batch_commit import BatchCommit
from tasks_app.runtime.execution.executor import Executor
from tasks_app.runtime.execution.fast_path import FastPath
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.execution.settler import Settler
from tasks_app.runtime.execution.thread_pool import ThreadPool
from tasks_app.runtime.execution.time_limits import Allowance
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.flow_control.dependency_report import DependencyReport
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.identity import Identity
from tasks_app.runtime.inflight.fetcher import Claims
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.inflight.passing_on import PassingOn
from tasks_app.runtime.scoreboard.location import parent_of
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard.slot import Slot
from tasks_app.runtime.worker import shutdown
from tasks_app.runtime.worker.control_commands import ControlCommands
from tasks_app.runtime.worker.control_inbox import Mailbox
from tasks_app.runtime.worker.housekeeper import Housekeeper
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown

log = quiet_logger(__name__)

STOP_PATIENCE_S = 5.0
LOCKED_PAUSE_S = 0.1


class Child:
    """One incarnation, from its slot to its last settle."""

    def __init__(  # noqa: PLR0913  what its worker knows of it, and all that it has
        self,
        settings: Settings,
        registry: Registry,
        slots: Scoreboard,
        *,
        queues: Sequence[str],
        node: str | None = None,
        middleware: Sequence[Middleware] = (),
        threads: int = 1,
        extra_threads: int = 0,
    ) -> None:
        """``threads`` bring messages of their own; ``extra_threads`` only run what is claimed."""
        node = (node or socket.gethostname()).encode("ascii", "replace").decode()
        self._settings = settings
        self.identity = Identity(
            owner=f"{node[:80]}:{os.getpid()}:{uuid4().hex[:12]}",
            node=node,
            queues=tuple(queues),
            handlers=registry.names,
            threads=threads,
            parent=parent_of(slots),
        )
        self.database = Database(
            settings.database, handlers=threads + extra_threads, prepare=settings.prepare
        )
        self._admission = AdmissionControl(self.database)
        places = settings.async_concurrency
        self.inflight = InFlight(
            threads,
            extra=extra_threads,
            places=places,
            for_async_pool=lambda task: registry.is_async(task.name),
            ended=self._admission.ended,
        )
        self._slot = slots.take(self.identity.owner)
        settler = Settler(self.database, self.inflight)
        self._settler = settler
        self._aftermath = ProcessGuard(replaceable=self.identity.parent is not None)
        calls = Invocation(settings, self.database, self._aftermath, middleware)
        allowance = Allowance(settings, watched=self.identity.parent is not None)
        self.runner = Runner(
            settings,
            registry,
            self.database,
            self.inflight,
            self._slot,
            settler,
            self._aftermath,
            calls,
            allowance,
        )
        batches = BatchCommit(
            registry,
            self.database,
            self.inflight,
            self._slot,
            calls,
            self.runner,
            allowance,
            self._aftermath,
        )
        sprints = FastPath(
            registry,
            self.inflight,
            self._slot,
            self.runner,
            allowance,
            self._aftermath,
            batches.carry_out,
        )
        self._async_pool = AsyncPool(places, self.runner.run, calls.close)
        self.threads = ThreadPool(
            extra_threads, self.inflight, self.runner.is_unlimited, sprints.carry_out
        )
        claims = Claims(
            settings, registry, self.database, self.inflight, self.identity.owner, self._admission
        )
        self.executor = Executor(
            settings,
            self.database,
            self.inflight,
            self._slot,
            settler,
            self.runner,
            sprints,
            claims,
            self._async_pool,
            self.threads,
            PassingOn(settings, self.database, self.identity),
        )
        self._reaper = Reaper(self.database, slots, registry, settings)
        self.departure = Shutdown(
            settings, self.database, self.inflight, self._slot, settler, registry
        )
        self._housekeeper = Housekeeper(
            settings,
            self.database,
            self.inflight,
            self._slot,
            settler,
            self._reaper,
            self.departure,
            self.identity,
        )
        report = PaceReport(
            self.database,
            self.runner.pace.snapshot,
            registry,
            threads=1 + extra_threads,
            async_concurrency=places,
        )
        wishes = ControlCommands(
            self.database, Mailbox.beside(slots.path), self._housekeeper.renew_soon
        )
        for duty in (
            self._admission.pass_on,
            *(claims.rehearse, report.tell, wishes.carry_out, self._async_pool.look),
            DependencyReport(self.database, calls.tally).tell,
            self.runner.locks.renew,
            ATTEMPTS.tell,
        ):
            self._housekeeper.also(duty)
        self._stopped = threading.Event()
        self.in_hand = False
        """Whether a message is carried out just now. Plain, so that signal handlers may read it."""

    @property
    def slot(self) -> Slot:
        """This child's record for its parent and its siblings."""
        return self._slot

    def start(self) -> None:
        """Start the housekeeper. The first heartbeat makes this child known to the scan."""
        self._housekeeper.start()

    def execute(self, dispatch_id: int | None, ids: Sequence[int]) -> None:
        """Carry out one message, unless the worker's parent is gone."""
        if self.identity.orphaned:
            return
        self.in_hand = True
        try:
            self.executor.execute(dispatch_id, ids, self.identity.queues)
        finally:
            self.in_hand = False
        self.retire_if_unfit()
        if self.departure.asked_alone():
            self.stop()
            shutdown.end_process(0)

    def retire_if_unfit(self) -> None:
        """Make room for a new process if a handler left this one without descriptors.

        It would fail one task after another, and quickly, and so draw more and more of them.
        """
        if self._aftermath.unfit:
            self.stop()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def runs_aside(self) -> bool:
        """Whether a thread or the event loop is about to end something."""
        return self._async_pool.busy or self.threads.busy

    def await_runs(self) -> None:
        """Wait until threads and event loop have ended what they run."""
        self.threads.join()
        while self._async_pool.busy:
            self._async_pool.await_room(self._settings.async_concurrency, LOCKED_PAUSE_S)

    def reap(self) -> int:
        """Bury the dead now, as the housekeeper does by itself later; return the graves still open.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        return self._reaper.look()

    def stop(self) -> None:
        """Write what is finished, give back what has not started, leave the list."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.inflight.stop()
        self._housekeeper.stop(STOP_PATIENCE_S)
        self.threads.join(STOP_PATIENCE_S)
        self._async_pool.close(STOP_PATIENCE_S)
        self.departure.drain()
        self.inflight.write_later(
            lambda connection: heartbeats.leave(connection, self.identity.owner)
        )
        try:
            self._write_the_rest()
            self._admission.pass_on()
        except SQLAlchemyError as error:
            log.warning("stopped without the database; leases will heal it: %s", type(error))
        if self.inflight.empty:
            self._slot.free()
        ATTEMPTS.tell(last=True)
        self.database.dispose()
        self._aftermath.close()

    def _write_the_rest(self) -> None:
        """Wait a little for rows that somebody holds: what is left behind runs once more."""
        ends = time.monotonic() + STOP_PATIENCE_S
        while True:
            self._settler.flush()
            self._housekeeper.last_round()
            if self.inflight.empty or time.monotonic() >= ends:
                return
            time.sleep(LOCKED_PAUSE_S)
