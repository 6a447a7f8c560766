"""How long does a create wait while the schema is migrated? ``python -m benchmarks.migration``.

A pool of many rows, some versions behind, in which producers create, workers claim and settle, and
somebody keeps a transaction open for a while. ``--at-once`` migrates in one transaction.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

from alembic import command
from sqlalchemy import Connection, create_engine, text

from tasks_app.domain.creation.new_task import NewTask, validate
from tasks_app.domain.tasks.run import Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.embedded import temporary
from tasks_app.pool import schema
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.create import create_one
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.migration import migrate

ROW = validate(NewTask("bench", {"order_id": 42}), None, 65_536)
CLAIMER = Claimer("bench", timedelta(seconds=30), ("bench",), (3,), (False,))
FILL = """
    INSERT INTO task_pending (name, queue, due_at, scan_at, expires_at)
    SELECT 'other', 'default', d, d, CASE WHEN n % 2 = 0 THEN d + interval '1 h' END
    FROM generate_series(1, :rows) n, LATERAL (SELECT now() + interval '1 d') AS x(d)
"""


class Load:
    """Producers, workers and open transactions, and the longest wait of each kind."""

    def __init__(self, url: str, hold_s: float) -> None:
        self._engine = create_engine(url, pool_size=10)
        self._hold_s = hold_s
        self._over = threading.Event()
        self.longest = {"create": 0.0, "create, claim and settle": 0.0}
        self.number = 0
        acts = (self._create, self._create, self._live, self._hold)
        self._threads = [threading.Thread(target=self._again, args=(act,)) for act in acts]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop them."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._engine.dispose()

    def reset(self) -> None:
        """Count from here on."""
        self.longest, self.number = dict.fromkeys(self.longest, 0.0), 0

    def _again(self, act: Callable[[Connection], str]) -> None:
        while not self._over.wait(0.005):
            begin = time.monotonic()
            with self._engine.begin() as connection:
                what = act(connection)
            if what:
                took = time.monotonic() - begin
                self.longest[what] = max(self.longest[what], took)
                self.number += 1

    def _create(self, connection: Connection) -> str:
        create_one(connection, ROW)
        return "create"

    def _live(self, connection: Connection) -> str:
        task_id = create_one(connection, ROW)
        (task,) = claim(connection, [task_id], CLAIMER, uuid4())
        settle_one(connection, Settlement(task.fence, Event.SUCCEED, 0, 0, run_ms=1))
        return "create, claim and settle"

    def _hold(self, connection: Connection) -> str:
        create_one(connection, ROW)
        connection.execute(text("SELECT pg_sleep(:s)"), {"s": self._hold_s})
        return ""


def main() -> None:
    """Fill a pool, migrate it under load, print what the others saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--start", default="0025", help="the version that it is migrated from")
    parser.add_argument("--hold", type=float, default=2.0, help="seconds of open transactions")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds of load before and after")
    parser.add_argument("--at-once", action="store_true", help="all in one transaction")
    options = parser.parse_args()
    with temporary() as stack:
        _run(stack.postgres.url, options)


def _run(url: str, options: argparse.Namespace) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        config = schema._config()  # noqa: SLF001
        config.attributes.update(connection=connection, say=lambda _: None)
        command.upgrade(config, options.start)
        connection.execute(text(FILL), {"rows": options.rows})
    load = Load(url, options.hold)
    try:
        time.sleep(options.calm)
        print("without it:   ", _said(load), flush=True)
        load.reset()
        begin = time.monotonic()
        if options.at_once:
            with engine.begin() as connection:
                schema.migrate(connection)
        else:
            migrate(Database(url), lambda said: print("  ", said, flush=True))
        took = time.monotonic() - begin
        time.sleep(1)  # a wait is known when it is over
        print("meanwhile:    ", _said(load), f"(it took {took:.1f} s)", flush=True)
        load.reset()
        time.sleep(options.calm)
        print("after it:     ", _said(load), flush=True)
    finally:
        load.end()
        engine.dispose()


def _said(load: Load) -> str:
    waits = ", ".join(f"{what} {1000 * took:.0f} ms" for what, took in load.longest.items())
    return f"{load.number} transactions; longest {waits}"


if __name__ == "__main__":
    main()
