"""Parts as processes write them, and what became of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.pool.statistics.roll_up import CountRetention

NOON = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
KEPT = CountRetention(timedelta(days=2), timedelta(days=60), timedelta(days=730))


def part(
    at: datetime,
    number: int,
    name: str = "t",
    outcome: CountedOutcome = CountedOutcome.DONE,
    ms: int = 3,
) -> CountPart:
    """So many that waited and ran for 3 ms, which is bucket 2."""
    histogram = [0, 0, number]
    minute = int(at.timestamp()) // 60
    return CountPart(
        minute, name, "q", outcome, number, number * ms, number * ms, histogram, histogram
    )


def put(connection: Connection, slot: str, *parts: CountPart) -> None:
    """Write them in the minute after their own."""
    write_parts(connection, slot, parts, now=datetime.fromtimestamp(parts[0].minute * 60 + 61, UTC))


def numbers(connection: Connection, span: int, columns: str = "name, number") -> list[tuple]:
    query = text(f"SELECT {columns} FROM task_count WHERE span = :span ORDER BY at, name, outcome")
    return [tuple(row) for row in connection.execute(query, {"span": span})]
