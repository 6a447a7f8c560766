"""Tables on the terminal: tasks by name, what became of them, how fast. 80 columns will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from shop.figures import Line, Spans

ENDS = ("done", "retried", "skipped", "cancelled", "failed")
_SHORT = {"skipped": "skip.", "cancelled": "cancel."}


def counts_table(columns: Sequence[str], *more: str) -> Table:
    """Return an empty table with a column for the name, for each count, and for what else."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("  task", no_wrap=True, min_width=22)
    for column in (*columns, *more):
        table.add_column(_SHORT.get(column, column), justify="right", no_wrap=True, min_width=5)
    return table


def counts_of(line: Line, columns: Sequence[str]) -> list[str]:
    """Return the cells of a line; zero is a dot, so that the eye finds the numbers."""
    return [f"  {line.name}", *(str(getattr(line, column) or "·") for column in columns)]


def day_table(lines: Sequence[Line], spans: Mapping[str, Spans]) -> Table:
    """Say how often and how fast. Waiting is from due to started, in the last run of each task."""
    table = counts_table(ENDS, "waited ms\np50/p95", "ran ms\np50/p95")
    for line in lines:
        span = spans.get(line.name, Spans(None, None))
        table.add_row(*counts_of(line, ENDS), _pair(span.waited_ms), _pair(span.ran_ms))
    return table


def _pair(milliseconds: Sequence[float] | None) -> str:
    if milliseconds is None or milliseconds[0] is None:
        return "·"
    return "/".join(f"{value:.0f}" for value in milliseconds)
