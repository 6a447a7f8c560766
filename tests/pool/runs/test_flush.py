"""Commits that did not wait for the disk are made durable, and looked for."""

from __future__ import annotations

from sqlalchemy import Engine, text

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.flush import flush
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending

ROLE = "flushes_nothing"


def test_all_before_it_is_on_disk(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("SET synchronous_commit = off"))
        task = claimed_task(connection)
        settle_one(connection, ending(task, Event.SUCCEED))
        written = connection.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
        connection.execute(text("SET synchronous_commit = on"))

        assert flush(connection, [task.fence]) == set()

        flushed = text("SELECT pg_current_wal_flush_lsn() >= :lsn")
        assert connection.execute(flushed, {"lsn": written}).scalar_one()


def test_a_run_that_the_server_has_forgotten_is_found(engine: Engine) -> None:
    """After its crash the row is as before the COMMIT."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        forgotten, settled = claimed_task(connection), claimed_task(connection)
        settle_one(connection, ending(settled, Event.SUCCEED))

        assert flush(connection, [forgotten.fence, settled.fence]) == {forgotten.task_id}


def test_a_role_that_may_not_leaves_it_to_the_server(engine: Engine) -> None:
    all_of_it = "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = :name"
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        task = claimed_task(connection)
        named = {"name": "pg_logical_emit_message"}
        functions = ", ".join(connection.execute(text(all_of_it), named).scalars())
        connection.execute(text(f"CREATE ROLE {ROLE}"))
        try:
            connection.execute(text(f"GRANT ALL ON task_pending TO {ROLE}"))
            connection.execute(text(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC"))
            connection.execute(text(f"SET ROLE {ROLE}"))

            assert flush(connection, [task.fence]) == {task.task_id}
        finally:
            connection.execute(text("RESET ROLE"))
            connection.execute(text(f"GRANT EXECUTE ON FUNCTION {functions} TO PUBLIC"))
            connection.execute(text(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}"))
