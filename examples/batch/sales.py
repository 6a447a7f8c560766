"""Nightly statistics over all orders of a day: partitions count, reduce adds up.

    export TASKS_APP_IMPORTS=batch.sales PYTHONPATH=examples
    tasks-app batch start sales '{"day": "2026-11-21"}'
    tasks-app work --drain

Nothing is locked for longer than a chunk takes, and the result is written once, with the end of
the job. `python examples/batch/sales.py 1000000` fills a table to try it on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection, create_engine, text

from tasks_app import BatchJob, ChunkContext, PartResult, Step, Table
from tasks_app.batch.planners.even import Even

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    id bigint PRIMARY KEY, day date NOT NULL, city text NOT NULL, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS sales_of_day (
    day date NOT NULL, city text NOT NULL, orders bigint NOT NULL, cents bigint NOT NULL,
    PRIMARY KEY (day, city))
"""
FILL = text("""
    INSERT INTO orders SELECT i, CAST(:day AS date),
        (ARRAY['Ghent', 'Lyon', 'Porto', 'Turin', 'Graz'])[1 + i % 5], 100 + i % 9000
    FROM generate_series(1, :rows) AS i ON CONFLICT DO NOTHING
""")
WRITE = text("""
    INSERT INTO sales_of_day (day, city, orders, cents) VALUES (:day, :city, :orders, :cents)
    ON CONFLICT (day, city) DO UPDATE SET orders = EXCLUDED.orders, cents = EXCLUDED.cents
""")


class Day(BaseModel):
    """Which statistics."""

    day: date


def count(ctx: ChunkContext, rows: Sequence[Any]) -> int:
    """Add the chunk to the partition's sums, which commit with its checkpoint."""
    sums: dict[str, list[int]] = ctx.state.setdefault("sums", {})
    for row in rows:
        if row.day == ctx.params.day:
            entry = sums.setdefault(row.city, [0, 0])
            entry[0] += 1
            entry[1] += row.cents
    return 0  # nothing is written yet


def add_up(ctx: ChunkContext, parts: Iterator[PartResult]) -> dict[str, int]:
    """Merge the partitions' sums and write them, in one commit with the end of the step."""
    totals: dict[str, list[int]] = {}
    for part in parts:
        for city, (orders, cents) in part.state.get("sums", {}).items():
            entry = totals.setdefault(city, [0, 0])
            entry[0] += orders
            entry[1] += cents
    for city, (orders, cents) in sorted(totals.items()):
        values = {"day": ctx.params.day, "city": city, "orders": orders, "cents": cents}
        ctx.connection.execute(WRITE, values)
    return {city: cents for city, (_, cents) in totals.items()}


sales = BatchJob(
    "sales",
    [
        Step(
            "sales",
            Table("orders"),
            planner=Even(rows=50_000),
            chunk=count,
            commit_every="5000 rows or 1s",
            reduce=add_up,
        )
    ],
    params=Day,
)


def fill(connection: Connection, rows: int, day: date) -> None:
    """Make the tables, with this many orders."""
    for statement in SCHEMA.split(";"):
        connection.execute(text(statement))
    connection.execute(FILL, {"rows": rows, "day": day})


if __name__ == "__main__":
    with create_engine(os.environ["TASKS_APP_DATABASE_URL"]).begin() as made:
        fill(made, int(sys.argv[1]), date(2026, 11, 21))
    print('Now: tasks-app batch start sales \'{"day": "2026-11-21"}\'')
