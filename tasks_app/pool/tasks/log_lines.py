"""Log lines of attempts: one row for each attempt that wrote any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.pool.fragments.fences import array
from tasks_app.pool.tables import LOG_LINES

_KEEP = text(f"""
    INSERT INTO {LOG_LINES} AS l (task_id, attempt, lines, cut)
    SELECT n.task_id, n.attempt, CAST(n.lines AS jsonb), n.cut FROM unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:lines AS text[]),
        CAST(:cuts AS integer[])) AS n(task_id, attempt, lines, cut)
    ON CONFLICT (task_id, attempt) DO UPDATE SET lines = excluded.lines, cut = excluded.cut
    WHERE l.lines <> '[]'
""")
_READ = text(f"""
    SELECT attempt, lines, cut FROM {LOG_LINES} WHERE task_id = :id AND lines <> '[]'
    ORDER BY attempt DESC LIMIT :most
""")


class LinesOfRun(NamedTuple):
    """What is kept of one attempt."""

    task_id: int
    attempt: int
    lines: str
    """JSON text: an array of [instant, level, text]."""
    cut: int
    """How many before them were left out."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a handler's log."""

    at: datetime
    """By the worker's clock."""
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class LogOfAttempt:
    """The last lines of one attempt, oldest first."""

    attempt: int
    lines: tuple[LogLine, ...]
    cut: int
    """How many lines before them were left out."""


def keep_lines(connection: Connection, runs: Sequence[LinesOfRun]) -> None:
    """Write them; of an attempt that was called again its last call's, of an erased one none."""
    latest = {run[:2]: run for run in runs}.values()
    connection.execute(
        _KEEP,
        {
            "ids": array(run.task_id for run in latest),
            "attempts": array(run.attempt for run in latest),
            "lines": [run.lines for run in latest],
            "cuts": array(run.cut for run in latest),
        },
    )


def read_lines(connection: Connection, task_id: int, most: int = 20) -> list[LogOfAttempt]:
    """Return what is kept of a task's newest attempts, oldest first."""
    rows = connection.execute(_READ, {"id": task_id, "most": most}).all()
    return [
        LogOfAttempt(
            row.attempt,
            tuple(LogLine(datetime.fromisoformat(at), *more) for at, *more in row.lines),
            row.cut,
        )
        for row in reversed(rows)
    ]
