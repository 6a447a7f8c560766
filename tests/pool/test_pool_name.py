"""A pool has a name, of which nobody has to think, and no two share one."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import Engine

from tasks_app.pool.tables import pool_name
from tests.servers import Databases


def test_it_stays_as_it_is(engine: Engine) -> None:
    names = []
    for _ in range(2):
        with engine.connect() as connection:
            names.append(pool_name(connection))

    assert names[0] == names[1]
    assert len(names[0] or "") == 12


@pytest.mark.test_all
def test_a_copy_of_the_database_has_another(engine: Engine, databases: Databases) -> None:
    body = "SELECT prosrc FROM pg_proc WHERE proname = 'task_pool'"
    with engine.connect() as connection:
        own, source = pool_name(connection), connection.execute(text(body)).scalar_one()
    copy = create_engine(databases.create("pool_copy"))
    try:
        with copy.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION task_pool() RETURNS text LANGUAGE sql AS $${source}$$"
            )
            assert pool_name(connection) not in (None, own)
    finally:
        copy.dispose()
        databases.drop("pool_copy")


def test_a_schema_that_knows_none_fails_nobodys_transaction(connection: Connection) -> None:
    connection.execute(text("DROP FUNCTION task_pool()"))

    assert pool_name(connection) is None
    assert connection.execute(text("SELECT 1")).scalar() == 1


@pytest.mark.parametrize("role", ["pool_name_stranger"])
def test_whoever_may_use_the_schema_may_ask(connection: Connection, role: str) -> None:
    own = pool_name(connection)
    connection.exec_driver_sql(f"CREATE ROLE {role}")
    connection.exec_driver_sql(f"SET LOCAL ROLE {role}")

    assert pool_name(connection) == own
