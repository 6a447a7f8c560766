"""A project changes its scheme while tasks wait: none is moved, lost, or begun anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from tasks_app import sql_handler
from tasks_app.pool.db_scheduler import functions
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of
from tests.runtime.bench import NOW_DUE, Bench

EFFECTS = "SELECT array_agg(n ORDER BY n) FROM sql_effect"
WAITING = "SELECT array_agg(id ORDER BY id) FROM task_pending"


@pytest.fixture
def shop(bench: Bench) -> Iterator[Bench]:
    """Two tasks in SQL that a worker knows, and the database, too."""
    sql_handler("add", "INSERT INTO sql_effect VALUES (:n)", registry=bench.registry)
    sql_handler(
        "wait", "SELECT 1 / count(*) FROM sql_ready", registry=bench.registry, retry="1s,1s,1s"
    )
    with bench.engine.begin() as connection:
        connection.execute(text("CREATE TABLE sql_effect (n integer); CREATE TABLE sql_ready ()"))
        tasks = sql_tasks_of(bench.registry, bench.settings(), leave=False)
        functions.create(connection, bench.settings(), tasks)
    yield bench
    with bench.engine.begin() as connection:
        functions.drop(connection)
        connection.execute(text("DROP TABLE sql_effect, sql_ready"))


def by_the_database(shop: Bench) -> None:
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CALL task_run_sql()"))


def by_messages(shop: Bench) -> None:
    """As a Celery worker's child does it."""
    shop.execute(shop.sql(WAITING))


def by_work(shop: Bench) -> None:
    shop.drain()


@pytest.mark.test_all
def test_each_goes_on_where_the_other_stopped(shop: Bench) -> None:
    patient = shop.create("wait")
    ways = (by_the_database, by_messages, by_the_database, by_work)
    for n, way in enumerate(ways):
        shop.create("add", {"n": n})
        if way is by_work:
            shop.sql("INSERT INTO sql_ready DEFAULT VALUES")
        shop.sql(NOW_DUE)
        way(shop)

        assert shop.sql(EFFECTS) == list(range(n + 1)), way
        assert shop.task(patient).attempt == n + 1

    task = shop.task(patient)
    assert (str(task.state), task.failures) == ("SUCCEEDED", 3)
    assert [(each.attempt, each.event) for each in shop.attempts(patient)] == [
        (n, "retry") for n in (1, 2, 3)
    ]
    assert shop.sql(WAITING) is None
