"""What a scrape takes, and what a million rows take on disk: ``make bench-scrape``.

The pools are as a busy day leaves them, with two days of counted minutes of 80 keys. Time wants a
machine of its own; CPU, of the server's process and of ours, suffers less from others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from datetime import timedelta

from pydantic import SecretStr
from sqlalchemy import text

from dev.benchmarks.scale import Meter, fresh_database
from tasks_app import Settings
from tasks_app.embedded.stack import temporary
from tasks_app.monitor import metrics
from tasks_app.monitor.metric_catalogue import READ_SECONDS
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate
from tasks_app.pool.statistics.totals import keep_totals
from tasks_app.runtime.db.database import Database

GOAL_MS = 50
COMPLETED, PENDING, ERRORS = 1_000_000, 100_000, 10_000
_JSON = """jsonb_build_object('order_id', n, 'to', 'somebody' || n || '@example.org')"""
_NAME, _QUEUE = "'shop.task_' || n % 20", "'queue_' || n % 10"
_BUCKETS = "array_fill(CAST(7 AS bigint), ARRAY[18])"
_SUMS = f"100 + n, 12345, 12345, {_BUCKETS}, {_BUCKETS}"
_KEY = "'shop.task_' || n % 20, 'queue_' || n % 10, n % 4 + 1"
FILL = {
    "task_completed": f"""
        INSERT INTO task_completed (id, name, queue, state, payload, due_at, started_at,
            finished_at, run_ms, owner)
        SELECT 1000000 + n, {_NAME}, {_QUEUE}, 'SUCCEEDED', {_JSON}, now() - interval '2 s',
            now() - interval '1 s', now(), 20, 'node-1:4711:abcdef'
        FROM generate_series(1, {COMPLETED}) n""",
    "task_error": f"""
        INSERT INTO task_error (id, name, queue, state, payload, error, due_at, started_at,
            finished_at)
        SELECT 9000000 + n, {_NAME}, {_QUEUE}, 'FAILED', {_JSON}, repeat('a traceback line ', 60),
            now(), now(), now() - n * interval '1 s' FROM generate_series(1, {ERRORS}) n""",
    "task_pending": f"""
        INSERT INTO task_pending (name, queue, payload, due_at, scan_at, created_at)
        SELECT {_NAME}, {_QUEUE}, {_JSON}, x.d, x.d, now() FROM generate_series(1, {PENDING}) n,
            LATERAL (SELECT now() + (n - {PENDING // 2}) * interval '50 ms') AS x(d)""",
    "task_count": f"""
        INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits,
            runs)
        SELECT s.span, date_trunc(CASE s.span WHEN 1440 THEN 'day' WHEN 60 THEN 'hour'
            ELSE 'minute' END, now(), 'UTC') - s.ago * interval '1 minute' * s.span,
            {_KEY}, {_SUMS}
        FROM (SELECT 1, a FROM generate_series(2, 2881) a
              UNION ALL SELECT 60, a FROM generate_series(0, 1439) a
              UNION ALL SELECT 1440, a FROM generate_series(0, 60) a) AS s(span, ago),
            generate_series(0, 79) n ON CONFLICT DO NOTHING""",
    "task_count_part": f"""
        INSERT INTO task_count_part (slot, at, name, queue, outcome, number, wait_ms, run_ms,
            waits, runs)
        SELECT 'slot ' || s, date_trunc('minute', now()) - m * interval '1 minute', {_KEY}, {_SUMS}
        FROM generate_series(1, 8) s, generate_series(0, 14) m, generate_series(0, 79) n
        ON CONFLICT DO NOTHING""",
}
_SIZE = """
    SELECT sum(pg_table_size(c.oid)), sum(pg_indexes_size(c.oid)) FROM pg_class c
    WHERE c.oid = CAST(:name AS regclass)
        OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST(:name AS regclass))
"""
_ROWS = {"task_completed": COMPLETED, "task_error": ERRORS, "task_pending": PENDING}


def fill(database: Database) -> None:
    with database.begin() as connection:
        migrate(connection)
        days = missing_partitions(connection)
    for day in days:
        with database.begin() as connection:
            add_partition(connection, day)
    for sql in FILL.values():
        with database.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(sql))
    with database.begin() as connection:
        keep_totals(connection, timedelta(days=730))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM ANALYZE"))


def p95(values: Iterable[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def scrape(database: Database, url: str, times: int) -> float:
    """Print what a scrape takes, and each of its parts; return its p95 in milliseconds."""
    metrics.KEEP_S = 0
    reader = metrics.MetricsReader(database, Settings(database_url=SecretStr(url)))
    whole, cpu, said = list[float](), list[float](), ""
    parts: dict[str, list[float]] = {}
    with database.engine.connect() as connection:
        meter = Meter(connection)  # of the one connection that the pool hands out again
    for _ in range(5 + times):
        began, used = time.perf_counter(), meter.read() / 1000 + time.process_time() * 1000
        said = reader.read()
        whole.append((time.perf_counter() - began) * 1000)
        cpu.append(meter.read() / 1000 + time.process_time() * 1000 - used)
        for line in said.splitlines():
            if line.startswith(f"{READ_SECONDS.name}{{"):
                part, value = line.partition('="')[2].split('"} ')
                parts.setdefault(part, []).append(float(value) * 1000)
    whole, cpu = whole[5:], cpu[5:]
    print(f"{times} scrapes of {len(said) / 1000:,.0f} kB, {said.count(chr(10)):,} lines")
    print("| part | p50 ms | p95 ms |\n|---|---|---|")
    for part, values in {**parts, "whole": whole, "CPU of the whole": cpu}.items():
        print(f"| {part} | {statistics.median(values):.1f} | {p95(values):.1f} |")
    return p95(whole)


def disk(database: Database) -> None:
    print("| table | rows | MB a million rows | of it indexes |\n|---|---|---|---|")
    with database.begin() as connection:
        for name, rows in _ROWS.items():
            table, indexes = connection.execute(text(_SIZE), {"name": name}).one()
            print(
                f"| {name} | {rows:,} | {(table + indexes) / rows:,.0f} | {indexes / rows:,.0f} |"
            )


def main() -> None:
    """Exit with 1 if a scrape takes longer than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    options = parser.parse_args()
    with temporary() as stack, fresh_database(stack.postgres.url, "scrape") as database:
        fill(database)
        disk(database)
        took = scrape(database, stack.postgres.url, options.times)
    print(f"p95 {took:.0f} ms; the goal is {GOAL_MS} ms")
    sys.exit(took > GOAL_MS)


if __name__ == "__main__":
    main()
