"""Parts as processes write them, and what became of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.statistics.outcomes import Outcome
from tasks_app.pool.statistics.parts import Part, write
from tasks_app.pool.statistics.roll_up import Kept

NOON = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
KEPT = Kept(timedelta(days=2), timedelta(days=60), timedelta(days=730))


def part(
    at: datetime, number: int, name: str = "t", outcome: Outcome = Outcome.DONE, ms: int = 3
) -> Part:
    """So many that waited and ran for 3 ms, which is bucket 2."""
    histogram = [0, 0, number]
    minute = int(at.timestamp()) // 60
    return Part(minute, name, "q", outcome, number, number * ms, number * ms, histogram, histogram)


def put(connection: Connection, slot: str, *parts: Part) -> None:
    """Write them in the minute after their own."""
    write(connection, slot, parts, now=datetime.fromtimestamp(parts[0].minute * 60 + 61, UTC))


def numbers(connection: Connection, span: int, columns: str = "name, number") -> list[tuple]:
    query = text(f"SELECT {columns} FROM task_count WHERE span = :span ORDER BY at, name, outcome")
    return [tuple(row) for row in connection.execute(query, {"span": span})]
