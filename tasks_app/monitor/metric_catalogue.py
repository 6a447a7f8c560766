"""Every metric with its name, labels and meaning, and Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import attrgetter

from tasks_app.domain.statistics import BOUNDS_MS, OTHER


class Kind(StrEnum):
    GAUGE = "gauge"  # what is true at the instant of the read
    COUNTER = "counter"  # since counting began
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE


_QUEUE = ("queue",)
PENDING = Metric("tasks_app_pending", "Tasks that wait, due or not; at most 100,000.", _QUEUE)
DUE = Metric("tasks_app_due", "Tasks whose time has come, parked ones included.", _QUEUE)
OLDEST_DUE = Metric("tasks_app_oldest_due_seconds", "How long the oldest due task waits.", _QUEUE)
PARKED = Metric("tasks_app_parked", "Due tasks that are set aside, by reason.", ("kind",))
RUNNING = Metric("tasks_app_running", "Tasks that are claimed.", _QUEUE)
LONGEST = Metric("tasks_app_running_longest_seconds", "Duration of the oldest run.", _QUEUE)
OVERDUE = Metric("tasks_app_leases_overdue", "Claimed tasks whose lease is over.", _QUEUE)
OVERDUE_FOR = Metric(
    "tasks_app_lease_overdue_seconds", "How long the oldest of these leases has been over.", _QUEUE
)
ERRORS = Metric("tasks_app_errors", "Tasks in the error pool, of its newest 20,000.", _QUEUE)
ERRORS_LATELY = Metric(
    "tasks_app_errors_last_5m", "Of these, those that failed in the last five minutes.", _QUEUE
)
MESSAGES = Metric("tasks_app_queue_messages", "Messages in the broker, at the last scan.", _QUEUE)
OUTCOMES = Metric(
    "tasks_app_outcomes_total",
    "Runs and tasks by how they ended; retried, released, rescued and snoozed ones go on. Done "
    "ones that left no row are counted, too.",
    ("name", "queue", "outcome"),
    Kind.COUNTER,
)
WAITED = Metric(
    "tasks_app_task_wait_seconds",
    "From due to the start of the run, of tasks that succeeded.",
    _QUEUE,
    Kind.HISTOGRAM,
)
RAN = Metric(
    "tasks_app_task_run_seconds",
    "How long handlers ran, of tasks that succeeded.",
    ("name",),
    Kind.HISTOGRAM,
)
CREATED = Metric(
    "tasks_app_tasks_created_total",
    "Ids given to new tasks, including those of transactions that rolled back.",
    kind=Kind.COUNTER,
)
STALE_WRITES = Metric(
    "tasks_app_stale_writes_total",
    "Outcomes that were refused because the lease was lost: another run has the task.",
    kind=Kind.COUNTER,
)
DUPLICATES = Metric(
    "tasks_app_duplicates_dropped_total",
    "Ids of messages that could not be claimed: claimed elsewhere, over, or held back.",
    kind=Kind.COUNTER,
)
RUNS_LEFT = Metric(
    "tasks_app_runs_left_total",
    "Runs that ended without an outcome, and were given back. Expect none.",
    kind=Kind.COUNTER,
)
WORKERS = Metric(
    "tasks_app_workers", "Worker processes: live, stopping, or silent beyond the lease.", ("state",)
)
THREADS = Metric("tasks_app_worker_threads", "Tasks that live worker processes can run at a time.")
SILENCE = Metric("tasks_app_worker_silence_seconds", "Age of the oldest heartbeat.")
SERVED = Metric("tasks_app_queue_workers", "Live worker processes that serve the queue.", _QUEUE)
DUTY_AGE = Metric(
    "tasks_app_duty_age_seconds", "Time since the duty (scan, maintain) was last done.", ("duty",)
)
DUTY_HELD = Metric(
    "tasks_app_duty_held", "1: a leader of this rank (beat, standby) holds it.", ("duty", "rank")
)
REFUSED = Metric(
    "tasks_app_broker_refused_seconds", "How long the broker has taken no messages; 0: it does."
)
SCHEDULES = Metric("tasks_app_schedules", "Schedules: enabled, disabled, broken.", ("state",))
MISSED = Metric("tasks_app_schedules_missed", "Enabled ones that are late by over a minute.")
SCHEDULE_LATE = Metric("tasks_app_schedule_late_seconds", "How late the latest schedule is.")
FLOWS = Metric(
    "tasks_app_flows", "Open flows: running; stalled, because a step failed.", ("state",)
)
EVENT_WAITS = Metric("tasks_app_event_waits", "Tasks that wait for an event.")
OLDEST_EVENT_WAIT = Metric(
    "tasks_app_oldest_event_wait_seconds", "How long ago the oldest of these waits began."
)
PAUSED = Metric(
    "tasks_app_queue_paused_seconds", "How long the queue has been paused; * is all queues.", _QUEUE
)
OPEN = Metric("tasks_app_queue_open", "0: a window or its load gate holds the queue.", _QUEUE)
BREAKER = Metric(
    "tasks_app_breaker_state", "1 for the state that the breaker is in.", ("dependency", "state")
)
BREAKER_HELD = Metric("tasks_app_breaker_held", "Tasks that it holds back.", ("dependency",))
LIMIT_MOST = Metric("tasks_app_limit_most", "How many may run under the limit.", ("kind", "target"))
LIMIT_RUNNING = Metric(
    "tasks_app_limit_running", "How many run; of a key's limit the fullest key.", ("kind", "target")
)
TABLE_BYTES = Metric("tasks_app_table_bytes", "Size without indexes.", ("table",))
INDEX_BYTES = Metric("tasks_app_index_bytes", "Size of its indexes.", ("table",))
ROWS = Metric("tasks_app_table_rows", "Rows, as the server estimates them.", ("table",))
DEAD = Metric("tasks_app_table_dead_rows", "Rows that vacuum has not removed yet.", ("table",))
SNAPSHOT = Metric(
    "tasks_app_snapshot_age_transactions", "Age of the oldest held snapshot, in transactions."
)
OPEN_FOR = Metric("tasks_app_oldest_transaction_seconds", "Age of the oldest open transaction.")
HORIZON = Metric(
    "tasks_app_partitions_ahead", "Days after today that have a partition; -1: today has none."
)
STRAYS = Metric("tasks_app_default_partition_used", "1: rows lie in the default partition.")
INFO = Metric("tasks_app_info", "Always 1; versions of package and schema.", ("version", "schema"))
CURRENT = Metric("tasks_app_schema_current", "1: the schema is as this version makes it.")
UP = Metric("tasks_app_up", "1: the database answered, and every read succeeded.")
READ_UP = Metric("tasks_app_read_up", "1: this part of the read succeeded.", ("part",))
READ_SECONDS = Metric("tasks_app_read_seconds", "How long this part took.", ("part",))
METRICS = tuple(each for each in list(vars().values()) if isinstance(each, Metric))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf")  # of the buckets, in seconds
MOST_QUEUES = 100  # that a gauge shows by name: producers make queues, and each series costs
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    metric: Metric
    value: float
    labels: tuple[str, ...] = ()  # in the order of the metric's
    suffix: str = ""  # of a histogram: which of its series
    bound: str = ""  # of one of its buckets: the upper bound


def histogram(
    metric: Metric, buckets: Sequence[int], sum_ms: int, labels: tuple[str, ...]
) -> Iterator[Sample]:
    """Yield the series of a histogram; empty buckets at the end may be left out."""
    counts = [*buckets, *[0] * (len(BOUNDS) - len(buckets))]
    number = 0
    for bound, number in zip(BOUNDS, accumulate(counts), strict=True):
        yield Sample(metric, number, labels, "_bucket", bound)
    yield Sample(metric, sum_ms / 1000, labels, "_sum")
    yield Sample(metric, number, labels, "_count")


def render(samples: Iterable[Sample]) -> str:
    """Write Prometheus' text format, by metric in the order of the catalogue."""
    found: dict[Metric, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        if metric in found:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [_line(sample) for sample in _bounded(metric, found[metric])]
    return "\n".join(lines) + "\n"


def _bounded(metric: Metric, samples: list[Sample]) -> list[Sample]:
    """Return the most extreme MOST_QUEUES queues of a gauge, and the others as one sample."""
    if metric.labels != ("queue",) or metric.kind is not Kind.GAUGE or len(samples) <= MOST_QUEUES:
        return samples
    rising = metric is OPEN  # there 0 is the extreme
    ordered = sorted(samples, key=attrgetter("value"), reverse=not rising)
    others = [float(each.value) for each in ordered[MOST_QUEUES:]]
    combine = min if rising else max if metric.name.endswith("_seconds") else sum
    return [*ordered[:MOST_QUEUES], Sample(metric, combine(others), (OTHER,))]


def _line(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
    if sample.bound:
        labels += f',le="{sample.bound}"'
    name = sample.metric.name + sample.suffix
    value = float(sample.value)
    shown = str(int(value)) if value.is_integer() else repr(round(value, 3))
    return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"
