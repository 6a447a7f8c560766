"""Bloated indexes are found by estimate, and written anew beside others' work."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError
from tasks_app.pool.operations.maintenance import LEAST_WASTE, RelationSize, invalid_indexes, sizes
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.migration import reindex

INDEX = "task_attempt_task"
FILL = """
    INSERT INTO task_attempt (task_id, attempt, event, kind, message)
    SELECT n, 1, 'retry', '', '' FROM generate_series(1, 20000) AS n
"""
EMPTY = "DELETE FROM task_attempt WHERE mod(task_id, 20) > 0"


@pytest.fixture
def database(engine: Engine) -> Database:
    return Database(engine.url.render_as_string(hide_password=False))


@pytest.fixture
def bloated(engine: Engine) -> None:
    """An index of 20,000 entries of which every twentieth is left."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (FILL, EMPTY, "VACUUM ANALYZE task_attempt"):
            connection.exec_driver_sql(statement)


def size_of(engine: Engine, name: str = INDEX) -> RelationSize:
    with engine.connect() as connection:
        (found,) = [size for size in sizes(connection) if size.name == name]
    return found


def halves(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return invalid_indexes(connection)


def valid(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(
            connection.execute(
                text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"),
                {"name": INDEX},
            ).scalar()
        )


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_what_an_index_wastes_is_estimated(engine: Engine, database: Database) -> None:
    before = size_of(engine)
    assert before.wasted > 0.8 * before.bytes

    reindex(database, [INDEX])

    after = size_of(engine)
    assert after.bytes < before.bytes / 5
    assert after.wasted <= 0.5 * after.bytes


@pytest.mark.test_all
def test_a_fresh_index_is_not_called_bloated(engine: Engine, database: Database) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (FILL, "VACUUM ANALYZE task_attempt"):
            connection.exec_driver_sql(statement)
    reindex(database, [INDEX])

    found = size_of(engine)

    assert found.wasted < 0.3 * found.bytes


def test_small_waste_is_not_worth_it() -> None:
    def bloated(size: int, estimate: int | None) -> bool:
        return RelationSize("t", "i", "index", size, estimate).is_bloated

    assert bloated(3 * LEAST_WASTE, LEAST_WASTE)
    assert not bloated(LEAST_WASTE, 1000)
    assert not bloated(3 * LEAST_WASTE, 2 * LEAST_WASTE)
    assert not bloated(3 * LEAST_WASTE, None)


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_others_write_meanwhile(engine: Engine, database: Database) -> None:
    said: list[str] = []

    def write(words: str) -> None:
        said.append(words)
        with engine.begin() as connection:
            connection.exec_driver_sql(FILL)

    result = reindex(database, [INDEX, INDEX], write)

    assert [name for name, *_ in result.done] == [INDEX]
    assert said == [f"{INDEX}: {result.done[0][1]:,} bytes became {result.done[0][2]:,}"]
    assert valid(engine)


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_an_open_transaction_leaves_the_old_index_and_nothing_half_done(
    engine: Engine, database: Database
) -> None:
    with engine.connect() as other:
        other.exec_driver_sql("UPDATE task_attempt SET attempt = 2 WHERE task_id = 20")
        result = reindex(database, [INDEX], patience_s=0.3)
        other.rollback()

    assert (result.in_use, result.done) == ([INDEX], [])
    assert valid(engine)
    reindex(database, [INDEX])
    assert halves(engine) == []


@pytest.mark.usefixtures("bloated")
def test_what_a_killed_try_left_half_done_is_dropped(engine: Engine, database: Database) -> None:
    with engine.connect() as other:
        other.exec_driver_sql("UPDATE task_attempt SET attempt = 2 WHERE task_id = 20")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as killed:
            killed.exec_driver_sql("SET lock_timeout = '300ms'")
            with pytest.raises(DBAPIError):
                killed.exec_driver_sql(f"REINDEX INDEX CONCURRENTLY {INDEX}")
            killed.exec_driver_sql("RESET lock_timeout")
        other.rollback()
    assert halves(engine) == [f"{INDEX}_ccnew"]

    result = reindex(database)

    assert result.dropped == [f"{INDEX}_ccnew"]
    assert halves(engine) == []
    assert valid(engine)


def test_an_index_of_somebody_else_is_refused(engine: Engine, database: Database) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (id bigint PRIMARY KEY)")
    try:
        with pytest.raises(InvalidSelectionError, match="tasks_app has no index theirs_pkey"):
            reindex(database, ["theirs_pkey"])
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE theirs")


def test_only_the_owner_may(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS reindex_nobody")
        connection.exec_driver_sql("CREATE ROLE reindex_nobody LOGIN PASSWORD 'x'")
    url = engine.url.set(username="reindex_nobody", password="x")
    other = create_engine(url)
    try:
        with pytest.raises(ConfigurationError, match="does not own the tables"):
            reindex(Database(url.render_as_string(hide_password=False)))
    finally:
        other.dispose()
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP ROLE reindex_nobody")
