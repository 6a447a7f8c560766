"""Prometheus' text format, version 0.0.4.

Written here, not by prometheus_client: that has a registry, process metrics and files for forks,
and all that is needed of it are these lines. promtool reads the result in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from tasks_app.domain.statistics.histogram import BOUNDS_MS
from tasks_app.domain.statistics import OTHER
from tasks_app.monitor.metric_catalogue import METRICS
from tasks_app.monitor.metric_catalogue import OPEN
from tasks_app.monitor.metric_catalogue import Kind
from tasks_app.monitor.metric_catalogue import Metric

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
    suffix: str = ""
    """Of a histogram: which of its series."""
    bound: str = ""
    """Of one of its buckets: the upper bound."""


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
