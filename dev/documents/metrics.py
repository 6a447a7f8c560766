"""docs/reference/metrics.md: each metric, its labels and its meaning."""

from __future__ import annotations

from dev.documents.source import cell, generated
from tasks_app.monitor.metric_catalogue import METRICS

ABOUT = """
`tasks-app metrics` shows these to Prometheus. A gauge is what is true when it reads; counters and
histograms say what was since counting began. How to run it, what to alert on, and how totals are
kept: [monitoring](../operations/monitoring.md#metrics). No label carries an id or a business key.
A metric without a value, as of a queue in which nothing is pending, has no line. A histogram has
the series `_bucket`, `_sum` and `_count`. A gauge by queue shows the 100 queues with the highest
values (of `tasks_app_queue_open` the lowest); the others are one, `(other)`: their sum, or of
seconds the longest.
"""


def page() -> str:
    """Return the page."""
    lines = generated("Metrics", "tasks_app/monitor/metric_catalogue.py", ABOUT)
    lines += ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {cell(each.help)} |")
    return "\n".join(lines) + "\n"
