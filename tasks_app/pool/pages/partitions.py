"""Partitions of a batch job as cells of a heat map; where there are many, some share a cell."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from tasks_app.domain.partition.records import Status
from tasks_app.pool.tables import ERROR, PARTITION

MOST_CELLS = 1_000
"""Of one step."""

# Some joins look at failed partitions only when the others have ended: their tasks tell before.
_FAILED = f"""CASE WHEN p.status = '{Status.RUNNING}' AND EXISTS (
    SELECT FROM {ERROR} e WHERE e.id = p.task_id) THEN '{Status.FAILED}' ELSE p.status END"""

_CELLS = text(f"""
    SELECT n.step, min(n.partition_no) AS low, max(n.partition_no) AS high,
        CAST(count(*) AS integer) AS number,
        CAST(count(*) FILTER (WHERE n.status = '{Status.COMPLETED}') AS integer) AS completed,
        CAST(count(*) FILTER (WHERE n.status = '{Status.FAILED}') AS integer) AS failed,
        CAST(count(*) FILTER (WHERE n.status = '{Status.RUNNING}') AS integer) AS running,
        CAST(sum(n.read_rows) AS bigint) AS read, CAST(sum(n.estimated_rows) AS bigint) AS estimated
    FROM (
        SELECT p.step, p.partition_no, {_FAILED} AS status, p.read_rows, p.estimated_rows,
            row_number() OVER (PARTITION BY p.step ORDER BY p.partition_no) - 1 AS place,
            count(*) OVER (PARTITION BY p.step) AS total
        FROM {PARTITION} p WHERE p.batch_id = :batch_id) AS n
    GROUP BY n.step, n.place * {MOST_CELLS} / greatest(n.total, {MOST_CELLS})
    ORDER BY n.step, low
""")


@dataclass(frozen=True, slots=True)
class Cell:
    """Some partitions that follow one another."""

    low: int
    """Number of the first."""
    high: int
    number: int
    completed: int
    failed: int
    running: int
    read: int
    estimated: int | None
    """Rows that the planner expects; None: it does not know."""

    @property
    def fraction(self) -> float:
        """The share that is done, 0 to 1."""
        if self.estimated and self.completed < self.number:
            return min(1.0, self.read / self.estimated)
        return self.completed / self.number

    @property
    def kind(self) -> str:
        """The worst that is true of one of them."""
        if self.failed:
            return "bad"
        if self.running:
            return "run"
        return "ok" if self.completed == self.number else "wait"


def cells(connection: Connection, batch_id: int) -> dict[str, list[Cell]]:
    """Return the cells by step, in the order of their partitions."""
    found: dict[str, list[Cell]] = {}
    for step, *values in connection.execute(_CELLS, {"batch_id": batch_id}):
        found.setdefault(step, []).append(Cell(*values))
    return found
