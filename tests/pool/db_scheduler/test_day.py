"""Hours of schedules, minute by minute: by beat, by the database, by both, and by turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from tasks_app.domain.schedules.timing import between
from tasks_app.pool.schedules import schedules
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.pool.db_scheduler.test_functions import MINUTE, database, fire
from tests.pool.schedules.test_fire import plan
from tests.waiting import until

__all__ = ["database"]
pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300)]
START, HOURS = datetime(2026, 3, 8, 4, tzinfo=UTC), 6
"""At 7 the clocks of New York skip half past two."""
WHEN = {
    "minutely": {"cron": "* * * * *"},
    "often": {"every": 97},
    "working": {"cron": "*/20 8-18 * * mon-fri", "timezone": "Europe/Berlin"},
    "nightly": {"cron": "30 2 * * *", "timezone": "America/New_York"},
}
Beat = Callable[[datetime], object]


def is_gone(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        live = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        return connection.execute(live, {"pid": pid}).scalar_one() == 0


@pytest.mark.parametrize("who", ["beat", "database", "both", "by turns", "killed"])
def test_each_instant_has_one_task(who: str, database: Database, engine: Engine) -> None:
    with engine.begin() as connection:
        for name, when in WHEN.items():
            schedules.add(connection, name, plan(**when, missed="fire_all"), now=START)
    by_beat: Beat = lambda now: Scheduler(database).run_once(now=now)  # noqa: E731

    def by_database(now: datetime) -> None:
        with engine.begin() as connection:
            fire(connection, now)

    def killed(now: datetime) -> None:
        with engine.connect() as connection:
            fire(connection, now)
            if now.minute % 3:
                connection.commit()
                return
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            connection.invalidate()
        until(lambda: is_gone(engine, pid))  # until then it holds its rows, which are passed by

    with ThreadPoolExecutor(2) as threads:
        for minute in range(1, HOURS * 60 + 1):
            now = START + minute * MINUTE
            acts: list[Beat] = {
                "beat": [by_beat],
                "database": [by_database],
                "both": [by_beat, by_database],
                "by turns": [by_beat if minute // 7 % 2 else by_database],
                "killed": [killed],
            }[who]
            for done in [threads.submit(act, now) for act in acts]:
                done.result()
    by_database(now + timedelta(seconds=1))

    with engine.connect() as connection:
        wanted = {
            (each.name, at.isoformat())
            for each in schedules.find(connection)
            for at in between(each.timing, START + timedelta(seconds=1), now + MINUTE / 60)
        }
        made = Counter(
            tuple(row)
            for row in connection.execute(
                text("SELECT headers ->> 'schedule', headers ->> 'fire_at' FROM task_pending")
            )
        )
    assert set(made) == wanted
    assert set(made.values()) == {1}
