"""A child process of a worker, put together from all that it needs to run tasks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.execution.claims import ChildParts, Claimant, Identity
from tasks_app.runtime.execution.executor import Executor
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.execution.invocation import Invocation, ProcessGuard
from tasks_app.runtime.execution.pools import AsyncPool, ThreadPool
from tasks_app.runtime.execution.runner import Runner, RunParts
from tasks_app.runtime.execution.settler import LATE_PATIENCE_S, Settler
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.flow_control.breakers import DependencyReport
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.handlers.time_limits import TimeLimits
from tasks_app.runtime.run_times import RunTimeReport, RunTimes
from tasks_app.runtime.scan import PACES, PollPaces
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
from tasks_app.runtime.worker.housekeeper import (
    ClaimReturner,
    ControlCommands,
    Housekeeper,
    LeaseRenewer,
)
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
        paces: PollPaces = PACES,
    ) -> None:
        """``threads`` bring messages of their own; ``extra_threads`` only run what is claimed."""
        counts = ThreadCounts(threads, extra_threads)
        parts = child_parts(
            settings, registry, slots, queues=queues, node=node, threads=counts, paces=paces
        )
        wiring = wire(parts, slots, middleware, extra_threads)
        self.parts = parts
        self.identity = parts.identity
        self.database = parts.database
        self.inflight = parts.inflight
        self.slot = parts.slot
        self.run_times = wiring.run_times
        self.threads = wiring.threads
        self.executor = wiring.executor
        self.shutdown = wiring.shutdown
        self.renewer = wiring.renewer
        self.housekeeper = wiring.housekeeper
        self._guard = wiring.guard
        self.settler = wiring.settler
        self._reaper = wiring.reaper
        self._async_pool = wiring.executor.async_pool
        self._stopped = threading.Event()
        self.in_hand = False
        """Whether a message is carried out just now. Plain, so that signal handlers may read it."""

    def start(self) -> None:
        """Start the housekeeper. The first heartbeat makes this child known to the scan."""
        self.housekeeper.start()

    def execute(self, ids: Sequence[int], *, wake: bool = False, queue: str | None = None) -> None:
        """Carry out one message of a queue, unless the worker's parent is gone.

        A queue that this child does not serve is none: the message may be forged.
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
        if self._guard.unfit:
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
            self._async_pool.await_room(self.parts.settings.async_concurrency, LOCKED_PAUSE_S)

    def reap(self) -> int:
        """Reap dead siblings now, as the housekeeper would later; return how many could not be.

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
        self.housekeeper.stop(STOP_PATIENCE_S)
        self.threads.join(STOP_PATIENCE_S)
        self._async_pool.close(STOP_PATIENCE_S)
        self.shutdown.drain()
        self.inflight.write_later(
            lambda connection: heartbeats.leave(connection, self.identity.owner)
        )
        try:
            self._write_the_rest()
            self.parts.admission.pass_on()
        except SQLAlchemyError as error:
            kind = type(error).__name__
            log.warning("stopped without the database; its tasks are rescued later: %s", kind)
        if self.inflight.empty:
            self.slot.free()
        ATTEMPTS.tell(last=True)
        flush_traces()
        self.database.dispose()
        self._guard.close()

    def _write_the_rest(self) -> None:
        """Wait a little for rows that somebody holds: what is left behind runs once more."""
        ends = time.monotonic() + STOP_PATIENCE_S
        while True:
            self.settler.flush()
            self.housekeeper.last_round()
            if self.inflight.empty or time.monotonic() >= ends:
                return
            time.sleep(LOCKED_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a child itself talks to."""

    parts: ChildParts
    guard: ProcessGuard
    settler: Settler
    runner: Runner
    run_times: RunTimes
    threads: ThreadPool
    executor: Executor
    reaper: Reaper
    shutdown: Shutdown
    renewer: LeaseRenewer
    housekeeper: Housekeeper


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """How many threads a child has for handlers."""

    messages: int = 1
    """Threads that bring messages of their own."""
    extra: int = 0
    """Threads that only run what is claimed."""


def child_parts(
    settings: Settings,
    registry: Registry,
    slots: Scoreboard,
    *,
    queues: Sequence[str],
    node: str | None,
    threads: ThreadCounts,
    paces: PollPaces = PACES,
) -> ChildParts:
    node = (node or socket.gethostname()).encode("ascii", "replace").decode()
    identity = Identity(
        owner=f"{node[:80]}:{os.getpid()}:{uuid4().hex[:12]}",
        node=node,
        queues=tuple(queues),
        handlers=registry.names,
        threads=threads.messages,
        parent=parent_of(slots),
    )
    name_worker(identity.owner)
    LOG.level = Logged(settings.transitions)
    database = Database(
        settings.database, handlers=threads.messages + threads.extra, prepare=settings.prepare
    )
    admission = AdmissionControl(database)
    inflight = InFlight(
        threads.messages,
        extra=threads.extra,
        places=settings.async_concurrency,
        for_async_pool=registry.is_async,
        ended=admission.ended,
    )
    slot = slots.take(identity.owner)
    return ChildParts(settings, registry, identity, database, slot, inflight, admission, paces)


def _lines_layer(parts: ChildParts) -> tuple[Middleware, ...]:
    settings = parts.settings
    if settings.log_lines == 0:
        return ()
    take_lines()
    writer = LineWriter(parts.inflight.write_later)
    return (KeptLines(settings.log_lines, settings.log_bytes, writer.keep),)


def wire(
    parts: ChildParts,
    slots: Scoreboard,
    middleware: Sequence[Middleware],
    extra_threads: int,
) -> Wiring:
    settings, database, inflight = parts.settings, parts.database, parts.inflight
    watched = parts.identity.parent is not None
    guard = ProcessGuard(replaceable=watched)
    run_times = RunTimes(inflight.housekeeper_wake.set)
    invocation = Invocation(
        settings,
        database,
        guard,
        traced_layers((*_lines_layer(parts), *middleware)),
        parts.registry.plain_lane,
    )
    calls = DependencyReport(database, invocation.dependencies, inflight.take_named_back)
    tools = RunParts(
        guard,
        run_times,
        TimeLimits(settings, watched=watched),
        invocation,
        Settler(database, inflight, min(LATE_PATIENCE_S, settings.lease.total_seconds() / 6)),
        calls,
    )
    runner = Runner(parts, tools)
    threads = ThreadPool(extra_threads, inflight, runner.is_unlimited, runner.carry_out)
    async_pool = AsyncPool(
        settings.async_concurrency, runner.run, inflight.return_unended, tools.invocation.close
    )
    executor = Executor(parts, tools, Claimant(parts), runner, threads, async_pool)
    reaper = Reaper(database, slots, parts.registry, settings)
    shutdown = Shutdown(parts, tools.settler)
    renewer = LeaseRenewer(parts)
    report = RunTimeReport(
        database,
        run_times.snapshot,
        parts.registry,
        threads=1 + extra_threads,
        async_concurrency=settings.async_concurrency,
    )
    commands = ControlCommands(database, Mailbox.beside(slots.path), renewer.renew_soon)
    more_duties: tuple[Callable[[], None], ...] = (
        parts.admission.pass_on,
        executor.fetcher.prepare_statements,
        report.tell,
        commands.carry_out,
        async_pool.look,
        calls.tell,
        runner.locks.renew,
        ATTEMPTS.tell,
    )
    housekeeper = Housekeeper(
        parts, tools.settler, reaper, shutdown, renewer, ClaimReturner(parts), more_duties
    )
    return Wiring(
        parts,
        guard,
        tools.settler,
        runner,
        run_times,
        threads,
        executor,
        reaper,
        shutdown,
        renewer,
        housekeeper,
    )
