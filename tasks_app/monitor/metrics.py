"""Metrics: the state of the pool as Prometheus reads it, collected once for all who scrape."""

from __future__ import annotations

import base64
import hmac
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.statistics import OTHER, CountedOutcome, merge_histograms
from tasks_app.monitor import metric_catalogue as m
from tasks_app.monitor.metric_catalogue import CONTENT_TYPE, Metric, Sample, histogram, render
from tasks_app.pool import events, flows, metrics
from tasks_app.pool.connection.sessions import read_only_transaction
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.retention import has_strays
from tasks_app.pool.schema import current, newest
from tasks_app.pool.statistics.totals import totals as read_totals
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.errors import sqlstate

KEEP_S = 2.0
LONGEST = timedelta(seconds=2)  # of one statement; a part that takes longer is left out
logger = logging.getLogger(__name__)


class HasEngine(Protocol):
    @property
    def engine(self) -> Engine: ...


class MetricsReader:
    """Reads at most once in ``KEEP_S``; a call during a read waits for its answer."""

    def __init__(self, database: HasEngine, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._lock = threading.Lock()
        self._text = ""
        self._read_at: float | None = None

    def read(self) -> str:
        """Return the metrics as text; without the database, ``tasks_app_up 0``."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= KEEP_S:
                self._text = render(self._samples())
                self._read_at = time.monotonic()
            return self._text

    def _samples(self) -> Iterator[Sample]:
        whole = True
        for name, collect in PARTS.items():
            started = time.monotonic()
            found: list[Sample] | None = None
            try:  # in a transaction of its own: the other parts survive its failure
                with read_only_transaction(self._database.engine, LONGEST) as connection:
                    found = list(collect(connection, self._settings))
            except SQLAlchemyError as error:
                kind = type(error).__name__
                logger.warning("metrics: cannot read %s: %s %s", name, kind, sqlstate(error))
                whole = False
            yield from found or ()
            yield Sample(m.READ_UP, found is not None, (name,))
            yield Sample(m.READ_SECONDS, time.monotonic() - started, (name,))
        yield Sample(m.UP, whole)


PATH, ALIVE = "/metrics", "/healthz"


def check_address(address: str, auth: str) -> None:
    """Refuse an address that other machines reach without a password."""
    if auth and not all(auth.partition(":")):
        raise ConfigurationError("TASKS_APP_METRICS_AUTH is wrong: write it as name:password.")
    if not auth and not is_local(address):
        raise ConfigurationError(
            f"Metrics have no password, and {address} is an address that others can reach. "
            "Set TASKS_APP_METRICS_AUTH=name:password, or use --address 127.0.0.1."
        )


class MetricsServer(ThreadingHTTPServer):
    """Answers ``/metrics`` from one reader; ``/healthz`` without the database."""

    daemon_threads = True

    def __init__(self, address: str, port: int, reader: MetricsReader, auth: str = "") -> None:
        check_address(address, auth)
        self.reader = reader
        self.wanted = f"Basic {base64.b64encode(auth.encode()).decode()}" if auth else ""
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "tasks-app", ""
    timeout = 10  # seconds, for a slow client

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == ALIVE:
            self._answer(HTTPStatus.OK, "alive\n")
        elif not self._is_authorized():
            self._answer(HTTPStatus.UNAUTHORIZED, "Give a name and a password.\n")
        elif path == PATH:
            self._answer(HTTPStatus.OK, self.server.reader.read())
        else:
            self._answer(HTTPStatus.NOT_FOUND, f"There is only {PATH}.\n")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        logger.debug(format, *args)

    def _is_authorized(self) -> bool:
        given, wanted = self.headers.get("Authorization", ""), self.server.wanted
        return hmac.compare_digest(given.encode(), wanted.encode()) or not wanted

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="tasks_app"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


LATELY, PATIENCE = timedelta(minutes=5), timedelta(minutes=1)
MOST_DEPENDENCIES = 100
Samples = Iterator[Sample]
MOST_HISTOGRAMS = 100  # names, and queues, with a histogram of their own: those seen first
_RANKS = {leader_lease.Rank.BEAT: "beat", leader_lease.Rank.STANDBY: "standby"}
_EVENTS = {
    CountedOutcome.STALE: m.STALE_WRITES,
    CountedOutcome.DUPLICATE: m.DUPLICATES,
    CountedOutcome.LEFT: m.RUNS_LEFT,
}


def waiting(connection: Connection, _settings: Settings) -> Samples:
    due: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    kinds: Counter[str] = Counter()
    for queue in metrics.waiting_tasks(connection):
        yield Sample(m.PENDING, queue.pending, (queue.queue,))
        due[queue.queue] += queue.due
        oldest[queue.queue] = max(0.0, float(queue.oldest or 0))
    for parked in metrics.parked_tasks(connection):
        due[parked.queue] += parked.aside
        oldest[parked.queue] = max(oldest.get(parked.queue, 0.0), float(parked.oldest))
        kinds[parked.kind] += parked.number
    for name, number in due.items():
        yield Sample(m.DUE, number, (name,))
        yield Sample(m.OLDEST_DUE, oldest[name], (name,))
    for kind, number in sorted(kinds.items()):
        yield Sample(m.PARKED, number, (kind,))


def running(connection: Connection, _settings: Settings) -> Samples:
    for each in metrics.running_tasks(connection):
        yield Sample(m.RUNNING, each.number, (each.queue,))
        yield Sample(m.LONGEST, max(0.0, float(each.longest or 0)), (each.queue,))
        yield Sample(m.OVERDUE, each.overdue, (each.queue,))
        yield Sample(m.OVERDUE_FOR, each.overdue_for, (each.queue,))
    for failed in metrics.failed_tasks(connection, LATELY):
        yield Sample(m.ERRORS, failed.number, (failed.queue,))
        yield Sample(m.ERRORS_LATELY, failed.lately, (failed.queue,))


def dispatch(connection: Connection, _settings: Settings) -> Samples:
    refused: datetime | None = None
    for name in (leader_lease.SCAN, leader_lease.MAINTAIN):
        duty = leader_lease.read_lease(connection, name)
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
    span = database_now(connection) - refused if refused else timedelta(0)
    yield Sample(m.REFUSED, max(0.0, span.total_seconds()))


def workers(connection: Connection, settings: Settings) -> Samples:
    found = metrics.count_workers(connection, settings.lease)
    for state in ("live", "stopping", "silent"):
        yield Sample(m.WORKERS, getattr(found, state), (state,))
    yield Sample(m.THREADS, found.threads)
    yield Sample(m.SILENCE, max(0.0, float(found.silence)))
    for queue, number in metrics.workers_by_queue(connection, settings.lease).items():
        yield Sample(m.SERVED, number, (queue,))


def held_back(connection: Connection, _settings: Settings) -> Samples:
    now = database_now(connection)
    for paused in queue_settings.find_pauses(connection):
        yield Sample(m.PAUSED, max(0.0, (now - paused.since).total_seconds()), (paused.queue,))
    for queue in queue_settings.find_queues(connection):
        if queue.windows or queue.gate:
            yield Sample(m.OPEN, queue.is_open and queue.shut is None, (queue.queue,))
    for each in circuit_breakers.find_breakers(connection)[:MOST_DEPENDENCIES]:
        name = each.breaker.dependency
        for possible in BreakerState:
            yield Sample(m.BREAKER, each.state is possible, (name, str(possible)))
        yield Sample(m.BREAKER_HELD, each.held, (name,))
    for limit in metrics.limits_in_use(connection):
        yield Sample(m.LIMIT_MOST, limit.most, (limit.kind, limit.target))
        yield Sample(m.LIMIT_RUNNING, limit.running, (limit.kind, limit.target))
    schedules = metrics.count_schedules(connection, PATIENCE)
    for state in ("enabled", "disabled", "broken"):
        yield Sample(m.SCHEDULES, getattr(schedules, state), (state,))
    for state, number in flows.count_open(connection).items():
        yield Sample(m.FLOWS, number, (state,))
    waits = events.count_waits(connection)
    yield Sample(m.EVENT_WAITS, waits.number)
    yield Sample(m.OLDEST_EVENT_WAIT, waits.oldest.total_seconds() if waits.oldest else 0)
    yield Sample(m.MISSED, schedules.missed)
    yield Sample(m.SCHEDULE_LATE, schedules.late)


def tables(connection: Connection, _settings: Settings) -> Samples:
    for size in metrics.table_sizes(connection):
        yield Sample(m.TABLE_BYTES, size.table_bytes, (size.name,))
        yield Sample(m.INDEX_BYTES, size.index_bytes, (size.name,))
        yield Sample(m.ROWS, size.rows, (size.name,))
        yield Sample(m.DEAD, size.dead, (size.name,))
    yield Sample(m.SNAPSHOT, metrics.snapshot_age(connection))
    spans = [each.open_for.total_seconds() for each in diagnostics.open_transactions(connection)]
    yield Sample(m.OPEN_FOR, max([0.0, *spans]))
    yield Sample(m.HORIZON, metrics.days_partitioned_ahead(connection))
    yield Sample(m.STRAYS, has_strays(connection))


def versions(connection: Connection, _settings: Settings) -> Samples:
    schema = current(connection) or "none"
    yield Sample(m.INFO, 1, (version("tasks_app"), schema))
    yield Sample(m.CURRENT, schema == newest())


def totals(connection: Connection, _settings: Settings) -> Samples:
    found = read_totals(connection)
    events = dict.fromkeys(_EVENTS, 0)
    for each in found:
        if each.outcome in events:
            events[each.outcome] += each.number
        elif each.outcome is not CountedOutcome.UNKEPT:
            labels = (each.name, each.queue, each.outcome.name.lower())
            yield Sample(m.OUTCOMES, each.number, labels)
    for outcome, number in events.items():
        yield Sample(_EVENTS[outcome], number)
    done = [each for each in found if each.outcome is CountedOutcome.DONE]
    yield from _histograms(m.WAITED, ((t.queue, t.waits, t.wait_ms) for t in done))
    yield from _histograms(m.RAN, ((t.name, t.runs, t.run_ms) for t in done))
    if (given := metrics.ids_given(connection)) is not None:
        yield Sample(m.CREATED, given)


def _histograms(metric: Metric, found: Iterable[tuple[str, Sequence[int], int]]) -> Samples:
    sums: dict[str, tuple[list[int], int]] = {}
    for key, buckets, ms in found:
        label = key if key in sums or len(sums) < MOST_HISTOGRAMS else OTHER
        before, sum_ms = sums.get(label, ([], 0))
        sums[label] = merge_histograms(before, buckets), sum_ms + ms
    for label, (counts, sum_ms) in sums.items():
        yield from histogram(metric, counts, sum_ms, (label,))


PARTS: Mapping[str, Callable[[Connection, Settings], Samples]] = {
    each.__name__: each
    for each in (versions, waiting, running, dispatch, totals, workers, held_back, tables)
}
