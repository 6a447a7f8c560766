"""From what the database says to samples; one function for each part of a read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from importlib.metadata import version

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.monitor import metric_catalogue as m
from tasks_app.monitor.metrics.exposition import Sample
from tasks_app.monitor.metrics.totals import totals
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control import pause
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool import metrics
from tasks_app.pool.metrics import control
from tasks_app.pool.metrics import storage
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.retention.partitions import has_strays
from tasks_app.pool.schema import current, newest

LATELY, PATIENCE = timedelta(minutes=5), timedelta(minutes=1)
MOST_DEPENDENCIES = 100
Samples = Iterator[Sample]
_RANKS = {leader_lease.Rank.BEAT: "beat", leader_lease.Rank.STANDBY: "standby"}


def waiting(connection: Connection, _settings: Settings) -> Samples:
    """Say what waits; a queue in which nothing is due has waited for nothing."""
    due: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    kinds: Counter[str] = Counter()
    for queue in metrics.waiting(connection):
        yield Sample(m.PENDING, queue.pending, (queue.queue,))
        due[queue.queue] += queue.due
        oldest[queue.queue] = max(0.0, float(queue.oldest or 0))
    for parked in metrics.parked(connection):
        due[parked.queue] += parked.aside
        oldest[parked.queue] = max(oldest.get(parked.queue, 0.0), float(parked.oldest))
        kinds[parked.kind] += parked.number
    for name, number in due.items():
        yield Sample(m.DUE, number, (name,))
        yield Sample(m.OLDEST_DUE, oldest[name], (name,))
    for kind, number in sorted(kinds.items()):
        yield Sample(m.PARKED, number, (kind,))


def running(connection: Connection, _settings: Settings) -> Samples:
    """Say what is claimed, and what has failed."""
    for each in metrics.running(connection):
        yield Sample(m.RUNNING, each.number, (each.queue,))
        yield Sample(m.LONGEST, max(0.0, float(each.longest or 0)), (each.queue,))
        yield Sample(m.OVERDUE, each.overdue, (each.queue,))
        yield Sample(m.OVERDUE_FOR, each.overdue_for, (each.queue,))
    for failed in metrics.failed(connection, LATELY):
        yield Sample(m.ERRORS, failed.number, (failed.queue,))
        yield Sample(m.ERRORS_LATELY, failed.lately, (failed.queue,))


def dispatch(connection: Connection, _settings: Settings) -> Samples:
    """Say what is in the broker, who leads, and whether the broker takes messages."""
    now = instant(connection)
    refused: datetime | None = None
    for name in (leader_lease.SCAN, leader_lease.MAINTAIN):
        duty = leader_lease.read(connection, name)
        marked = name == leader_lease.SCAN and duty and duty.rank == leader_lease.Rank.WORK
        if duty is not None and duty.idle is not None and not marked:
            yield Sample(m.DUTY_AGE, max(0.0, duty.idle.total_seconds()), (name,))
        for rank, word in _RANKS.items():
            held = duty is not None and not duty.free and duty.rank == rank
            yield Sample(m.DUTY_HELD, held, (name, word))
        if duty is not None and name == leader_lease.SCAN:
            refused = duty.refused_since
            for queue, depth in duty.depths.items():
                yield Sample(m.MESSAGES, depth, (queue,))
    yield Sample(m.REFUSED, max(0.0, (now - refused).total_seconds()) if refused else 0)


def workers(connection: Connection, settings: Settings) -> Samples:
    """Say who works, and on which queues."""
    found = control.workers(connection, settings.lease)
    for state in ("live", "stopping", "silent"):
        yield Sample(m.WORKERS, getattr(found, state), (state,))
    yield Sample(m.THREADS, found.threads)
    yield Sample(m.SILENCE, max(0.0, float(found.silence)))
    for queue, number in control.served(connection, settings.lease).items():
        yield Sample(m.SERVED, number, (queue,))


def held_back(connection: Connection, _settings: Settings) -> Samples:
    """Say what operators, windows, breakers and limits hold back, and which schedules are late."""
    now = instant(connection)
    for paused in pause.paused(connection):
        yield Sample(m.PAUSED, max(0.0, (now - paused.since).total_seconds()), (paused.queue,))
    for queue in queue_settings.find(connection):
        if queue.windows or queue.gate:
            yield Sample(m.OPEN, queue.is_open and queue.shut is None, (queue.queue,))
    for each in circuit_breakers.find(connection)[:MOST_DEPENDENCIES]:
        name = each.breaker.dependency
        for possible in BreakerState:
            yield Sample(m.BREAKER, each.state is possible, (name, str(possible)))
        yield Sample(m.BREAKER_HELD, each.held, (name,))
    for limit in control.limits(connection):
        yield Sample(m.LIMIT_MOST, limit.most, (limit.kind, limit.target))
        yield Sample(m.LIMIT_RUNNING, limit.running, (limit.kind, limit.target))
    schedules = control.schedules(connection, PATIENCE)
    for state in ("enabled", "disabled", "broken"):
        yield Sample(m.SCHEDULES, getattr(schedules, state), (state,))
    yield Sample(m.MISSED, schedules.missed)
    yield Sample(m.SCHEDULE_LATE, schedules.late)


def tables(connection: Connection, _settings: Settings) -> Samples:
    """Say what the tables take, and what keeps vacuum away."""
    for size in storage.sizes(connection):
        yield Sample(m.TABLE_BYTES, size.table_bytes, (size.table,))
        yield Sample(m.INDEX_BYTES, size.index_bytes, (size.table,))
        yield Sample(m.ROWS, size.rows, (size.table,))
        yield Sample(m.DEAD, size.dead, (size.table,))
    yield Sample(m.SNAPSHOT, storage.snapshot_age(connection))
    spans = [each.open_for.total_seconds() for each in diagnostics.open_transactions(connection)]
    yield Sample(m.OPEN_FOR, max([0.0, *spans]))
    yield Sample(m.HORIZON, storage.horizon(connection))
    yield Sample(m.STRAYS, has_strays(connection))


def versions(connection: Connection, _settings: Settings) -> Samples:
    """Say which code reads which schema."""
    schema = current(connection) or "none"
    yield Sample(m.INFO, 1, (version("tasks_app"), schema))
    yield Sample(m.CURRENT, schema == newest())


Collect = Callable[[Connection, Settings], Samples]
PARTS: Mapping[str, Collect] = {
    each.__name__: each
    for each in (versions, waiting, running, dispatch, totals, workers, held_back, tables)
}
