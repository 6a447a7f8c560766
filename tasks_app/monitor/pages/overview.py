"""Overview: is it well, what waits, what runs, what failed last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Finding, Level
from tasks_app.monitor.checks import locks, schedules, work
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.flow_control.pause import Pause, paused
from tasks_app.pool.pages import overview as rows
from tasks_app.pool.pages.overview import MOST, LastError, NameLine
from tasks_app.pool.runs import heartbeats

FAILED_WITHIN = timedelta(hours=24)
MOST_ERRORS = 8


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
    running: Figure
    failed: Figure
    """Within the last day."""
    oldest_due_at: datetime | None
    children: int
    nodes: tuple[str, ...]
    lines: tuple[NameLine, ...]
    crowded: tuple[str, ...]
    """Queues of which only the first tasks were counted."""
    last_errors: tuple[LastError, ...]
    pauses: tuple[Pause, ...]


def overview(connection: Connection, settings: Settings) -> Overview:
    lines = rows.lines(connection, FAILED_WITHIN)
    workers = heartbeats.live(connection, settings.lease)
    waiting: dict[str, int] = {}
    for line in lines:
        waiting[line.queue] = waiting.get(line.queue, 0) + line.pending
    crowded = tuple(queue for queue, number in waiting.items() if number > MOST)
    failed = sum(line.failed for line in lines)
    return Overview(
        at=instant(connection),
        pending=Figure(sum(line.pending for line in lines), bool(crowded)),
        due=Figure(sum(line.due for line in lines), bool(crowded)),
        running=Figure(sum(line.running for line in lines)),
        failed=Figure(min(failed, MOST), failed > MOST),
        oldest_due_at=min((x.oldest_due_at for x in lines if x.oldest_due_at), default=None),
        children=len(workers),
        nodes=tuple(sorted({worker.node for worker in workers})),
        lines=tuple(lines),
        crowded=crowded,
        last_errors=tuple(rows.last_errors(connection, MOST_ERRORS)),
        pauses=tuple(paused(connection)),
    )


def findings(engine: Engine, settings: Settings) -> tuple[Finding, ...]:
    """Return what is wrong, in the words of doctor, the worst first."""
    checks = (*work.CHECKS, *schedules.CHECKS, *locks.CHECKS)
    found = [each for each in run_checks(checks, engine, settings) if each.level is not Level.OK]
    return tuple(sorted(found, key=lambda each: each.level is not Level.FAIL))
