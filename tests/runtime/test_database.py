"""The connections of one process: what a pooler in between would do to them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg.errors import InvalidSqlStatementName
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app.pool.claim import claim
from tasks_app.pool.settle import settle_group
from tasks_app.runtime.database import Database
from tests.factory import claimer, ending, pending_task, pool_of_task

OFTEN = 12
"""More often than it takes psycopg to prepare a statement."""
OPTIONS = text("SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')")


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


def test_our_options_are_sent_unless_a_pooler_would_refuse_them(
    database: Database, request: pytest.FixtureRequest
) -> None:
    with database.begin() as connection:
        found = connection.execute(OPTIONS).one()

    assert found == (("off", "1s") if "prepared" in request.node.name else ("on", "0"))
