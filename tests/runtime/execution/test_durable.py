"""What a reader saw through ``ctx.connection`` or ``ctx.session`` outlives any crash of the server.

``KILLS=12 TASKS=2000`` for more of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Self
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.embedded.servers import Postgres
from tasks_app.pool.schema import migrate
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench

KILLS, TASKS = int(os.environ.get("KILLS", "2")), int(os.environ.get("TASKS", "300"))
WAYS = ("connection", "session", "write")
pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]


class Reader:
    """Looks all the time at what there is."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("+psycopg", "")
        self._over = threading.Event()
        self.seen: set[tuple[int, str]] = set()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True) as connection:
                    while not self._over.is_set():
                        self.seen.update(connection.execute("SELECT * FROM effect"))
            except psycopg.Error:
                self._over.wait(0.01)


@pytest.fixture
def server(open_folder: Path) -> Iterator[Postgres]:
    with Postgres(open_folder / "own") as server:
        yield server


@pytest.fixture
def bench(server: Postgres, tmp_path: Path) -> Iterator[Bench]:
    """A handler for each way to write, on a server that may be killed; no run writes the same."""
    engine = create_engine(server.url_of("postgres"), pool_pre_ping=True)
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE effect (task_id bigint, note text)"))
    bench = Bench(engine, server.url_of("postgres"), tmp_path)

    @bench.handler("connection")
    def by_connection(ctx: Any) -> None:
        ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": f"connection {uuid4()}"})

    @bench.handler("session")
    def by_session(ctx: Any) -> None:
        ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": f"session {uuid4()}"})

    @bench.handler("write")
    def by_write(ctx: Any) -> None:
        ctx.write("INSERT INTO effect VALUES (%s, %s)", (ctx.task_id, f"write {uuid4()}"))

    yield bench
    bench.close()
    engine.dispose()


def burst(bench: Bench, server: Postgres, reader: Reader, until_seen: int) -> list[int]:
    """Kill the server when so many of a burst of tasks were seen; return their ids."""
    ids = sorted(bench.do(create_tasks, [NewTask(WAYS[n % 3]) for n in range(TASKS)]))
    child, before = bench.child(), len(reader.seen)
    thread = threading.Thread(target=child.execute, args=(ids,))
    thread.start()
    until(lambda: len(reader.seen) - before >= until_seen, 60)
    server.kill()
    server.start()
    thread.join()
    until(lambda: child.inflight.empty, 60)
    child.stop()
    return [int(i) for i in ids]


def test_nothing_that_was_seen_is_taken_back(bench: Bench, server: Postgres) -> None:
    random, ids = Random(7), list[int]()
    with Reader(bench.url) as reader:
        for _ in range(KILLS):
            ids += burst(bench, server, reader, random.randint(1, TASKS * 2 // 3))
    until(lambda: drained(bench), 60)
    kept = set(bench.rows("SELECT task_id, note FROM effect"))
    assert {seen for seen in reader.seen if not seen[1].startswith("write")} <= kept
    assert sorted(task_id for task_id, _ in kept) == sorted(ids)
    assert set(bench.states(ids)) == {"SUCCEEDED"}


def drained(bench: Bench) -> bool:
    """Run what waits for its time, and what a lease still holds."""
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now() WHERE state = 'PENDING'")
    bench.sql("UPDATE task_pending SET lease_until = now() WHERE state = 'RUNNING'")
    bench.drain()
    return not bench.sql("SELECT count(*) FROM task_pending")
