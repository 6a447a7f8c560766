"""How long each page of the dashboard takes on a large pool: ``make bench-dashboard`` (minutes).

1,000,000 completed tasks of a week, 100,000 pending and 10,000 failed ones of 500 causes; a server
of its own, asked over HTTP. Each request reads anew; only what doctor says is kept, as it is.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, timedelta
from typing import Any

import httpx
import uvicorn
from pydantic import SecretStr
from sqlalchemy import Connection, text

from tasks_app import Settings
from tasks_app.dashboard.app import dashboard_app
from tasks_app.dashboard.reader import PageReader
from tasks_app.embedded.stack import temporary
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database

COMPLETED, PENDING, FAILED, CAUSES = 1_000_000, 100_000, 10_000, 500
ASKED = 40
MOST_MS, OVERVIEW_MS = 200.0, 100.0
RARE = "invoices.rare"
"""A name of 50 completed tasks, all of them nearly a week old."""
_NAME, _QUEUE = "'job.n' || n % 40", "'q' || n % 12"
_FILLS = {
    "completed": """
        INSERT INTO task_completed (id, name, queue, state, biz_key, payload, run_ms, created_at,
            due_at, started_at, finished_at)
        SELECT n, CASE WHEN n % 2000 = 7 AND n < 100000 THEN :rare ELSE {name} END, {queue},
            CASE WHEN n % 50 = 0 THEN 'CANCELLED' ELSE 'SUCCEEDED' END,
            CASE WHEN n % 4 = 0 THEN 'order:' || n END, jsonb_build_object('order', n, 'sum', n % 97),
            n % 700, at - interval '3 s', at - interval '2 s', at - interval '1 s', at
        FROM generate_series(1, :completed) AS n,
            LATERAL (SELECT now() - interval '7 days' * (1 - n / CAST(:completed AS float)) AS at) AS t
    """,
    "pending": """
        INSERT INTO task_pending (id, name, queue, biz_key, payload, priority, due_at, scan_at, created_at)
        SELECT :completed + n, {name}, {queue}, CASE WHEN n % 4 = 0 THEN 'basket:' || n END,
            jsonb_build_object('order', n), n % 10, at, at, now() - interval '2 h'
        FROM generate_series(1, :pending) AS n,
            LATERAL (SELECT now() + interval '1 s' * (n % 7200 - 3600) AS at) AS t
    """,
    "failed": """
        INSERT INTO task_error (id, name, queue, state, payload, error, attempt, failures, created_at, due_at,
            started_at, finished_at, fingerprint)
        SELECT :completed + :pending + n, {name}, {queue}, 'FAILED', jsonb_build_object('order', n),
            'shop.Error' || n % :causes || ': order ' || n || ' was refused', 3, 3,
            at - interval '9 s', at - interval '8 s', at - interval '1 s', at,
            decode(lpad(to_hex(n % :causes), 16, '0'), 'hex')
        FROM generate_series(1, :failed) AS n,
            LATERAL (SELECT now() - interval '1 day' * (n * 7.0 / :failed) AS at) AS t
    """,
    "causes": """
        INSERT INTO task_fingerprint (fingerprint, kind, message, frames, first_at)
        SELECT decode(lpad(to_hex(n), 16, '0'), 'hex'), 'shop.Error' || n, 'order N was refused',
            ARRAY['shop.orders:charge'], now() - interval '7 days' FROM generate_series(0, :causes - 1) AS n
    """,
    "attempts": """
        INSERT INTO task_attempt (task_id, attempt, event, kind, message, traceback, owner, started_at, ended_at)
        SELECT e.id, a, CASE a WHEN 3 THEN 'fail' ELSE 'retry' END, 'shop.Error', e.error,
            repeat('  File "/srv/shop/orders.py", line 7, in charge' || chr(10), 6), 'node-a:1:2',
            e.started_at, e.finished_at
        FROM task_error e, generate_series(1, 3) AS a
    """,
    "counters": """
        INSERT INTO task_count (span, at, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
        SELECT s.span, date_trunc('hour', now()) - s.span * n * interval '1 minute', 'job.n' || name,
            'q' || name % 12, o.outcome, 90, 900, 4000, '{{1,4,20,40,20,5}}', '{{0,2,9,30,30,15,4}}'
        FROM (VALUES (1, 120), (60, 168)) AS s(span, most), generate_series(0, s.most) AS n,
            generate_series(0, 39) AS name, (VALUES (1), (5), (6)) AS o(outcome)
    """,
    "workers": """
        INSERT INTO task_worker (owner, node, queues, handlers, running, started_at, seen_at, threads)
        SELECT 'node-' || n % 8 || ':' || n, 'node-' || n % 8, ARRAY(SELECT 'q' || q FROM generate_series(0, 11) AS q),
            ARRAY(SELECT 'job.n' || h FROM generate_series(0, 39) AS h), '[]', now(), now() + interval '1 h', 4
        FROM generate_series(1, 64) AS n
    """,
    "schedules": """
        INSERT INTO task_schedule_fire (schedule_id, fire_at, outcome, task_id, fired_at)
        SELECT s.id, now() - n * interval '15 minutes', 'made', s.id * 200 + n, now() - n * interval '15 minutes'
        FROM task_schedule s, generate_series(1, 200) AS n
    """,
    "groups": """
        WITH made AS (
            INSERT INTO task_group (total, succeeded, failed)
            SELECT 500, 480, 2 FROM generate_series(1, 1000) RETURNING id)
        INSERT INTO task_group_ids (group_id, no, ids)
        SELECT id, 0, ARRAY(SELECT :completed - 500 + n FROM generate_series(1, 500) AS n) FROM made
    """,
    "audit": """
        INSERT INTO task_audit (role, who, action, what, number, ids)
        SELECT 'app', 'mira', 'requeue', '{{}}', 1, ARRAY[n] FROM generate_series(1, 20000) AS n
    """,
}
_TIGHT = {"name": _NAME, "queue": _QUEUE}
GROUPS, FLOWS = 1_000, 500  # the last flow is a chain of 100 steps
FLOW = GROUPS + FLOWS
FINGERPRINT, TASK, FAILED_TASK = "0" * 14 + "2a", COMPLETED - 5, COMPLETED + PENDING + 42
PAGES = (
    *("/", "/history?within=1h", "/history?within=24h", "/history?within=7d"),
    *("/tasks", "/tasks?state=SUCCEEDED", "/tasks?state=FAILED", "/tasks?pool=pending"),
    *("/tasks?name=job.n3", f"/tasks?name={RARE}", "/tasks?name=no.such", "/tasks?queue=q3"),
    *("/tasks?queue=no-such", "/tasks?biz_key=order:4000", "/tasks?error=was+refused"),
    *("/tasks?error=order+77+was", "/tasks?payload=4711", "/tasks?state=CANCELLED&name=job.n1"),
    *("/tasks?since=1h", "/tasks?since=24h", "/tasks?group=7", "/tasks?schedule=s7"),
    *(f"/tasks/{TASK}", f"/tasks/{FAILED_TASK}", f"/tasks/{FAILED_TASK}/edit"),
    *("/errors", "/errors?since=24h", "/errors?name=job.n3", f"/errors/{FINGERPRINT}"),
    f"/bulks/new?action=requeue&fingerprint={FINGERPRINT}",
    *("/schedules", "/schedules/s7", "/queues", "/queues/q3", "/groups", "/groups/7"),
    *("/flows", "/flows?state=stalled", f"/flows/{FLOW}", "/events", "/events?state=waiting"),
    *("/batches", "/workers", "/audit", "/audit?who=mira", "/audit?task=19"),
    *("/find?q=4000000", "/find?q=order:4000", "/find?q=job"),
)
ONLY_PAGES = ("/bulks/new", f"/tasks/{FAILED_TASK}/edit")
"""They have no counterpart in the API."""


def fill(database: Database) -> None:
    with database.begin() as connection:
        migrate(connection)
        days = missing_partitions(connection)
        past = [days[0] - timedelta(days=back) for back in range(1, 9)]
    for day in (*past, *days):
        with database.begin() as connection:
            add_partition(connection, day.astimezone(UTC))
    with database.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        _schedules(connection)
        for statement in _FILLS.values():
            _fill(connection, statement)
        _flows(connection)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM (ANALYZE)"))


def _fill(connection: Connection, statement: str) -> None:
    values = {"completed": COMPLETED, "pending": PENDING, "failed": FAILED, "causes": CAUSES}
    filled = statement.format(**_TIGHT)
    given = {name: value for name, value in values.items() if f":{name}" in filled}
    connection.execute(text(filled), {**given, **({"rare": RARE} if ":rare" in filled else {})})


def _schedules(connection: Connection) -> None:
    from tasks_app import create_schedule

    for number in range(200):
        create_schedule(connection, f"s{number}", f"job.n{number % 40}", every="15m")


def _flows(connection: Connection) -> None:
    from tasks_app import Flow, create_flow, event

    ids = "SELECT setval(pg_get_serial_sequence('task_pending', 'id'), :last)"
    connection.execute(text(ids), {"last": COMPLETED + PENDING + FAILED})
    for number in range(1, FLOWS + 1):
        flow = Flow("order")
        before = flow.step("step0", "job.n1", needs=event(f"order:{number}"))
        for step in range(1, 100 if number == FLOWS else 5):
            before = flow.step(f"step{step}", "job.n1", needs=before)
        create_flow(connection, flow)


@contextmanager
def served(url: str) -> Iterator[str]:
    """Serve the dashboard; yield its address."""
    # Browsers share what was read within a second or two; here each request pays for itself.
    PageReader.read = _read  # type: ignore[method-assign,assignment]
    # As uvicorn makes it: without the protocol's number, each answer waits 40 ms for Nagle.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = dashboard_app(Settings(database_url=SecretStr(url)))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _read(
    reader: PageReader,
    _key: Hashable,
    read: Callable[[Connection], Any],
    keep_s: float = 0,  # noqa: ARG001
    pause: float = 0,  # noqa: ARG001
) -> Any:
    with reader.engine.connect() as connection:
        return read(connection)


def measure(address: str, path: str, times: int) -> tuple[float, float, int]:
    """Return p50 and p95 in milliseconds, and the status."""
    taken, status = [], 0
    with httpx.Client(base_url=address, timeout=30) as client:
        client.get(path)
        for _ in range(times):
            begin = time.perf_counter()
            status = client.get(path).status_code
            taken.append((time.perf_counter() - begin) * 1000)
    taken.sort()
    return taken[len(taken) // 2], taken[int(len(taken) * 0.95) - 1], status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a database that is filled already, or else an empty one")
    parser.add_argument("--filled", action="store_true", help="it is filled already")
    parser.add_argument("--times", type=int, default=ASKED)
    parser.add_argument("--only", help="addresses that contain this")
    options = parser.parse_args()
    if options.url:
        sys.exit(_run(options.url, options))
    with temporary() as stack:
        status = _run(stack.urls.database, options)
    sys.exit(status)


def _run(url: str, options: argparse.Namespace) -> int:
    if not options.filled:
        database = Database(url)
        fill(database)
        database.dispose()
    slow = 0
    print("| address | p50 ms | p95 ms | p95 ms of the API |\n|---|---|---|---|")
    with served(url) as address:
        for path in PAGES:
            if options.only and options.only not in path:
                continue
            page, status = measure(address, path, options.times), ""
            api = (
                None
                if path.startswith(ONLY_PAGES)
                else f"/api{'/overview' if path == '/' else path}"
            )
            said = measure(address, api, options.times) if api else None
            worst = max(page[1], said[1] if said else 0)
            slow += (late := worst > (OVERVIEW_MS if path == "/" else MOST_MS))
            status = "" if page[2] in (200, 303) and (not said or said[2] == 200) else " **failed**"
            figures = f"{page[0]:.0f} | {page[1]:.0f} | {f'{said[1]:.0f}' if said else ''}"
            print(f"| `{path}` | {figures} |{' **slow**' if late else ''}{status}", flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    main()
