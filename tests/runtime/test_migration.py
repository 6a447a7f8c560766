"""A pool is migrated while others work on it: nobody waits long, and what was killed goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from tasks_app.domain.errors import SchemaError
from tasks_app.pool import schema
from tasks_app.pool.schema import current, lock_migrations, newest
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.migration import migrate
from tests.clock import until
from tests.factory import do, pending_task
from tests.releases import BETWEEN, NEXT, next_release
from tests.servers import Databases

pytestmark = pytest.mark.test_all

OLD = newest()
INDEX = "task_pending_colour"
IN_USE = "a table is in use; trying again"
BUILDS = text("""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%'
      AND state = 'active' AND wait_event_type = 'Lock'
""")
ASKED_AT = text("""
    SELECT query_start FROM pg_stat_activity
    WHERE datname = current_database() AND query ~ '^(SELECT pg_try_advisory|ROLLBACK)'
      AND pid NOT IN (:holder, pg_backend_pid())
""")
END_OTHERS = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid != pg_backend_pid()
""")
VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")

Start = Callable[..., Future]


@pytest.fixture(scope="module")
def old_database(databases: Databases) -> str:
    """The name of a database to copy, whose schema is that of this code."""
    engine = create_engine(databases.create("of_old"))
    do(engine, schema.migrate)
    engine.dispose()
    return "of_old"


@pytest.fixture(scope="module")
def next_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose first migration alters task_pending, and whose second builds an index."""
    return next_release(tmp_path_factory.mktemp("next"), oldest=OLD)


@pytest.fixture
def behind(
    databases: Databases, old_database: str, next_code: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """A copy of it, for the code of the next release."""
    monkeypatch.setattr(schema, "_migrations", lambda: next_code / "migrations")
    engine = create_engine(
        databases.create("behind", old_database), connect_args={"options": "-c lock_timeout=10s"}
    )
    yield engine
    engine.dispose()


@pytest.fixture
def url(behind: Engine) -> str:
    return behind.url.render_as_string(hide_password=False)


@pytest.fixture
def start(behind: Engine, url: str) -> Iterator[Start]:
    """Start to migrate in a thread. What has not ended with the test is ended."""
    with ThreadPoolExecutor(2) as threads:
        yield lambda *args, **options: threads.submit(migrate, Database(url), *args, **options)
        with behind.connect() as connection:
            connection.execute(END_OTHERS)


def create(engine: Engine) -> int:
    return do(engine, pending_task)


def version(engine: Engine) -> str | None:
    return do(engine, current)


def builds(engine: Engine) -> bool:
    """Whether somebody builds an index and waits for those that look at an older state."""
    with engine.connect() as connection:
        return bool(connection.execute(BUILDS).scalar())


def is_valid(engine: Engine) -> bool | None:
    with engine.connect() as connection:
        return connection.execute(VALID, {"name": INDEX}).scalar()


@pytest.fixture
def report(behind: Engine) -> Iterator[Connection]:
    """Somebody's open report: it touches nothing of ours, and sees the state of its beginning."""
    with behind.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT 1"))
        yield connection


def test_an_open_transaction_delays_the_migration_not_others(behind: Engine, start: Start) -> None:
    heard: list[str] = []
    with behind.connect() as producer:
        pending_task(producer)
        run = start(heard.append)
        until(lambda: heard.count(IN_USE) >= 2)
        ids = [create(behind) for _ in range(3)]

        assert not run.done()
        assert version(behind) == OLD
        producer.commit()

    assert run.result(30) == (OLD, NEXT)
    assert len(ids) == 3
    assert (
        f"{BETWEEN}: What a next release may change: columns of all pools, a rule, a table."
        in heard
    )


def test_an_index_is_built_beside_writes(behind: Engine, start: Start, report: Connection) -> None:
    run = start()
    until(lambda: builds(behind))
    created = create(behind)
    assert created
    assert (version(behind), is_valid(behind), run.done()) == (BETWEEN, False, False)
    report.close()
    assert run.result(30) == (OLD, NEXT)
    assert is_valid(behind)


def test_what_was_killed_is_simply_run_again(
    behind: Engine, url: str, start: Start, report: Connection, next_code: Path
) -> None:
    command = [sys.executable, "-m", "tasks_app", "migrate"]
    of_next = {"PYTHONPATH": str(next_code), "TASKS_APP_DATABASE_URL": url}
    killed = subprocess.Popen(command, env={**os.environ, **of_next}, cwd=next_code)
    until(lambda: builds(behind), 60)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    until(lambda: not builds(behind))
    assert (version(behind), is_valid(behind)) == (BETWEEN, False)
    report.close()

    assert start().result(30) == (BETWEEN, NEXT)
    assert is_valid(behind)


def test_a_second_one_waits_alone(behind: Engine, start: Start, report: Connection) -> None:
    """One that waited within a statement would be what the building of an index waits for."""
    heard: list[str] = []
    first = start()
    until(lambda: builds(behind))
    second = start(heard.append)
    until(lambda: heard)
    assert heard == ["Another migrate is running; this one waits for it."]
    report.close()
    assert first.result(30) == (OLD, NEXT)
    assert second.result(30) == (NEXT, NEXT)


def test_an_index_is_built_while_a_second_one_waits(behind: Engine, start: Start) -> None:
    """One that had come before the index was begun used to be waited for, and to wait for it."""
    asked = set()

    def has_asked_again() -> bool:
        with behind.connect() as connection:
            asked.update(connection.execute(ASKED_AT, {"holder": holder}).scalars())
        return len(asked) >= 5

    with behind.connect() as turn:
        holder = turn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        lock_migrations(turn)
        second = start()
        until(has_asked_again)
        with behind.connect().execution_options(isolation_level="AUTOCOMMIT") as builder:
            builder.exec_driver_sql("SET statement_timeout = '10s'")
            builder.exec_driver_sql("CREATE INDEX CONCURRENTLY of_test ON task_pending (payload)")
            builder.exec_driver_sql("DROP INDEX of_test")
        assert not second.done()

    assert second.result(30) == (OLD, NEXT)


def test_it_does_not_try_for_ever(behind: Engine, url: str) -> None:
    with behind.connect() as producer:
        pending_task(producer)
        with pytest.raises(SchemaError, match=r"locked a table .* migrate again"):
            migrate(Database(url), patience_s=0)
    assert version(behind) == OLD
    assert migrate(Database(url)) == (OLD, NEXT)
