"""Overview: is it well, what waits, what runs, by which causes tasks fail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Finding, Level
from tasks_app.monitor.checks import flow_control, locks, schedules, work
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.monitor.checks.due import what_runs
from tasks_app.monitor.pages import errors
from tasks_app.monitor.pages.queues import FAILED_WITHIN, MOST, NameLine, name_lines
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.error_groups import ErrorGroup
from tasks_app.pool.flow_control.pause import Pause, paused
from tasks_app.pool.runs import heartbeats

MOST_CAUSES = 6


@dataclass(frozen=True, slots=True)
class Figure:
    """A number; ``more``: there are more than that."""

    number: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of all queues at one instant."""

    at: datetime
    pending: Figure
    due: Figure
    barred: Figure
    """Those that are due and could not run: a pause, window or breaker holds them, or no worker
    knows them."""
    running: Figure
    failed: Figure
    """Within the last day."""
    oldest_due_at: datetime | None
    """Of those that could run."""
    children: int
    nodes: tuple[str, ...]
    start: str
    """How to start a worker."""
    lines: tuple[NameLine, ...]
    crowded: tuple[str, ...]
    """Queues of which only the first tasks were counted."""
    causes: tuple[ErrorGroup, ...]
    """Of those within the last day the ones with most tasks, those last that are known."""
    more_causes: bool
    pauses: tuple[Pause, ...]


def overview(connection: Connection, settings: Settings) -> Overview:
    lines = name_lines(connection)
    workers = heartbeats.live(connection, settings.lease)
    waiting: dict[str, int] = {}
    for line in lines:
        waiting[line.queue] = waiting.get(line.queue, 0) + line.pending
    crowded = tuple(queue for queue, number in waiting.items() if number > MOST)
    failed = sum(line.failed for line in lines)
    runs = what_runs(connection, settings)
    free = [line for line in lines if runs(line.queue, line.name)]
    due = sum(line.due for line in lines)
    at = instant(connection)
    causes = errors.causes(connection, since=at - FAILED_WITHIN, most=MOST_CAUSES + 1, now=at)
    shown = sorted(causes[:MOST_CAUSES], key=lambda each: each.known_by is not None)
    return Overview(
        at=at,
        pending=Figure(sum(line.pending for line in lines), bool(crowded)),
        due=Figure(due, bool(crowded)),
        barred=Figure(due - sum(line.due for line in free), bool(crowded)),
        running=Figure(sum(line.running for line in lines)),
        failed=Figure(min(failed, MOST), failed > MOST),
        oldest_due_at=min((x.oldest_due_at for x in free if x.oldest_due_at), default=None),
        children=len(workers),
        nodes=tuple(sorted({worker.node for worker in workers})),
        start=heartbeats.run_by(connection, settings.lease).start_worker(),
        lines=tuple(lines),
        crowded=crowded,
        causes=tuple(shown),
        more_causes=len(causes) > MOST_CAUSES,
        pauses=tuple(paused(connection)),
    )


def findings(engine: Engine, settings: Settings) -> tuple[Finding, ...]:
    """Return what is wrong, in the words of doctor, the worst first."""
    checks = (*work.CHECKS, *flow_control.CHECKS, *schedules.CHECKS, *locks.CHECKS)
    found = [each for each in run_checks(checks, engine, settings) if each.level is not Level.OK]
    return tuple(sorted(found, key=lambda each: each.level is not Level.FAIL))
