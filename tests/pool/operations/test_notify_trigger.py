"""The opt-in trigger: what it tells of, and that nobody needs rights for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import NewTask, create_task, create_tasks
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.dispatch.notifications import listen, received_queues
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.notify import dedicated_connection
from tests.servers import named
from tests.waiting import until


@pytest.fixture
def trigger(engine: Engine) -> Iterator[None]:
    """It is installed; nobody else's tests meet it."""
    with engine.begin() as connection:
        assert notifications.install_trigger(connection)
    yield
    with engine.begin() as connection:
        assert notifications.remove_trigger(connection)


@pytest.fixture
def ear(database_url: str) -> Iterator[Connection]:
    """A connection that listens."""
    with dedicated_connection(Database(database_url)) as connection:
        listen(connection)
        yield connection


@contextmanager
def told(ear: Connection, queues: set[str]) -> Iterator[None]:
    """These queues are told of, and before them no other: notices come in order of commits."""
    yield
    heard: set[str] = set()
    until(lambda: heard.update(received_queues(ear)) or heard >= queues)
    assert heard == queues


@pytest.mark.usefixtures("trigger")
def test_it_tells_of_tasks_that_sql_creates(engine: Engine, ear: Connection) -> None:
    with told(ear, {"default", "mail"}), engine.begin() as connection:
        connection.execute(text("SELECT task_create('t')"))
        connection.execute(
            text("SELECT task_create('t', queue => 'mail') FROM generate_series(1, 3)")
        )
        ear.execute(text("SELECT 1"))
        assert received_queues(ear) == set()


@pytest.mark.usefixtures("trigger")
def test_nothing_is_told_of_a_rollback_nor_of_what_nobody_can_run_now(
    engine: Engine, ear: Connection
) -> None:
    with engine.begin() as connection:
        create_task(connection, "t", queue="later", delay="1h")
        create_task(connection, "t", queue="off", enabled=False)
        connection.execute(
            text(
                "INSERT INTO task_pending (name, queue, due_at, scan_at)"
                " VALUES ('t', 'parked', now(), now() + CAST(:wait AS interval))"
            ),
            {"wait": timedelta(seconds=3)},
        )
    with engine.connect() as connection:
        create_task(connection, "t", queue="undone")
        connection.rollback()

    with told(ear, {"last"}), engine.begin() as connection:
        create_task(connection, "t", queue="last")


@pytest.mark.usefixtures("trigger")
def test_one_notice_a_queue_for_many_tasks(engine: Engine, database_url: str) -> None:
    with dedicated_connection(Database(database_url)) as ear:
        listen(ear)
        pgconn = ear.connection.dbapi_connection.pgconn  # type: ignore[union-attr]
        notices = []
        with engine.begin() as connection:
            create_tasks(connection, [NewTask("t")] * 2_000)  # by COPY

        def told() -> bool:
            pgconn.consume_input()
            while notice := pgconn.notifies():
                notices.append(notice.extra)
            return bool(notices)

        until(told)
        assert notices == [b"default"]


def test_what_is_there_is_not_made_again(engine: Engine) -> None:
    with engine.begin() as connection:
        assert not notifications.is_trigger_installed(connection)
        assert not notifications.remove_trigger(connection)
        assert notifications.install_trigger(connection)
        assert not notifications.install_trigger(connection)
        assert notifications.is_trigger_installed(connection)
        assert notifications.remove_trigger(connection)


@pytest.mark.usefixtures("trigger")
def test_a_producer_needs_no_more_rights(engine: Engine, ear: Connection) -> None:
    role = named("told")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        for statement in grants_sql(RoleKind.PRODUCER, role).splitlines():
            connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.execute(text(f"SET ROLE {role}"))
        create_task(connection, "t", queue="mail")
        connection.execute(text("RESET ROLE"))
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))
        with told(ear, {"mail"}):
            connection.commit()
