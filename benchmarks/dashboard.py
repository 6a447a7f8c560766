"""How long does each page take over a full pool? ``make bench-dashboard`` (minutes).

Pages are asked of uvicorn over a socket, one at a time, and each is read anew: the cache that all
browsers share is off.
"""

from __future__ import annotations

import argparse
import re
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import uvicorn
from pydantic import SecretStr
from sqlalchemy import text

import tasks_app.dashboard.app as application
from benchmarks.scale import fresh_database
from tasks_app.dashboard.reader import PageReader
from tasks_app.domain.config.settings import Settings
from tasks_app.embedded import temporary
from tasks_app.pool.retention.partitions import add_partition, missing_partitions
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database

COMPLETED, PENDING, ERRORS = 1_000_000, 100_000, 10_000
DAYS, NAMES, QUEUES, CAUSES = 7, 40, 12, 500
REQUESTS = 40
GOAL_MS, OVERVIEW_MS = 200, 100
_NAME = f"'name.' || n % {NAMES}, 'q' || n % {QUEUES}"
FILL = (
    f"""
    INSERT INTO task_completed (id, name, queue, biz_key, payload, state, due_at, created_at,
        started_at, finished_at, run_ms, owner)
    SELECT 10000000 + n, {_NAME}, 'order:' || n, jsonb_build_object('order_id', n), 'SUCCEEDED',
        at - interval '3 s', at - interval '4 s', at - interval '1 s', at, n % 900, 'node:1:x'
    FROM generate_series(1, {COMPLETED}) n, LATERAL (SELECT now()
        - ({COMPLETED} - n) * interval '{DAYS - 1} days' / {COMPLETED}) AS x(at)""",
    f"""
    INSERT INTO task_pending (name, queue, biz_key, payload, due_at, scan_at, created_at)
    SELECT {_NAME}, 'order:' || n, jsonb_build_object('order_id', n), at, at, at
    FROM generate_series(1, {PENDING}) n, LATERAL (SELECT now() - interval '1 h'
        + n * interval '50 ms') AS x(at)""",
    f"""
    INSERT INTO task_error (id, name, queue, biz_key, payload, state, error, attempt, failures,
        created_at, started_at, finished_at, fingerprint)
    SELECT 20000000 + n, {_NAME}, 'order:' || n, jsonb_build_object('order_id', n), 'FAILED',
        'ValueError: cause ' || n % {CAUSES}, 3, 3, at - interval '1 min', at, at,
        substring(sha256(CAST('c' || n % {CAUSES} AS bytea)) FOR 8)
    FROM generate_series(1, {ERRORS}) n, LATERAL (SELECT now()
        - ({ERRORS} - n) * interval '{DAYS - 1} days' / {ERRORS}) AS x(at)""",
    """
    INSERT INTO task_attempt (task_id, attempt, event, kind, message, traceback, owner, started_at,
        ended_at, run_ms, fingerprint)
    SELECT e.id, a, CASE a WHEN 3 THEN 'fail' ELSE 'retry' END, 'ValueError', 'cause', 'File x',
        'node:1:x', e.started_at, e.finished_at, 5, e.fingerprint
    FROM task_error e, generate_series(1, 3) a""",
    f"""
    INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
    SELECT span, at, {_NAME}, outcome, 100, 9000, 40000,
        ARRAY[0,1,2,5,9,20,30,20,8,5], ARRAY[1,2,5,9,20,30,20,8,5]
    FROM (VALUES (1, interval '1 min', 2880), (60, interval '1 h', 168), (1440, interval '1 d', 30))
        AS s(span, step, most), generate_series(1, most) k,
        LATERAL (SELECT to_timestamp(floor(extract(epoch FROM now()) / 60 / span) * 60 * span)
            - k * step) AS x(at), generate_series(1, {NAMES}) n,
        unnest(ARRAY[1, 5, 6]) AS o(outcome)
    WHERE span > 1 OR n <= 10""",
    """
    INSERT INTO task_schedule (name, task, queue, kind, expression, zone, next_run_at, look_at)
    SELECT 'schedule.' || n, 'name.' || n % 40, 'q1', 'cron', '0 3 * * *', 'UTC', at, at
    FROM generate_series(1, 200) n, LATERAL (SELECT now() + n * interval '1 min') AS x(at)""",
)


class FreshReader(PageReader):
    """Keeps nothing but what is renewed while the page is shown: that is what a browser meets."""

    def kept(
        self, key: Hashable, make: Callable[[], Any], _keep_s: float, serve_s: float = 0.0
    ) -> Any:
        return super().kept(key, make, 0.0, serve_s) if serve_s else make()


@contextmanager
def served(url: str) -> Iterator[str]:
    """The dashboard on a port of its own."""
    application.PageReader = FreshReader  # type: ignore[attr-defined]
    app = application.dashboard_app(Settings(database_url=SecretStr(url)))
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def fill(database: Database) -> None:
    with database.begin() as connection:
        migrate(connection)
        days = missing_partitions(connection)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for day in (*days, *(midnight - timedelta(days=n) for n in range(1, DAYS + 1))):
        with database.begin() as connection:
            add_partition(connection, day)
    for statement in FILL:
        with database.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(statement))
    with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM ANALYZE"))


def pages(client: httpx.Client) -> list[str]:
    """Return what a browser may ask for, with filters that are found early, late and never."""
    found = re.search(r"/errors/([0-9a-f]{16})", client.get("/errors").text)
    if not found:
        raise SystemExit("There are no errors: the pool is not what it should be.")
    return [
        "/", "/history?within=1h", "/history?within=24h", "/history?within=7d",
        "/tasks", "/tasks?state=FAILED", "/tasks?name=name.7", "/tasks?name=name.7&state=SUCCEEDED",
        "/tasks?name=nobody", "/tasks?queue=q3&pool=pending", "/tasks?biz_key=order:77",
        "/tasks?error=cause+7", "/tasks/10000007", "/tasks/20000007", "/tasks/20000007/edit",
        "/errors", "/errors?since=7d", f"/errors/{found[1]}", "/schedules", "/schedules/schedule.7",
        "/queues", "/queues/q3", "/groups", "/batches", "/workers", "/audit",
    ]  # fmt: skip


def measure(base: str) -> dict[str, list[float]]:
    """Return milliseconds of each page, and of its JSON."""
    taken: dict[str, list[float]] = {}
    with httpx.Client(base_url=base, timeout=30) as client:
        paths = pages(client)
        kinds = [path for path in paths if not path.endswith("/edit")]
        json = ["/api/overview" if path == "/" else f"/api{path}" for path in kinds]
        for path in (*paths, *json):
            for _ in range(REQUESTS):
                began = time.perf_counter()
                answer = client.get(path)
                taken.setdefault(path, []).append((time.perf_counter() - began) * 1000)
                if answer.status_code != httpx.codes.OK:
                    raise SystemExit(f"{path} answered {answer.status_code}: {answer.text[:300]}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server of yours instead of one that is started here")
    options = parser.parse_args()
    if options.url:
        _run(options.url)
        return
    with temporary() as stack:
        _run(stack.postgres.url)


def _run(url: str) -> None:
    with fresh_database(url, "pages") as database:
        fill(database)
        where = database.engine.url.render_as_string(hide_password=False)
        with served(where) as base:
            taken = measure(base)
    print("| page | median ms | p95 ms |\n|---|---:|---:|")
    slow = []
    for path, times in taken.items():
        late = statistics.quantiles(times, n=20)[-1]
        print(f"| `{path}` | {statistics.median(times):.0f} | {late:.0f} |")
        if late > (OVERVIEW_MS if path in {"/", "/api/overview"} else GOAL_MS):
            slow.append(path)
    if slow:
        raise SystemExit(f"slower than the goal: {', '.join(slow)}")


if __name__ == "__main__":
    main()
