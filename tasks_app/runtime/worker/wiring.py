"""Wiring: the parts of a child, put together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.run_time_report import RunTimeReport
from tasks_app.runtime.execution.pools import AsyncPool
from tasks_app.runtime.execution.executor import Executor
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.process_guard import ProcessGuard
from tasks_app.runtime.run_times import RunTimes
from tasks_app.runtime.execution.runner import Runner, RunParts
from tasks_app.runtime.execution.settler import LATE_PATIENCE_S, Settler
from tasks_app.runtime.execution.thread_pool import ThreadPool
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.flow_control.dependency_report import DependencyReport
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.handlers.time_limits import TimeLimits
from tasks_app.runtime.identity import Identity
from tasks_app.runtime.inflight.claimant import Claimant
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.inflight.parts import ChildParts
from tasks_app.runtime.json_log import name_worker
from tasks_app.runtime.scan.throttle import PACES, PollPaces
from tasks_app.runtime.scoreboard.location import parent_of
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.tracing.run_logs import ATTEMPTS
from tasks_app.runtime.tracing.kept_lines import KeptLines, take_lines
from tasks_app.runtime.tracing.line_writer import LineWriter
from tasks_app.runtime.tracing.tracing import traced_layers
from tasks_app.runtime.worker.claim_returner import ClaimReturner
from tasks_app.runtime.worker.control_commands import ControlCommands
from tasks_app.runtime.worker.control_inbox import Mailbox
from tasks_app.runtime.worker.housekeeper import Housekeeper
from tasks_app.runtime.worker.lease_renewer import LeaseRenewer
from tasks_app.runtime.worker.reaper import Reaper
from tasks_app.runtime.worker.shutdown import Shutdown


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
    run_times = RunTimes(inflight.wake.set)
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
        settings.async_concurrency, runner.run, inflight.leave, tools.invocation.close
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
