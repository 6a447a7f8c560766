"""Checks of the database's scheduler, of locks and of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import Engine, create_engine, make_url

from tasks_app import (
    Settings,
    change_schedule,
    create_schedule,
    disable_schedule,
    list_schedules,
    remove_schedule,
)
from tasks_app.domain.config.settings import load_settings
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.monitor.checks.flow_control import db_scheduler
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.db_scheduler import DbScheduler
from tests.pg_cron import CronServer, cron_server
from tests.tiers import starts_processes

AGAIN = "Run again: tasks-app db-scheduler install"
JOB = "(SELECT jobid FROM cron.job WHERE jobname LIKE '%: sweep')"


def said(engine: Engine, settings: Settings) -> list[str]:
    findings = run_checks((db_scheduler,), engine, settings)
    assert {finding.subject for finding in findings} <= {"db-scheduler"}
    return [f"{f.level} {f.fact}. {f.advice}".removesuffix(". ") for f in findings]


@pytest.fixture(scope="module")
@starts_processes
def server() -> Iterator[CronServer]:
    """A server whose pg_cron is in the database postgres; the tasks are in another."""
    with TemporaryDirectory(prefix="tasks_app-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # servers run as another user, if this one is root
        with cron_server(folder) as server:
            engine = create_engine(
                server.url("tasks").replace("postgresql:", "postgresql+psycopg:")
            )
            with engine.begin() as connection:
                migrate(connection)
            engine.dispose()
            yield server


@pytest.fixture
def installed(server: CronServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Of the tasks there, with functions and jobs installed."""
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", server.url("tasks"))
    settings = load_settings()
    database = Database(settings.database)
    scheduler = DbScheduler(settings, database, "postgres")
    scheduler.install()
    yield settings
    scheduler.remove()
    database.dispose()


@pytest.fixture
def there(installed: Settings) -> Iterator[Engine]:
    engine = create_engine(installed.database)
    yield engine
    engine.dispose()


def test_functions_without_pg_cron_are_told(engine: Engine, database_url: str) -> None:
    settings = Settings(database_url=database_url)
    assert said(engine, settings) == []
    with engine.begin() as connection:
        functions.create(connection, settings)
    try:
        found = said(engine, settings)
        with engine.begin() as connection:
            connection.exec_driver_sql("COMMENT ON FUNCTION task_sweep IS 'tasks_app of old'")
        old = said(engine, settings)
    finally:
        with engine.begin() as connection:
            functions.drop(connection)

    assert found == ["ok the functions are of this code; no pg_cron that calls them is visible"]
    assert old == [f"warn the functions are of other code or settings. {AGAIN} --functions-only"]


def test_jobs_in_another_database_are_found(there: Engine, installed: Settings) -> None:
    (fine,) = said(there, installed)
    assert fine.startswith("ok 3 jobs of pg_cron 1.")


def test_a_missing_or_failed_job_is_named(
    server: CronServer, there: Engine, installed: Settings
) -> None:
    server.execute(
        "postgres",
        "INSERT INTO cron.job_run_details (jobid, runid, username, status, return_message,"
        f" start_time) VALUES ({JOB}, 1000000, 'owner', 'failed', 'no connection', now())",
    )
    (failed,) = said(there, installed)
    server.execute("postgres", f"SELECT cron.unschedule({JOB})")
    (missing,) = said(there, installed)
    server.execute("postgres", "SELECT cron.unschedule(jobid) FROM cron.job")
    (none,) = said(there, installed)

    assert failed == (
        "warn the job sweep failed: no connection. If it could not connect, let pg_hba.conf or a "
        ".pgpass of the server admit owner."
    )
    assert missing == f"warn these jobs are missing: sweep. {AGAIN} --cron-database postgres"
    assert none == (
        f"warn no job of pg_cron calls the functions. {AGAIN}, unless something else calls them."
    )


def test_schedules_without_a_job_of_theirs_are_named_until_it_is_installed_again(
    server: CronServer, there: Engine, installed: Settings
) -> None:
    database = Database(installed.database)
    scheduler = DbScheduler(installed, database, "postgres")
    with there.begin() as connection:
        for name in ("kept", "changed", "gone", "zoned"):
            create_schedule(connection, name, "report", cron="0 3 * * *")
        ids = [each.id for each in list_schedules(connection)]
    changed, gone, kept, zoned = (
        f"schedule {id_} {name}"
        for id_, name in zip(ids, ("changed", "gone", "kept", "zoned"), strict=True)
    )
    again = f"{AGAIN} --cron-database postgres"
    assert said(there, installed) == [
        f"warn these jobs are missing: {changed}, {gone}, {kept}, {zoned}. {again}"
    ]
    scheduler.install()
    entered = server.execute("postgres", "SELECT jobid FROM cron.job WHERE schedule = '0 3 * * *'")
    assert said(there, installed)[0].startswith("ok 7 jobs of pg_cron 1.")

    with there.begin() as connection:
        change_schedule(connection, "changed", cron="30 3 * * *")
        change_schedule(connection, "zoned", timezone="Europe/Berlin")
        remove_schedule(connection, "gone")
        disable_schedule(connection, "kept")  # its job fires nothing, and again when it is enabled
    again = f"{AGAIN} --leave-unfit --cron-database postgres"
    assert said(there, installed) == [
        f"warn these jobs are out of date: {changed}, {gone}, {zoned}. {again}"
    ]
    scheduler.install(leave=True)
    assert said(there, installed)[0].startswith("ok 5 jobs")
    assert scheduler.status().not_fired == {"zoned": "the clocks of Europe/Berlin change"}
    stayed = server.execute("postgres", "SELECT jobid FROM cron.job WHERE schedule = '0 3 * * *'")
    assert len(stayed) == 1
    assert stayed[0] in entered
    with there.begin() as connection:
        for name in ("kept", "changed", "zoned"):
            remove_schedule(connection, name)
    database.dispose()


def test_another_role_is_told_who_may_ask(server: CronServer, installed: Settings) -> None:
    server.execute("postgres", "DROP ROLE IF EXISTS helper", "CREATE ROLE helper LOGIN")
    url = make_url(installed.database).set(username="helper")
    engine = create_engine(url)
    other = Settings(database_url=url.render_as_string(hide_password=False))
    found = said(engine, other)
    engine.dispose()
    assert found == ["ok only the owner of the tables sees functions and jobs"]


def test_jobs_whose_functions_are_gone_are_told(server: CronServer) -> None:
    settings = Settings(database_url=server.url("postgres", "postgres"))
    database = Database(settings.database)
    with database.begin() as connection:
        migrate(connection)
    scheduler = DbScheduler(settings, database)
    scheduler.install()
    fine = said(database.engine, settings)
    with database.begin() as connection:
        functions.drop(connection)
    gone = said(database.engine, settings)
    scheduler.remove()
    over = said(database.engine, settings)
    database.dispose()

    assert fine[0].startswith("ok 3 jobs of pg_cron 1.")
    assert (gone, over) == ([f"warn the jobs call functions that are gone. {AGAIN}"], [])
