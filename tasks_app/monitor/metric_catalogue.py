"""Every metric with its name, labels and meaning, and Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import attrgetter

from tasks_app.domain.statistics import BOUNDS_MS, OTHER


class Kind(StrEnum):
    """As Prometheus calls it."""

    GAUGE = "gauge"  # what is true at the instant of the read
    COUNTER = "counter"  # what was, since counting began
    HISTOGRAM = "histogram"  # the same, by how long it took


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE


_QUEUE = ("queue",)
PENDING = Metric("tasks_app_pending", "Tasks that wait, due or not; at most 100,000.", _QUEUE)
DUE = Metric("tasks_app_due", "Tasks whose time has come, parked ones included.", _QUEUE)
OLDEST_DUE = Metric(
    "tasks_app_oldest_due_seconds", "For how long the oldest due task has waited.", _QUEUE
)
PARKED = Metric(
    "tasks_app_parked", "Due tasks that are left alone, by the kind of reason.", ("kind",)
)
RUNNING = Metric("tasks_app_running", "Tasks that are claimed.", _QUEUE)
LONGEST = Metric(
    "tasks_app_running_longest_seconds", "For how long the oldest run has gone on.", _QUEUE
)
OVERDUE = Metric(
    "tasks_app_leases_overdue", "Tasks that are claimed though their lease is over.", _QUEUE
)
OVERDUE_FOR = Metric(
    "tasks_app_lease_overdue_seconds", "For how long the oldest of these leases is over.", _QUEUE
)
ERRORS = Metric("tasks_app_errors", "Tasks in the error pool, of the newest 20,000 there.", _QUEUE)
ERRORS_LATELY = Metric(
    "tasks_app_errors_last_5m", "Of these, how many failed in the last five minutes.", _QUEUE
)
MESSAGES = Metric(
    "tasks_app_queue_messages", "Messages in the broker, as the leader last saw them.", _QUEUE
)
OUTCOMES = Metric(
    "tasks_app_outcomes_total",
    "How often runs and tasks ended so; retried, released, rescued and snoozed ones go on. Done "
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
    "Ids given to new tasks; those of transactions that rolled back are among them.",
    kind=Kind.COUNTER,
)
STALE_WRITES = Metric(
    "tasks_app_stale_writes_total",
    "Outcomes that were refused, as the lease was lost: another run has the task.",
    kind=Kind.COUNTER,
)
DUPLICATES = Metric(
    "tasks_app_duplicates_dropped_total",
    "Ids of messages that could not be claimed: taken by others, over, or held back.",
    kind=Kind.COUNTER,
)
RUNS_LEFT = Metric(
    "tasks_app_runs_left_total",
    "Runs that their child had left without an end, and then gave back. None should be.",
    kind=Kind.COUNTER,
)
WORKERS = Metric(
    "tasks_app_workers", "Worker processes: live, stopping, or silent beyond the lease.", ("state",)
)
THREADS = Metric("tasks_app_worker_threads", "Messages that live worker processes take at a time.")
SILENCE = Metric("tasks_app_worker_silence_seconds", "Age of the oldest heartbeat.")
SERVED = Metric("tasks_app_queue_workers", "Live worker processes that serve the queue.", _QUEUE)
DUTY_AGE = Metric(
    "tasks_app_duty_age_seconds", "Since when the duty (scan, maintain) was not done.", ("duty",)
)
DUTY_HELD = Metric(
    "tasks_app_duty_held", "1: a leader of this rank (beat, standby) holds it.", ("duty", "rank")
)
REFUSED = Metric(
    "tasks_app_broker_refused_seconds", "For how long the broker has taken no messages; 0: it does."
)
SCHEDULES = Metric("tasks_app_schedules", "Schedules: enabled, disabled, broken.", ("state",))
MISSED = Metric("tasks_app_schedules_missed", "Enabled ones that are late by over a minute.")
SCHEDULE_LATE = Metric("tasks_app_schedule_late_seconds", "By how much the latest one is late.")
PAUSED = Metric(
    "tasks_app_queue_paused_seconds", "Since when the queue is paused; * is all queues.", _QUEUE
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
    "tasks_app_snapshot_age_transactions", "How many transactions the oldest held snapshot is old."
)
OPEN_FOR = Metric(
    "tasks_app_oldest_transaction_seconds", "For how long the oldest transaction is open."
)
HORIZON = Metric(
    "tasks_app_partitions_ahead", "Days after today that have a partition; -1: not even today has."
)
STRAYS = Metric("tasks_app_default_partition_used", "1: rows lie in the default partition.")
INFO = Metric("tasks_app_info", "Always 1; versions of package and schema.", ("version", "schema"))
CURRENT = Metric("tasks_app_schema_current", "1: the schema is as this version makes it.")
UP = Metric("tasks_app_up", "1: the database answered, and every read succeeded.")
READ_UP = Metric("tasks_app_read_up", "1: this part of the read succeeded.", ("part",))
READ_SECONDS = Metric("tasks_app_read_seconds", "How long this part took.", ("part",))
METRICS = tuple(each for each in list(vars().values()) if isinstance(each, Metric))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf")
"""Upper bounds of the buckets, in seconds."""
MOST_QUEUES = 100
"""That a gauge shows by name: producers make queues, and each series costs whoever stores it."""
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    suffix: str = ""  # of a histogram: which of its series
    bound: str = ""  # of one of its buckets: the upper bound


def histogram(
    metric: Metric, buckets: Sequence[int], sum_ms: int, labels: tuple[str, ...]
) -> Iterator[Sample]:
    """Make the series of a histogram; empty buckets at the end may be left out."""
    counts = [*buckets, *[0] * (len(BOUNDS) - len(buckets))]
    number = 0
    for bound, number in zip(BOUNDS, accumulate(counts), strict=True):
        yield Sample(metric, number, labels, "_bucket", bound)
    yield Sample(metric, sum_ms / 1000, labels, "_sum")
    yield Sample(metric, number, labels, "_count")


def render(samples: Iterable[Sample]) -> str:
    """Write the samples, grouped by metric in the order of the catalogue."""
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
    """Return those of the queues that stand out, and the rest of a gauge as one."""
    if metric.labels != ("queue",) or metric.kind is not Kind.GAUGE or len(samples) <= MOST_QUEUES:
        return samples
    rising = metric is OPEN  # of what is held, 0 stands out
    ordered = sorted(samples, key=attrgetter("value"), reverse=not rising)
    rest = [float(each.value) for each in ordered[MOST_QUEUES:]]
    whole = min(rest) if rising else max(rest) if metric.name.endswith("_seconds") else sum(rest)
    return [*ordered[:MOST_QUEUES], Sample(metric, whole, (OTHER,))]


def _line(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
    if sample.bound:
        labels += f',le="{sample.bound}"'
    name = sample.metric.name + sample.suffix
    value = float(sample.value)
    shown = str(int(value)) if value.is_integer() else repr(round(value, 3))
    return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"
