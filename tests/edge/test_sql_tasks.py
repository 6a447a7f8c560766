"""Tasks in SQL while backends are terminated in the middle of their statements. Prints figures.

SQL_TASK_COUNT=10000 makes it larger.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks
from tests.edge.gated_runs import Workers
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(1800, method="thread")]

TASKS = int(os.environ.get("SQL_TASK_COUNT", "1000"))
TABLE = text("DROP TABLE IF EXISTS effect; CREATE TABLE effect (task_id bigint, note text)")
LEFT = text("SELECT count(*) FROM task_pending")
STATES = text("""
    SELECT state, count(*) FROM (
        SELECT state FROM task_completed UNION ALL SELECT state FROM task_error) AS s GROUP BY 1
""")
EFFECTS = text("SELECT count(*), count(DISTINCT task_id) FROM effect")
AGAIN = text("SELECT count(*) FROM task_completed WHERE attempt > 1")
KILL = text("""
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
          AND query LIKE 'INSERT INTO effect%pg_sleep%'
        ORDER BY random() LIMIT 1) AS one
""")


@contextmanager
def kills(engine: Engine, every_s: float, killed: list[int]) -> Iterator[None]:
    """Terminate one backend that carries out a statement every so often, meanwhile."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_s):
            with engine.begin() as connection:
                killed.append(connection.execute(KILL).scalar_one())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_effect_and_outcome_are_one_to_one(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        connection.execute(TABLE)
        create_tasks(connection, [NewTask("slow.sql", {"n": n}) for n in range(TASKS)])
    killed: list[int] = []
    began = time.monotonic()

    workers = Workers(database_url, tmp_path, 2, threads=2, imports="house_handlers")
    try:
        with kills(engine, 0.1, killed):
            until(lambda: _left(engine) == 0, 1500, "all tasks to be over")
    finally:
        workers.stop()

    with engine.connect() as connection:
        states = {row.state: row.count for row in connection.execute(STATES)}
        effects = tuple(connection.execute(EFFECTS).one())
        again = connection.execute(AGAIN).scalar_one()
    seconds = time.monotonic() - began
    print(f"\n{TASKS:,} tasks in {seconds:.0f} s, {sum(killed)} backends killed, {again} run again")
    assert states == {"SUCCEEDED": TASKS}
    assert effects == (TASKS, TASKS)
    assert sum(killed) > 10


def _left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(LEFT).scalar_one())
