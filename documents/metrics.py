"""docs/reference/metrics.md: each metric, its labels and its meaning."""

from __future__ import annotations

from documents.source import cell, generated
from tasks_app.monitor.metrics.catalogue import METRICS

ABOUT = """
`tasks-app metrics` shows these to Prometheus, all as gauges: what is true when it reads. How to run
it, and what to alert on: [monitoring](../operations/monitoring.md#metrics). No label carries an id,
a business key or the name of a task. A metric without a value, as of a queue in which nothing is
pending, has no line.
"""


def page() -> str:
    """Return the page."""
    lines = generated("Metrics", "tasks_app/monitor/metrics/catalogue.py", ABOUT)
    lines += ["| metric | labels | meaning |", "|---|---|---|"]
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {labels} | {cell(each.help)} |")
    return "\n".join(lines) + "\n"
