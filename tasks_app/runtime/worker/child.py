"""A child process of a worker: how it is put together, and its life."""

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
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.api.built_in import with_ours
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.execution.claims import ChildParts, Identity
from tasks_app.runtime.execution.executor import Executor
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.flow_control.admission import AdmissionControl, LockNames
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.scoreboard import Scoreboard, parent_of
from tasks_app.runtime.tracing.run_logs import (
    ATTEMPTS,
    KeptLines,
    LineWriter,
    name_worker,
    take_lines,
)
from tasks_app.runtime.tracing.tracing import flush_traces, traced_layers
from tasks_app.runtime.worker.control_inbox import Mailbox
from tasks_app.runtime.worker.housekeeper import Housekeeper
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown

log = quiet_logger(__name__)
STOP_PATIENCE_S = 5.0
LOCKED_PAUSE_S = 0.1


class Child:
    """One incarnation, from its slot to its last settle."""

    def __init__(
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
        registry = with_ours(registry)
        node = (node or socket.gethostname()).encode("ascii", "replace").decode()
        self.identity = Identity(
            owner=f"{node[:80]}:{os.getpid()}:{uuid4().hex[:12]}",
            node=node,
            queues=tuple(queues),
            handlers=registry.names,
            threads=threads,
            parent=parent_of(slots),
        )
        name_worker(self.identity.owner)
        LOG.level = Logged(settings.transitions)
        self.database = Database(
            settings.database, handlers=threads + extra_threads, prepare=settings.prepare
        )
        admission = AdmissionControl(self.database, LockNames(self.database, settings, registry))
        self.inflight = InFlight(
            threads,
            extra=extra_threads,
            places=settings.async_concurrency,
            for_async_pool=registry.is_async,
            at_once={spec.name: spec.at_once for spec in registry if spec.at_once > 1},
            ended=admission.ended,
        )
        self.slot = slots.take(self.identity.owner)
        self.parts = ChildParts(
            settings=settings,
            registry=registry,
            identity=self.identity,
            database=self.database,
            slot=self.slot,
            inflight=self.inflight,
            admission=admission,
        )
        if settings.log_lines:
            take_lines()
            keep = LineWriter(self.inflight.write_later).keep
            middleware = (KeptLines(settings.log_lines, settings.log_bytes, keep), *middleware)
        self.executor = Executor(
            self.parts, middleware=traced_layers(middleware), extra_threads=extra_threads
        )
        self.shutdown = Shutdown(self.parts, self.executor.settler)
        self._reaper = Reaper(self.database, slots, registry, settings)
        self.housekeeper = Housekeeper(
            self.parts,
            executor=self.executor,
            reaper=self._reaper,
            shutdown=self.shutdown,
            mailbox=Mailbox.beside(slots.path),
        )
        self._stopped = threading.Event()
        self.in_hand = False
        """Whether a message is carried out just now. Plain, so that signal handlers may read it."""

    def start(self) -> None:
        """Start the housekeeper. The first heartbeat makes this child known to the scan."""
        self.housekeeper.start()

    def execute(self, ids: Sequence[int], *, wake: bool = False, queue: str | None = None) -> None:
        """Carry out one message of a queue, unless the worker's parent is gone.

        A queue that this child does not serve is ignored: the message may be forged.
        """
        if self.identity.orphaned:
            return
        self.in_hand = True
        try:
            queues = self.identity.queues
            own = queue if queue in queues else None
            self.executor.execute(ids, queues, wake=wake, queue=own)
        finally:
            self.in_hand = False
        self.retire_if_unfit()
        if self.shutdown.asked_alone():
            self.stop()
            self.shutdown.end_process(0)

    def retire_if_unfit(self) -> None:
        """Make room for a new process if a handler left this one without descriptors.

        Otherwise it would fail one task after another, so quickly that it took most of them.
        """
        if self.executor.guard.unfit:
            self.stop()
            os.kill(os.getpid(), signal.SIGKILL)

    def await_runs(self) -> None:
        self.executor.threads.join()
        async_pool = self.executor.async_pool
        while async_pool.busy:
            async_pool.await_room(self.parts.settings.async_concurrency, LOCKED_PAUSE_S)

    def reap(self) -> int:
        """Reap dead siblings now, as the housekeeper would later; return how many could not be.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        return self._reaper.reap_dead()

    def stop(self) -> None:
        """Write what is finished, give back what has not started, leave the list."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.inflight.stop()
        self.housekeeper.stop(STOP_PATIENCE_S)
        self.executor.threads.join(STOP_PATIENCE_S)
        self.executor.async_pool.close(STOP_PATIENCE_S)
        self.shutdown.drain()
        self.inflight.write_later(
            lambda connection: heartbeats.remove_heartbeat(connection, self.identity.owner)
        )
        try:
            self._write_the_rest()
            self.parts.admission.wake_after_runs()
        except SQLAlchemyError as error:
            kind = type(error).__name__
            log.warning("stopped without the database; its tasks are rescued later: %s", kind)
        if self.inflight.empty:
            self.slot.free()
        ATTEMPTS.tell(last=True)
        flush_traces()
        self.database.dispose()
        self.executor.guard.close()

    def _write_the_rest(self) -> None:
        """Wait a little for rows that somebody holds: what is left behind runs once more."""
        ends = time.monotonic() + STOP_PATIENCE_S
        while True:
            self.executor.settler.flush()
            self.housekeeper.last_round()
            if self.inflight.empty or time.monotonic() >= ends:
                return
            time.sleep(LOCKED_PAUSE_S)
