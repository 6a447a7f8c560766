"""Real pg_cron beside, instead of and before a scheduler in Python; its server is killed.

It looks once a minute, so this takes minutes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app import create_schedule, create_task
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.schedules.timing import between
from tasks_app.pool.schedules import schedules
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.db_scheduler import DbScheduler
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.pg_cron import CronServer, cron_server
from tests.waiting import until

pytestmark = [pytest.mark.edge, pytest.mark.timeout(900, method="thread")]
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
    yield
    over.set()
    thread.join()


def test_each_instant_once_by_pg_cron_by_beat_and_by_both(
    server: CronServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url("tasks")
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    settings = load_settings()
    database = Database(settings.database)
    scheduler = DbScheduler(settings, database, "postgres")
    scheduler.install()
    with database.begin() as connection:
        for name, when in (
            ("minutely", {"cron": "* * * * *"}),
            ("often", {"every": "61s"}),
            ("berlin", {"cron": "*/2 * * * *", "timezone": "Europe/Berlin"}),
        ):
            create_schedule(connection, name, "work", missed="fire_all", **when)  # type: ignore[arg-type]
        create_task(connection, "late", expires_at=schedules.clock(connection))
        connection.execute(text("""
            INSERT INTO task_pending (name, state, attempt, max_attempts, at_most_once, owner,
                lease_token, lease_until, started_at)
            VALUES ('lost', 'RUNNING', 1, 3, false, 'gone', gen_random_uuid(), now(), now())
        """))  # fmt: skip

    def made() -> int:
        try:
            return int(server.execute("tasks", MADE)[0][0])
        except OSError:
            return 0

    def more(number: int, patience_s: float = 200) -> None:
        until(lambda n=made() + number: made() >= n, patience_s, f"{number} more")

    more(4)  # by pg_cron alone
    server.kill()
    server.start()
    more(2)
    print("after the kill:", made())
    with _beat(settings.database):  # both
        more(4)
        print("with both:", made())
        assert scheduler.remove()[0] == 4
        more(2)  # by beat alone
    scheduler.install()
    more(2)  # and back
    print("in the end:", made())

    def calm() -> bool:
        try:
            state = scheduler.status()
        except DBAPIError:
            return False
        return not state.trouble and all(job.status == "succeeded" for job in state.jobs)

    until(calm, 130, "a good run of each job")
    with database.begin() as connection:
        clock = max(row.fire_at for row in connection.execute(text(FIRED)))
        expected: set[tuple[str, datetime]] = {
            (each.name, at)
            for each in schedules.find(connection)
            for at in between(each.timing, each.created_at, clock)
        }
        fired = Counter(tuple(row) for row in connection.execute(text(FIRED)))
        tasks = Counter(
            tuple(row)
            for row in connection.execute(
                text("SELECT headers ->> 'schedule', headers ->> 'fire_at' FROM task_pending"
                     " WHERE schedule_id IS NOT NULL")
            )
        )  # fmt: skip
        ends = dict(
            tuple(row)
            for row in connection.execute(
                text("SELECT name, state FROM task_all WHERE name IN ('late', 'lost')")
            )
        )
        days = connection.execute(
            text(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = CAST('task_completed' AS regclass)"
            )
        ).scalar_one()
    database.dispose()
    print(f"{len(fired)} instants, {sum(tasks.values())} tasks, {days} partitions")
    assert expected <= set(fired)
    assert set(fired.values()) == set(tasks.values()) == {1}
    assert len(tasks) == len(fired)
    assert ends == {"late": "EXPIRED", "lost": "PENDING"}
    assert days > 3
