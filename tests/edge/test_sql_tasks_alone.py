"""Tasks in SQL by the database alone, while its backends are terminated. Prints figures.

SQL_TASK_COUNT=10000 makes it larger.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app import NewTask, create_tasks, sql_handler
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.db_scheduler import functions
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(1800, method="thread")]

TASKS = int(os.environ.get("SQL_TASK_COUNT", "1000"))
RUNNERS = 3
SETTINGS = Settings().model_copy(update={"lease": timedelta(seconds=3)})
LEFT = text("SELECT count(*) FROM task_pending")
STATES = text("SELECT state, count(*) FROM task_all GROUP BY 1")
EFFECTS = text("SELECT count(*), count(DISTINCT task_id) FROM sql_effect")
AGAIN = text("SELECT count(*) FROM task_completed WHERE attempt > 1")
KILL = text("""
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE 'CALL task_run_sql%'
        ORDER BY random() LIMIT 1) AS one
""")


def _call(engine: Engine, command: str, over: threading.Event, every_s: float) -> None:
    """Call it again and again, as a scheduler does; a killed call is followed by the next."""
    while not over.wait(every_s):
        with (
            suppress(DBAPIError),
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(text(command))


def test_effect_and_outcome_are_one_to_one(engine: Engine) -> None:
    registry, over, killed = Registry(), threading.Event(), 0
    sql_handler(
        "slow.sql",
        "INSERT INTO sql_effect SELECT :n::bigint FROM pg_sleep(0.005)",
        registry=registry,
    )
    with engine.begin() as connection:
        connection.execute(
            text("DROP TABLE IF EXISTS sql_effect; CREATE TABLE sql_effect (task_id bigint)")
        )
        functions.create(connection, SETTINGS, sql_tasks_of(registry, SETTINGS, leave=False))
        create_tasks(connection, [NewTask("slow.sql", {"n": n}) for n in range(TASKS)])
    calls = ["CALL task_run_sql()"] * RUNNERS + ["SELECT task_rescue_expired()"]
    threads = [
        threading.Thread(target=_call, args=(engine, call, over, 0.1), daemon=True)
        for call in calls
    ]
    began = next_kill = time.monotonic()
    for thread in threads:
        thread.start()

    def is_done() -> bool:
        nonlocal killed, next_kill
        with engine.begin() as connection:
            left = connection.execute(LEFT).scalar_one()
            if left > TASKS // 20 and time.monotonic() > next_kill:
                next_kill = time.monotonic() + 0.3
                killed += connection.execute(KILL).scalar_one()
        return left == 0

    until(is_done, 1500, "all tasks over")
    took = time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    with engine.begin() as connection:
        states = dict(connection.execute(STATES).all())
        effects = tuple(connection.execute(EFFECTS).one())
        again = connection.execute(AGAIN).scalar_one()
        functions.drop(connection)
        connection.execute(text("DROP TABLE sql_effect"))
    print(f"{TASKS} tasks in {took:.0f} s, {killed} backends killed, {again} tasks ran again")
    assert (states, effects) == ({"SUCCEEDED": TASKS}, (TASKS, TASKS))
    assert min(killed, again) > 0
