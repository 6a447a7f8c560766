"""Nobody scans: since when, and what to start."""

from __future__ import annotations

from tasks_app.domain.explain.facts import TaskFacts
from tasks_app.domain.explain.words import when

START = (
    "Start beat (celery -A tasks_app beat) and a worker, or tasks-app work where there is no "
    "broker, and read their logs."
)


def nobody_scans(facts: TaskFacts) -> str:
    """Say since when."""
    scan = facts.scan
    if scan is None or scan.done_at is None:
        return "Nobody has ever looked for due tasks"
    return f"Nobody looks for due tasks; {scan.holder} did last, {when(scan.done_at, facts.now)}"
