"""Does a pool of millions cost more per task than an empty one? ``make scale`` (minutes).

Each state of the pool is a database of its own. What is told is the backend's CPU, which a busy
machine changes least, and of reads also how many pages they looked at.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, create_engine, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.tasks.run import Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.embedded.stack import temporary
from tasks_app.pool.dispatch.scan import find_due, find_upcoming
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.runs.claim import Claimer, claim
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.runs.settle import settle_group
from tasks_app.pool.schema import migrate
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.create import create_many
from tasks_app.runtime.db.database import Database

LEASE = timedelta(seconds=30)
GROUP, ROUNDS = 500, 20
QUEUES, NAMES = 1_000, 10_000
PENDING = "INSERT INTO task_pending (name, queue, due_at, scan_at, created_at)"
LATER = "generate_series(1, {rows}) n, LATERAL (SELECT now() + interval '1 h') AS x(d)"
STATES = {
    "empty": "SELECT",
    "finished rows": """
        INSERT INTO task_completed (id, name, state, run_ms)
        SELECT 1000000000 + n, 'other', 'SUCCEEDED', 1 FROM generate_series(1, {rows}) n""",
    "failed rows": """
        INSERT INTO task_error (id, name, state, error)
        SELECT 1000000000 + n, 'other', 'FAILED', 'x' FROM generate_series(1, {rows}) n""",
    "future rows": f"""
        {PENDING} SELECT 'other', 'default', d, d, now() FROM generate_series(1, {{rows}}) n,
            LATERAL (SELECT now() + interval '1 h' + n * interval '1 s') AS x(d)""",
    "due rows": f"""
        {PENDING} SELECT 'other', 'default', d, d, d FROM generate_series(1, {{rows}}) n,
            LATERAL (SELECT now() - n * interval '1 ms') AS x(d)""",
    f"rows in {QUEUES:,} queues": f"""
        {PENDING} SELECT 'other', 'q' || n % {QUEUES}, d, d, now() FROM {LATER}""",
    f"rows of {NAMES:,} names": f"""
        {PENDING} SELECT 'n' || n % {NAMES}, 'default', d, d, now() FROM {LATER}""",
}


class Meter:
    """CPU of one backend, in microseconds."""

    def __init__(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._path = Path(f"/proc/{driver.info.backend_pid}/schedstat")

    def read(self) -> float:
        """Return how much it has used since it began."""
        return int(self._path.read_text().split()[0]) / 1000

    def of(self, act: Callable[[], Any], times: int) -> float:
        """Return the median of several runs."""
        used = []
        for _ in range(times):
            before = self.read()
            act()
            used.append(self.read() - before)
        return statistics.median(used)


def measure(connection: Connection) -> dict[str, float]:
    """Return microseconds: of one task, or of one whole statement."""
    meter = Meter(connection)
    row = validate_task(NewTask("bench", {"order_id": 42}), None, 65_536)
    claimer = Claimer("bench", LEASE, ("bench",), (3,), (False,))
    ids: list[int] = []

    def create() -> None:
        ids[:] = create_many(connection, [row] * GROUP)
        connection.commit()

    def take() -> None:
        claimed[:] = claim(connection, ids, claimer, uuid4())
        connection.commit()
        _expect(len(claimed))

    def settle() -> None:
        ends = [Settlement(task.fence, Event.SUCCEED, 0, 0, run_ms=1) for task in claimed]
        _expect(len(settle_group(connection, ends)))
        connection.commit()

    claimed: list[Any] = []
    parts: dict[str, list[float]] = {"create": [], "claim": [], "settle": []}
    for _ in range(ROUNDS):
        for part, act in (("create", create), ("claim", take), ("settle", settle)):
            parts[part].append(meter.of(act, 1) / GROUP)
    figures = {f"{part}, a task": statistics.median(used) for part, used in parts.items()}

    reads: dict[str, tuple[Callable[[], Any], int]] = {
        "scan, 5,000 ids of one queue": (lambda: find_due(connection, {"default": 5_000}), 10),
        "scan, 1,000 queues": (lambda: find_due(connection, dict.fromkeys(_queues(), 500)), 10),
        "next due instant, 1,000 queues": (lambda: find_upcoming(connection, _queues(), LEASE), 10),
        "rescue, nothing to do": (
            lambda: rescue_expired(connection, lease=LEASE, max_crashes=5),
            10,
        ),
        "get one task": (lambda: browse.get(connection, 1_000_000_007), 10),
        "list, newest 50": (lambda: browse.find_tasks(connection, most=50), 5),
        "list, newest 50 FAILED": (lambda: browse.find_tasks(connection, state="FAILED"), 5),
        "doctor, due work": (lambda: diagnostics.due_work(connection), 5),
        "doctor, beyond the lease": (lambda: diagnostics.expired_leases(connection), 5),
        "stats": (lambda: browse.count_tasks(connection), 1),
    }
    for name, (act, times) in reads.items():
        figures[name] = meter.of(act, times)
        connection.rollback()
    return figures


def _expect(number: int) -> None:
    if number != GROUP:
        raise SystemExit(f"{number} of {GROUP} tasks: this measures something else.")


def _queues() -> list[str]:
    return [f"q{n}" for n in range(QUEUES)]


@contextmanager
def fresh_database(url: str, name: str) -> Iterator[Database]:
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    database = Database(f"{url.rpartition('/')[0]}/{name}")
    try:
        yield database
    finally:
        database.dispose()
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def _fill(database: Database, sql: str, rows: int, *, analyse: bool) -> None:
    with database.begin() as connection:
        migrate(connection)
        days = missing_partitions(connection)
    for day in days:
        with database.begin() as connection:
            add_partition(connection, day)
    with database.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text(sql.format(rows=rows)))
        if analyse:
            connection.execute(text("ANALYZE"))


def main() -> None:
    """Measure every state, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--url", help="a server of yours instead of one that is started here")
    parser.add_argument("--stale", action="store_true", help="no ANALYZE after the pool is filled")
    parser.add_argument("--only", action="append", help="one of the states, as the table names it")
    options = parser.parse_args()
    if options.url:
        _run(options.url, options)
        return
    with temporary() as stack:
        _run(stack.postgres.url, options)


def _run(url: str, options: argparse.Namespace) -> None:
    table: dict[str, dict[str, float]] = {}
    for number, (state, sql) in enumerate(STATES.items()):
        if options.only and state not in options.only:
            continue
        with fresh_database(url, f"scale_{number}") as database:
            _fill(database, sql, options.rows, analyse=not options.stale)
            with database.engine.connect() as connection:
                connection.execute(text("SET statement_timeout = 0"))
                connection.commit()
                table[state] = measure(connection)
        print(json.dumps({state: table[state]}), flush=True)
    print(_markdown(table, options.rows))


def _markdown(table: dict[str, dict[str, float]], rows: int) -> str:
    names = {state: state if state == "empty" else f"{rows:,} {state}" for state in table}
    lines = [
        "| us of CPU | " + " | ".join(names.values()) + " |",
        "|---|" + "---|" * len(table),
    ]
    figures = next(iter(table.values()))
    lines += [
        f"| {name} | " + " | ".join(f"{table[state][name]:,.1f}" for state in table) + " |"
        for name in figures
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
