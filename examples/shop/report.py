"""The table at the end of the day, by kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from shop.figures import Line, Spans

COUNTS = ("done", "retried", "skipped", "cancelled", "failed")
SHORT = {"cancelled": "cancel.", "skipped": "skip."}


def day_table(lines: Sequence[Line], spans: Mapping[str, Spans]) -> Table:
    """Say how often and how fast. Waiting is from due to started, in the last run of each task."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("  task", no_wrap=True)
    for column in (*COUNTS, "waited ms\np50/p95", "ran ms\np50/p95"):
        table.add_column(SHORT.get(column, column), justify="right", no_wrap=True)
    for line in lines:
        counts = [str(getattr(line, column) or "·") for column in COUNTS]
        found = spans.get(line.name)
        waited = _pair(found.waited_ms if found else None)
        table.add_row(f"  {line.name}", *counts, waited, _pair(found.ran_ms if found else None))
    return table


def _pair(milliseconds: Sequence[float] | None) -> str:
    if milliseconds is None or milliseconds[0] is None:
        return "·"
    return "/".join(f"{value:.0f}" for value in milliseconds)
