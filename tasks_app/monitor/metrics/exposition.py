"""Prometheus' text format, version 0.0.4.

Written here, not by prometheus_client: that has a registry, process metrics and files for forks,
and all that is needed of it are these lines. promtool reads the result in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks_app.monitor.metrics.catalogue import METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


def render(samples: Iterable[Sample]) -> str:
    """Write the samples, grouped by metric in the order of the catalogue."""
    found: dict[Metric, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        if metric in found:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            lines += [_line(sample) for sample in found[metric]]
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
    value = float(sample.value)
    shown = str(int(value)) if value.is_integer() else repr(round(value, 3))
    return (
        f"{sample.metric.name}{{{labels}}} {shown}" if labels else f"{sample.metric.name} {shown}"
    )
