"""The series that a scrape has, and the labels of each; what a query asks for."""

from __future__ import annotations

import re

from tasks_app.monitor.metric_catalogue import METRICS, Kind

EXPORTED = {
    metric.name + suffix: {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}


def names_of(query: str) -> set[str]:
    return set(re.findall(r"\btasks_app_\w+", query))
