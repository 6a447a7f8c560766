"""Real pg_cron alone, beside and before a scheduler in Python; its server is killed.

Its clock has minutes, so this takes minutes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from sqlalchemy import create_engine, text

from tasks_app import create_schedule, create_task
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron
from tasks_app.domain.schedules.pg_cron import why_pg_cron_cannot_fire, written_for_pg_cron
from tasks_app.domain.schedules.timing import instants_between
from tasks_app.pool import scheduling
from tasks_app.pool.db_scheduler.jobs import EVERY_MINUTE
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.db_scheduler import DbScheduler
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.domain.schedules.test_pg_cron import CRON, NOW, schedule
from tests.pg_cron import CronServer, cron_server
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(900, method="thread")]
TICK = timedelta(microseconds=1)
MADE = "SELECT count(*) FROM task_schedule_fire WHERE task_id IS NOT NULL"
FIRED = (
    "SELECT s.name, f.fire_at FROM task_schedule_fire f JOIN task_schedule s ON s.id = schedule_id"
)


@pytest.fixture
def server(open_folder: Path) -> Iterator[CronServer]:
    """A server with pg_cron in the database postgres, and the tasks in another."""
    with cron_server(open_folder) as server:
        engine = create_engine(server.url("tasks").replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            migrate(connection)
        engine.dispose()
        yield server


@contextmanager
def _beat(url: str) -> Iterator[None]:
    """Fire each fifth of a second, as who leads does; another process in all but its pid."""
    over = threading.Event()

    def fire() -> None:
        database = Database(url)
        while not over.wait(0.2):
            Scheduler(database).run_once()
        database.dispose()

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


ROWS = """
    INSERT INTO task_pending (name, state, attempt, max_attempts, at_most_once, owner,
        lease_token, lease_until, started_at)
    VALUES ('lost', 'RUNNING', 1, 3, false, 'gone', gen_random_uuid(), now(), now())
"""
TASKS = """SELECT headers ->> 'schedule', headers ->> 'fire_at' FROM task_pending
    WHERE schedule_id IS NOT NULL"""
DAYS = "SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST('task_completed' AS regclass)"


def _set_up(database: Database) -> None:
    with database.begin() as connection:
        create_schedule(connection, "minutely", "work", cron="* * * * *")
        create_schedule(connection, "even", "work", cron="*/2 * * * *", timezone="Etc/UTC")
        create_schedule(connection, "odd", "work", cron="1-59/2 * * * *", missed="skip")
        create_task(connection, "late", expires_at=scheduling.schedule_clock(connection))
        connection.execute(text(ROWS))


def _expected(database: Database, end: datetime) -> set[tuple[str, datetime]]:
    with database.begin() as connection:
        return {
            (each.name, at)
            for each in scheduling.find(connection)
            for at in instants_between(each.timing, each.created_at + TICK, end)
        }


def _ran_well(scheduler: DbScheduler, since: datetime) -> bool:
    state = scheduler.status()
    return not state.trouble and all(
        job.status == "succeeded" and job.last_at and job.last_at > since
        for job in state.jobs
        if job.when == EVERY_MINUTE
    )


def _more(server: CronServer, number: int) -> None:
    """Wait for so many more instants that got a task."""
    wanted = server.execute("tasks", MADE)[0][0] + number
    until(lambda: server.execute("tasks", MADE)[0][0] >= wanted, 200, f"{wanted} instants")


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CRON)
def test_pg_cron_takes_each_expression_that_is_admitted(
    server: CronServer, expression: str
) -> None:
    try:
        check_cron(expression)
    except InvalidScheduleError:
        assume(False)
    assume(why_pg_cron_cannot_fire(schedule(cron=expression), NOW) is None)
    written = written_for_pg_cron(expression)
    server.execute("postgres", f"SELECT cron.schedule('one', '{written}', 'SELECT 1')")


def test_each_instant_once_by_pg_cron_by_beat_and_by_both(
    server: CronServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", server.url("tasks"))
    ours = load_settings()
    database = Database(ours.database)
    scheduler = DbScheduler(ours, database, "postgres")
    _set_up(database)
    scheduler.install()
    days = len(server.execute("tasks", DAYS))
    _more(server, 3)  # by pg_cron alone
    server.kill()
    server.start()
    (again,) = server.execute("tasks", "SELECT clock_timestamp()")[0]
    with _beat(ours.database):
        _more(server, 1)  # by both
        until(lambda: _ran_well(scheduler, again), 200, "a good run of each minute's jobs")
        assert scheduler.remove()[0] == 6
        _more(server, 1)  # by beat alone

    fired = Counter(server.execute("tasks", FIRED))
    tasks = Counter(server.execute("tasks", TASKS))
    assert _expected(database, max(at for _, at in fired)) <= set(fired)
    assert set(fired.values()) == set(tasks.values()) == {1}
    assert len(tasks) == len(fired)
    ends = dict(server.execute("tasks", "SELECT name, state FROM task_all WHERE name <> 'work'"))
    assert ends == {"late": "EXPIRED", "lost": "PENDING"}
    assert len(server.execute("tasks", DAYS)) > days
    database.dispose()
