"""A day of schedules, minute by minute: by beat, by pg_cron's jobs, by both, and by turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.schedules.timing import instants_between
from tasks_app.pool import scheduling
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.pool.db_scheduler.test_firing import MINUTE, jobs, run
from tests.pool.schedules.test_fire import plan
from tests.vixie import Vixie
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600)]
START = datetime(2026, 2, 28, tzinfo=UTC)
WHEN = {
    "minutely": {"cron": "* * * * *"},
    "working": {"cron": "*/20 8-18 * * mon-sat", "missed": "skip"},
    "nightly": {"cron": "30 2 28 * wed", "timezone": "Etc/UTC"},
    "alone": {"cron": "7,*/30 * * feb 5-7", "overlap": "skip"},
    "hourly": {"cron": "@Hourly", "jitter": "1m"},
    "never": {"cron": "0 0 29 2 *"},
}
FIRED = """SELECT s.name, f.fire_at, f.outcome
    FROM task_schedule_fire f JOIN task_schedule s ON s.id = f.schedule_id"""
TASKS = "SELECT headers ->> 'schedule', headers ->> 'fire_at' FROM task_pending"
Act = Callable[[datetime], object]
LATE = timedelta(seconds=0.4)


def is_gone(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        live = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        return connection.execute(live, {"pid": pid}).scalar_one() == 0


class Clocks:
    """Who fires; each act is what it does in one minute."""

    def __init__(self, database: Database, engine: Engine) -> None:
        self._engine = engine
        self._scheduler = Scheduler(database)
        with engine.connect() as connection:
            self._jobs = [(Vixie(job.when), job.command) for job in jobs(connection)]
        assert len(self._jobs) == len(WHEN)

    def beat(self, now: datetime) -> None:
        self._scheduler.run_once(now=now + LATE)

    def pg_cron(self, now: datetime) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            self._start(connection, now)

    def killed(self, now: datetime) -> None:
        """The runs of one minute are killed before they commit; beat comes half a minute later."""
        if now.minute % 20:
            self.pg_cron(now)
            return
        with self._engine.connect() as connection:
            self._start(connection, now)
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            connection.invalidate()
        until(lambda: is_gone(self._engine, pid))  # it holds its rows, which are passed by
        self._scheduler.run_once(now=now + MINUTE / 2)

    def by_turns(self, now: datetime) -> None:
        (self.beat if now.minute // 7 % 2 else self.pg_cron)(now)

    def _start(self, connection: Connection, now: datetime) -> None:
        for read, command in self._jobs:
            if read.starts(now):
                run(connection, command, now + LATE)


@pytest.mark.parametrize(
    "who", [("beat",), ("pg_cron",), ("beat", "pg_cron"), ("by_turns",), ("killed",)]
)
def test_each_instant_is_entered_once(
    who: tuple[str, ...], database: Database, engine: Engine
) -> None:
    with engine.begin() as connection:
        for name, when in WHEN.items():
            scheduling.add(connection, name, plan(**when), now=START)
    clocks = Clocks(database, engine)
    acts: list[Act] = [getattr(clocks, each) for each in who]
    with ThreadPoolExecutor(2) as threads:
        for minute in range(1, 24 * 60 + 1):
            now = START + minute * MINUTE
            for done in [threads.submit(act, now) for act in acts]:
                done.result()

    with engine.connect() as connection:
        found = scheduling.find(connection)
        fired = Counter(tuple(row) for row in connection.execute(text(FIRED)))
        tasks = Counter(tuple(row) for row in connection.execute(text(TASKS)))
    wanted = {
        (each.name, at): "skipped" if each.overlap == "skip" else "made"
        for each in found
        for at in instants_between(each.timing, START + LATE, now + LATE)
    }
    wanted[min(key for key in wanted if key[0] == "alone")] = "made"
    assert fired == Counter((*key, outcome) for key, outcome in wanted.items())
    assert tasks == Counter(
        (name, at.isoformat()) for (name, at), outcome in wanted.items() if outcome == "made"
    )
    assert [each.next_run_at for each in found] == [each.timing.next_after(now) for each in found]
