"""New tasks in the trace of their producer; light, as every producer imports it."""

from __future__ import annotations

from collections.abc import Sequence
from sys import modules

from tasks_app.domain.tasks.records import TaskRow


def traced(rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
    """Return the rows with the trace that is open here in their headers, if there can be one."""
    if "opentelemetry.trace" not in modules:
        return rows
    from tasks_app.runtime.tracing.tracing import traced_rows  # noqa: PLC0415  who needs it

    return traced_rows(rows)
