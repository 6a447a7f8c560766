"""What a statement of a task in SQL is given by the database, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app import sql_handler
from tasks_app.pool.db_scheduler import functions
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of
from tests.pool.db_scheduler.conftest import SETTINGS, create, effects, run

pytestmark = pytest.mark.usefixtures("installed")


def test_a_value_is_as_long_as_its_column(engine: Engine) -> None:
    others = Registry()
    sql_handler("code", "INSERT INTO coded VALUES (:code, :bits)", registry=others)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE coded (code char(3), bits bit(3))"))
        functions.create(connection, SETTINGS, sql_tasks_of(others, SETTINGS, leave=False))
    create(engine, "code", {"code": "EUR", "bits": "101"})
    run(engine)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT * FROM coded")).all() == [("EUR", "101")]
        connection.execute(text("DROP TABLE coded"))


def test_what_a_deferred_trigger_refuses_is_charged_and_others_go_on(
    engine: Engine, ends: Any
) -> None:
    others = Registry()
    sql_handler("child", "INSERT INTO child VALUES (:n)", registry=others)
    sql_handler("free", "INSERT INTO sql_effect VALUES (1, 'x')", registry=others)
    with engine.begin() as connection:
        connection.execute(
            text("""CREATE TABLE parent (n int PRIMARY KEY);
                CREATE TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)""")
        )
        functions.create(connection, SETTINGS, sql_tasks_of(others, SETTINGS, leave=False))
    create(engine, "child", {"n": 1})
    create(engine, "free")
    run(engine)
    with engine.begin() as connection:
        kinds = connection.execute(text("SELECT kind FROM task_attempt")).scalars().all()
        connection.execute(text("DROP TABLE child, parent"))
    assert ends() == {"child": ("PENDING", 1, 1, 0), "free": ("SUCCEEDED", 1, 0, 0)}
    assert kinds == ["SQLSTATE 23503"]


@pytest.mark.parametrize("sets", ["search_path TO pg_catalog", "ROLE pg_monitor", "jit TO off"])
def test_what_a_procedure_sets_is_taken_back(engine: Engine, ends: Any, sets: str) -> None:
    seen = "concat_ws(' ', current_user, current_setting('search_path'), current_setting('jit'))"
    others = Registry()
    sql_handler("sets", "CALL sets()", registry=others)
    sql_handler("sees", f"INSERT INTO sql_effect VALUES (1, {seen})", registry=others)
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE PROCEDURE sets() LANGUAGE plpgsql AS 'BEGIN SET {sets}; END'")
        )
        functions.create(connection, SETTINGS, sql_tasks_of(others, SETTINGS, leave=False))
        as_before = connection.execute(text(f"SELECT {seen}")).scalar()
    create(engine, "sets")
    create(engine, "sees")
    run(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP PROCEDURE sets"))
    assert ends() == dict.fromkeys(("sets", "sees"), ("SUCCEEDED", 1, 0, 0))
    assert effects(engine) == [(1, as_before)]
