"""Queues: what waits, runs and fails in them, and one queue: why it stands still, who serves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration
from tasks_app.domain.flow_control.admission import Shares
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.queues import Queue, queue_status
from tasks_app.domain.statistics import Unkept
from tasks_app.domain.tasks.states import State
from tasks_app.monitor.pages import flow_control
from tasks_app.pool import metrics
from tasks_app.pool.flow_control import fair_queues as fair
from tasks_app.pool.flow_control import order_and_limits, queue_settings
from tasks_app.pool.fragments.conditions import QUEUES
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics.read import unkept
from tasks_app.pool.tables import ERROR, EVERY_QUEUE, NOW, PENDING, database_now

MOST_SHOWN = 200
FAILED_WITHIN = timedelta(hours=24)
MOST = 10_000  # rows of a queue that are counted: there may be millions


@dataclass(frozen=True, slots=True)
class NameLine:
    queue: str
    name: str
    pending: int
    due: int
    oldest_due_at: datetime | None
    running: int
    failed: int  # within a day


@dataclass(frozen=True, slots=True)
class QueueLine:
    queue: str
    runs: bool
    paused: bool  # by itself; ``words`` also name a pause of every queue
    words: str  # that it runs, or why it does not
    reason: str
    until: datetime | None  # of its pause
    pending: int
    more: bool  # more than ``pending`` wait; ``due`` is of those that were counted
    due: int
    oldest_due_at: datetime | None
    running: int
    failed: int  # within a day
    children: int  # living ones that serve it
    most: int | None  # how many may run at a time
    shared: bool  # by fair keys


@dataclass(frozen=True, slots=True)
class Queues:
    at: datetime
    filters: dict[str, str]
    every: str | None  # why every queue stands still; None: they do not
    lines: tuple[QueueLine, ...]
    more: bool  # not all that fit are shown
    breakers: tuple[flow_control.BreakerLine, ...]
    limits: tuple[flow_control.LimitLine, ...]
    limit_number: int  # all there are
    locks: tuple[flow_control.LockLine, ...]


def queues(connection: Connection, filters: dict[str, str], settings: Settings) -> Queues:
    at = database_now(connection)
    around = _surroundings(connection, settings)
    counts: dict[str, list[NameLine]] = {}
    for each in name_lines(connection):
        counts.setdefault(each.queue, []).append(each)
    own = [each.target for each in around.limits if each.kind is GateKind.QUEUE]
    known = {*counts, *around.settings, *around.children, *own, *around.shared} - {EVERY_QUEUE}
    part = filters.get("text", "").lower()
    lines = [around.line(name, counts.get(name, ())) for name in known if part in name.lower()]
    lines.sort(key=lambda x: (x.runs and x.children > 0, -x.due, -x.pending, x.queue))
    return Queues(
        at=at,
        filters=filters,
        every=around.every,
        lines=tuple(lines[:MOST_SHOWN]),
        more=len(lines) > MOST_SHOWN,
        breakers=flow_control.breakers(connection),
        limits=flow_control.all_limits(connection, around.limits),
        limit_number=len(around.limits),
        locks=flow_control.locks(connection, at),
    )


@dataclass(frozen=True, slots=True)
class _Surroundings:
    settings: dict[str, Queue]
    children: dict[str, int]
    limits: list[Limit]
    shared: Collection[str]

    @property
    def every(self) -> str | None:
        found = self.settings.get(EVERY_QUEUE)
        return None if found is None else queue_status(found)

    def line(self, queue: str, counts: Iterable[NameLine]) -> QueueLine:
        some = list(counts)
        found = self.settings.get(queue)
        pending = sum(each.pending for each in some)
        own = (GateKind.QUEUE, queue)
        most = [each.most for each in self.limits if (each.kind, each.target) == own]
        words = "runs" if found is None else queue_status(found)
        return QueueLine(
            queue=queue,
            runs=(found is None or found.runs) and self.every is None,
            paused=found is not None and found.paused_since is not None,
            words=words if self.every is None else f"every queue is {self.every}",
            reason=(found.reason or "") if found else "",
            until=found.resume_at if found else None,
            pending=min(pending, MOST),
            more=pending > MOST,
            due=sum(each.due for each in some),
            oldest_due_at=min((x.oldest_due_at for x in some if x.oldest_due_at), default=None),
            running=sum(each.running for each in some),
            failed=sum(each.failed for each in some),
            children=self.children.get(queue, 0),
            most=most[0] if most else None,
            shared=queue in self.shared,
        )


def _surroundings(connection: Connection, settings: Settings) -> _Surroundings:
    return _Surroundings(
        settings={each.queue: each for each in queue_settings.find_queues(connection)},
        children=metrics.workers_by_queue(connection, settings.lease),
        limits=order_and_limits.all_limits(connection),
        shared=fair.fair_queues(connection),
    )


AT_ONCE = 150_000  # waiting tasks read in one pass, a quarter of the cost of a pass per queue
_COUNTED = f"""
    p.queue, p.name, count(*) AS pending, count(*) FILTER (WHERE p.due_at <= {NOW}) AS due,
    min(p.due_at) FILTER (WHERE p.due_at <= {NOW}) AS oldest
"""
_ALL_WAITING = text(f"""
    SELECT {_COUNTED} FROM (
        SELECT p.queue, p.name, p.due_at FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' LIMIT {AT_ONCE + 1}) AS p
    GROUP BY p.queue, p.name
""")
_WAITING_IN = text(f"""
    SELECT {_COUNTED} FROM unnest(CAST(:queues AS text[])) AS q(queue) CROSS JOIN LATERAL (
        SELECT p.queue, p.name, p.due_at FROM {PENDING} p
        WHERE p.queue = q.queue AND p.state = '{State.PENDING}'
        ORDER BY p.priority, p.scan_at LIMIT {MOST + 1}) AS p
    GROUP BY p.queue, p.name
""")
_RUNNING = text(f"""
    SELECT queue, name, count(*) AS number FROM {PENDING}
    WHERE state = '{State.RUNNING}' AND (CAST(:queue AS text) IS NULL OR queue = :queue)
    GROUP BY queue, name
""")
_FAILED = text(f"""
    SELECT queue, name, count(*) AS number FROM (
        SELECT e.queue, e.name FROM {ERROR} e
        WHERE e.finished_at > {NOW} - CAST(:within AS interval)
          AND (CAST(:queue AS text) IS NULL OR e.queue = :queue) LIMIT {MOST + 1}) AS e
    GROUP BY queue, name
""")


def name_lines(connection: Connection, *, queue: str | None = None) -> list[NameLine]:
    """Count tasks by queue and name, of one queue or of all; those with most due come first."""
    values = {"within": FAILED_WITHIN, "queue": queue, "now": None}
    waiting = {(r.queue, r.name): r for r in _waiting(connection, queue)}
    running = {(r.queue, r.name): r.number for r in connection.execute(_RUNNING, values)}
    failed = {(r.queue, r.name): r.number for r in connection.execute(_FAILED, values)}
    found = []
    for place in {*waiting, *running, *failed}:
        row = waiting.get(place)
        pending, due, oldest = (row.pending, row.due, row.oldest) if row else (0, 0, None)
        others = running.get(place, 0), failed.get(place, 0)
        found.append(NameLine(*place, pending, due, oldest, *others))
    return sorted(found, key=lambda x: (-x.due, -x.failed, -x.pending, x.queue, x.name))


def _waiting(connection: Connection, queue: str | None) -> list[Row[Any]]:
    """Count what waits; of a queue with more than MOST only those that go first."""
    if queue is not None:
        return [*connection.execute(_WAITING_IN, {"queues": [queue], "now": None})]
    rows = connection.execute(_ALL_WAITING, {"now": None}).all()
    numbers: Counter[str] = Counter()
    for row in rows:
        numbers[row.queue] += row.pending
    crowded = [queue for queue, number in numbers.items() if number > MOST]
    if numbers.total() > AT_ONCE:
        crowded = list(connection.execute(text(QUEUES)).scalars())
    counted = [row for row in rows if row.queue not in crowded]
    if not crowded:
        return counted
    return [*counted, *connection.execute(_WAITING_IN, {"queues": crowded, "now": None})]


MOST_WORKERS, MOST_KEYS, MOST_WAITING = 100, 100, 1_000


@dataclass(frozen=True, slots=True)
class QueueRules:
    """A queue's settings, as a change takes them."""

    paused_since: datetime | None
    reason: str | None
    resume_at: datetime | None
    windows: tuple[str, ...]
    opens_at: datetime | None
    gate: str  # the condition under which it is open, in words; empty: it has none
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
    running: int  # tasks of any of its queues
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class ShareLine:
    """A fair key of the queue."""

    key: str  # empty: tasks without one
    weight: float
    share: float  # of what is done while all of these keys wait
    waiting: int | None  # None: those without a key are not counted
    more: bool
    running: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    at: datetime
    line: QueueLine
    every: str | None  # why every queue stands still; None: they do not
    rules: QueueRules | None
    names: tuple[NameLine, ...]
    workers: tuple[Serving, ...]
    start: str  # how to start one
    limits: tuple[flow_control.LimitLine, ...]
    weights: dict[str, float] | None  # of fair keys other than 1; None: it is not shared
    shares: tuple[ShareLine, ...]
    breakers: tuple[flow_control.BreakerLine, ...]  # those that its tasks depend on
    locks: tuple[flow_control.LockLine, ...]  # those that its tasks hold or wait for
    unkept: Unkept | None  # successes that left no row


_OURS = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.queue = :queue
""")


def queue_page(connection: Connection, queue: str, settings: Settings) -> QueuePage:
    at = database_now(connection)
    around = _surroundings(connection, settings)
    lines = name_lines(connection, queue=queue)
    names = [line.name for line in lines]
    found = around.settings.get(queue)
    weights = fair.fair_queues(connection).get(queue)
    serving = [
        Serving(each.owner, each.node, each.threads, len(each.running), each.seen_at)
        for each in heartbeats.live_workers(connection, settings.lease)
        if queue in each.queues
    ]
    held = flow_control.locks(connection, at)
    ids = [each.task_id for each in held if each.task_id]
    ours = set(connection.execute(_OURS, {"ids": ids, "queue": queue}).scalars())
    return QueuePage(
        at=at,
        line=around.line(queue, lines),
        every=around.every,
        rules=_rules(found) if found else None,
        names=tuple(lines),
        workers=tuple(serving[:MOST_WORKERS]),
        start=heartbeats.started_by(connection, settings.lease).start_worker(queue),
        limits=flow_control.limits_of(connection, around.limits, queue, names),
        weights=weights,
        shares=() if weights is None else _shares(connection, queue, weights),
        breakers=tuple(
            each for each in flow_control.breakers(connection) if {*names} & {*each.names}
        ),
        locks=tuple(each for each in held if each.task_id in ours),
        unkept=unkept(connection, queue=queue),
    )


def _rules(found: Queue) -> QueueRules:
    def span(ms: int | None) -> str | None:
        return None if ms is None else format_duration(timedelta(milliseconds=ms))

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
        timeout=span(found.timeout_ms),
        hard_timeout=span(found.hard_timeout_ms),
    )


_SHARES = text(f"""
    SELECT coalesce(p.fair_key, '') AS key, count(*) AS number FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.queue = :queue GROUP BY 1
""")


def _shares(connection: Connection, queue: str, weights: dict[str, float]) -> tuple[ShareLine, ...]:
    lines, _ = fair.fair_lines(connection, queue)
    found = connection.execute(_SHARES, {"queue": queue})
    running = {row.key: row.number for row in found}
    waiting_keys = {line.key for line in lines if line.key}
    keys = sorted({*waiting_keys, *running, *weights})[:MOST_KEYS]
    waiting = fair.count_waiting(connection, queue, [key for key in keys if key], MOST_WAITING + 1)
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
