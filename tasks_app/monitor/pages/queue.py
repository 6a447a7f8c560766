"""Queue: why it stands still, what waits in it, who serves it, and what holds its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration
from tasks_app.domain.flow_control.fair_share import Shares
from tasks_app.domain.queues.queue import Queue
from tasks_app.domain.statistics.unkept import Unkept
from tasks_app.domain.tasks.states import State
from tasks_app.monitor.pages.flow_control import (
    BreakerLine,
    LimitLine,
    LockLine,
    breakers,
    limits_of,
    locks,
)
from tasks_app.monitor.pages.queues import NameLine, QueueLine, name_lines, surroundings
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.flow_control import fair_queues as fair
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics.unkept import unkept
from tasks_app.pool.tables import PENDING

MOST_WORKERS, MOST_KEYS, MOST_WAITING = 100, 100, 1_000
_SHARES = text(f"""
    SELECT coalesce(p.fair_key, '') AS key, count(*) AS number FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.queue = :queue GROUP BY 1
""")
_OURS = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.queue = :queue
""")


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What operators say of a queue, in the words of a change."""

    paused_since: datetime | None
    reason: str | None
    resume_at: datetime | None
    windows: tuple[str, ...]
    opens_at: datetime | None
    gate: str
    """The condition under which it is open, in words; empty: it has none."""
    running_below: int | None
    waiting_below: str | None
    retry: str | None
    max_attempts: int | None
    timeout: str | None
    hard_timeout: str | None


@dataclass(frozen=True, slots=True)
class Serving:
    """A child that serves the queue."""

    owner: str
    node: str
    threads: int
    running: int
    """Tasks of any of its queues."""
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class ShareLine:
    """A fair key of the queue."""

    key: str
    """Empty: tasks without one."""
    weight: float
    share: float
    """Of what is done while all of these keys wait."""
    waiting: int | None
    """None: those without a key are not counted."""
    more: bool
    running: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    """One queue."""

    at: datetime
    line: QueueLine
    every: str | None
    """Why every queue stands still; None: they do not."""
    rules: QueueRules | None
    names: tuple[NameLine, ...]
    workers: tuple[Serving, ...]
    start: str
    """How to start one."""
    limits: tuple[LimitLine, ...]
    weights: dict[str, float] | None
    """Of fair keys other than 1; None: it is not shared."""
    shares: tuple[ShareLine, ...]
    breakers: tuple[BreakerLine, ...]
    """Those that its tasks depend on."""
    locks: tuple[LockLine, ...]
    """Those that its tasks hold or wait for."""
    unkept: Unkept | None
    """Successes that left no row."""


def queue_page(connection: Connection, queue: str, settings: Settings) -> QueuePage:
    """Return what is known of a queue, be it nothing."""
    at = instant(connection)
    around = surroundings(connection, settings)
    lines = name_lines(connection, queue=queue)
    names = [line.name for line in lines]
    found = around.settings.get(queue)
    weights = fair.fair_queues(connection).get(queue)
    serving = [
        Serving(each.owner, each.node, each.threads, len(each.running), each.seen_at)
        for each in heartbeats.live(connection, settings.lease)
        if queue in each.queues
    ]
    held = locks(connection, at)
    ids = [each.task_id for each in held if each.task_id]
    ours = set(connection.execute(_OURS, {"ids": ids, "queue": queue}).scalars())
    return QueuePage(
        at=at,
        line=around.line(queue, lines),
        every=around.every,
        rules=None if found is None else _rules(found),
        names=tuple(lines),
        workers=tuple(serving[:MOST_WORKERS]),
        start=heartbeats.run_by(connection, settings.lease).start_worker(queue),
        limits=limits_of(connection, around.limits, queue, names),
        weights=weights,
        shares=() if weights is None else _shares(connection, queue, weights),
        breakers=tuple(each for each in breakers(connection) if {*names} & {*each.names}),
        locks=tuple(each for each in held if each.task_id in ours),
        unkept=unkept(connection, queue=queue),
    )


def _rules(found: Queue) -> QueueRules:
    return QueueRules(
        paused_since=found.paused_since,
        reason=found.reason,
        resume_at=found.resume_at,
        windows=tuple(map(str, found.windows)),
        opens_at=found.opens_at,
        gate=found.gate,
        running_below=found.running_below,
        waiting_below=None if found.waiting_below is None else format_duration(found.waiting_below),
        retry=found.retry,
        max_attempts=found.max_attempts,
        timeout=_span(found.timeout_ms),
        hard_timeout=_span(found.hard_timeout_ms),
    )


def _span(ms: int | None) -> str | None:
    return None if ms is None else format_duration(timedelta(milliseconds=ms))


def _shares(connection: Connection, queue: str, weights: dict[str, float]) -> tuple[ShareLine, ...]:
    lines, _ = fair.lines(connection, queue)
    found = connection.execute(_SHARES, {"queue": queue})
    running = {row.key: row.number for row in found}
    waiting_keys = {line.key for line in lines if line.key}
    keys = sorted({*waiting_keys, *running, *weights})[:MOST_KEYS]
    waiting = fair.waiting(connection, queue, [key for key in keys if key], MOST_WAITING + 1)
    shares, among = Shares(weights), {*waiting_keys, *running} or set(keys)
    shown = [
        ShareLine(
            key=key,
            weight=weights.get(key, 1.0),
            share=shares.share(key, among) if key in among else 0.0,
            waiting=min(waiting[key], MOST_WAITING) if key else None,
            more=waiting.get(key, 0) > MOST_WAITING,
            running=running.get(key, 0),
        )
        for key in keys
    ]
    return tuple(sorted(shown, key=lambda each: (-(each.waiting or 0), each.key)))
