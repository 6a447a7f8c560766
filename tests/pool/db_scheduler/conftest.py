"""The functions of the database; and tasks in SQL that it carries out alone, what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_task, sql_handler
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.db_scheduler import functions
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of

SETTINGS = Settings()


@pytest.fixture
def database(engine: Engine, database_url: str) -> Iterator[Database]:
    """The shared database with the functions."""
    with engine.begin() as connection:
        functions.create(connection, SETTINGS)
    found = Database(database_url)
    yield found
    found.dispose()
    with engine.begin() as connection:
        functions.drop(connection)


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    sql_handler("add", "INSERT INTO sql_effect VALUES (:n, :note)", registry=found)
    sql_handler("call", "CALL put(:day)", registry=found, retry="7s,1m")
    sql_handler("divide", "SELECT 1 / :n::int", registry=found, retry="7s,1m", max_attempts=2)
    sql_handler(
        "wait", "INSERT INTO sql_effect SELECT 1, pg_advisory_xact_lock(77)", registry=found
    )
    return found


@pytest.fixture
def installed(engine: Engine, registry: Registry) -> Iterator[None]:
    with engine.begin() as connection:
        connection.execute(
            text("""CREATE TABLE sql_effect (n integer, note text);
                CREATE PROCEDURE put(day date) LANGUAGE sql
                AS 'INSERT INTO sql_effect VALUES (0, to_char(day, ''DD.MM.''))'""")
        )
        tasks = sql_tasks_of(registry, SETTINGS, leave=False)
        functions.create(connection, SETTINGS, tasks)
    yield
    with engine.begin() as connection:
        functions.drop(connection)
        connection.execute(text("DROP PROCEDURE put; DROP TABLE sql_effect"))


def create(engine: Engine, name: str, payload: Any = None, **options: Any) -> int:
    with engine.begin() as connection:
        return create_task(connection, name, payload, **options)


def run(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CALL task_run_sql()"))


@pytest.fixture
def ends(engine: Engine) -> Callable[[], dict[str, tuple]]:
    """Where tasks are, by name; and the effects."""

    def read() -> dict[str, tuple]:
        with engine.connect() as connection:
            rows = connection.execute(
                text("SELECT name, state, attempt, failures, crashes FROM task_all")
            )
            return {row[0]: tuple(row[1:]) for row in rows}

    return read


def effects(engine: Engine) -> list[tuple]:
    with engine.connect() as connection:
        return [
            tuple(r) for r in connection.execute(text("SELECT n, note FROM sql_effect ORDER BY 1"))
        ]
