"""The connections of one process: what a pooler in between would do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest
from psycopg.errors import InvalidSqlStatementName
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import DBAPIError

from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_lost, is_unanswered
from tests.factory import claimer, ending, pending_task, pool_of_task

OFTEN = 12
"""More often than it takes psycopg to prepare a statement."""
OPTIONS = text("""
    SELECT current_setting('enable_seqscan'), current_setting('jit'),
        current_setting('lock_timeout')
""")
OURS, THE_SERVERS = ("off", "off", "1s"), ("on", "on", "0")


@pytest.fixture(params=[True, False], ids=["prepared", "for a pooler"])
def database(request: pytest.FixtureRequest, database_url: str) -> Iterator[Database]:
    """Both kinds."""
    database = Database(database_url, prepare=request.param)
    yield database
    database.dispose()


def work(database: Database, engine: Engine) -> None:
    """Claim and settle a task often; between two transactions everybody else uses the server."""
    for _ in range(OFTEN):
        with engine.begin() as connection:
            task_id = pending_task(connection)
        with database.begin() as connection:
            (task,) = claim(connection, [task_id], claimer(), uuid4())
        with database.single() as connection:
            settle_group(connection, [ending(task)])
        with database.engine.connect() as connection:
            connection.connection.driver_connection.pgconn.exec_(b"DISCARD ALL")
        with engine.connect() as connection:
            assert pool_of_task(connection, task_id) == "completed SUCCEEDED"


def test_behind_a_pooler_no_statement_hangs_on_its_connection(
    database: Database, engine: Engine, request: pytest.FixtureRequest
) -> None:
    if "prepared" in request.node.name:
        with pytest.raises(DBAPIError) as raised:
            work(database, engine)
        assert isinstance(raised.value.orig, InvalidSqlStatementName)
    else:
        work(database, engine)


@pytest.mark.parametrize("way", ["begin", "single"])
def test_our_settings_hold_in_all_that_we_do(database: Database, way: str) -> None:
    """Without its lock_timeout a housekeeper that waits for somebody's lock looks dead."""
    for _ in range(2):
        with getattr(database, way)() as connection:
            assert connection.execute(OPTIONS).one() == OURS


def test_a_pooler_gets_its_server_back_without_our_settings(
    database: Database, request: pytest.FixtureRequest
) -> None:
    with database.begin() as connection:
        connection.execute(OPTIONS)
    with database.engine.connect() as connection:
        server = connection.connection.driver_connection
        found = server.execute(OPTIONS.text).fetchone()

    assert found == (OURS if "prepared" in request.node.name else THE_SERVERS)


def test_how_the_sql_of_handlers_is_planned_is_their_own_business(database: Database) -> None:
    with database.handler_engine.connect() as connection:
        assert connection.execute(OPTIONS).one() == THE_SERVERS


@pytest.mark.parametrize("way", ["begin", "single"])
def test_a_connection_that_dies_while_it_is_used_is_unanswered_once(
    database: Database, engine: Engine, way: str
) -> None:
    def work() -> None:
        with getattr(database, way)() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            connection.execute(OPTIONS)

    with pytest.raises(DBAPIError) as raised:
        work()

    assert is_unanswered(raised.value)
    assert is_lost(raised.value)
    with getattr(database, way)() as connection:
        assert connection.execute(OPTIONS).one() == OURS


def ask_pid(database: Database) -> int:
    with database.single() as connection:
        pid: int = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        return pid


def test_a_connection_for_single_statements_stays_at_hand(database_url: str) -> None:
    database, lent = Database(database_url), list[object]()
    event.listen(database.engine, "checkout", lambda *_: lent.append(_))

    assert len({ask_pid(database) for _ in range(3)}) == 1

    assert len(lent) == 1
    database.dispose()
    assert database.engine.pool.checkedout() == 0


def test_it_is_one_and_who_finds_it_taken_uses_the_pool(database_url: str) -> None:
    database = Database(database_url)

    with database.single() as first, database.single() as second:
        assert first.connection.driver_connection is not second.connection.driver_connection

    assert database.engine.pool.checkedout() == 1
    with suppress(DBAPIError), database.single() as connection:
        connection.execute(text("SELECT 1 / 0"))
    assert database.engine.pool.checkedout() == 0  # whatever state it is in
    database.dispose()


SET = text("SELECT current_setting('search_path'), current_setting('app.tenant')")


@pytest.mark.parametrize("how", ["URL", "environment"])
def test_options_of_the_url_and_of_the_environment_hold_on_every_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options = "-c search_path=elsewhere -c app.tenant=7 -c enable_seqscan=on -c jit=on"
    url = make_url(database_url)
    if how == "URL":
        url = url.update_query_dict({"options": options})
    else:
        monkeypatch.setenv("PGOPTIONS", options)
    database = Database(url.render_as_string(hide_password=False))
    migrating = database.migration_engine()
    for engine in (database.engine, database.handler_engine, migrating):
        with engine.connect() as connection:
            assert connection.execute(SET).one() == ("elsewhere", "7")
    with database.engine.connect() as connection:
        assert connection.execute(OPTIONS).one() == OURS
    migrating.dispose()
    database.dispose()
