"""A job's own command fires what Python fires at that time: the same task, once, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron, next_cron, zone_of
from tasks_app.domain.schedules.pg_cron import why_pg_cron_cannot_fire
from tasks_app.domain.schedules.schedule import plan_of
from tasks_app.pool import scheduling
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.jobs import CronCall, prefix_of
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.domain.schedules.test_pg_cron import CRON, MINUTES, schedule
from tests.pool.db_scheduler.conftest import SETTINGS
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
_OF_SCHEDULE = ("next_run_at", "look_at", "queued_at", "last_run_at", "last_outcome", "remark")
TASK: dict[str, Any] = {
    "queue": "mail",
    "priority": 3,
    "delay": 7,
    "biz_key": "b:1",
    "order_key": "o",
    "limit_key": ["bank:acme", 'tenant:"7"'],
    "headers": {"h": 1},
    "retry": "5s,30s",
    "timeout": 30,
}


def add(connection: Connection, name: str = "s", task: Any = None, **when: Any) -> None:
    when = when or {"cron": "*/5 * * * *"}
    plan = plan_of(validate_task(NewTask("t", {"n": 1}, task or {}), None, 65536), when)  # type: ignore[arg-type]
    assert scheduling.add(connection, name, plan, now=NOON + SECOND)


def jobs(connection: Connection) -> list[CronCall]:
    """The jobs of the schedules as they stand."""
    rows = [
        row for row in scheduling.find(connection) if why_pg_cron_cannot_fire(row, NOON) is None
    ]
    found = functions.jobs_of(functions.home_of(connection), rows, NOON)
    return [job for job in found if job.duty.startswith(functions.FIRE_JOB_PREFIX)]


def run(connection: Connection, command: str, now: datetime) -> str | None:
    """Run a job's command at this time."""
    timed = f"{command.removesuffix(')')}, at => '{now.isoformat()}')"
    found: str | None = connection.exec_driver_sql(timed).scalar_one()
    return found


def fire(connection: Connection, now: datetime) -> str | None:
    """Run the job of the only schedule."""
    (job,) = jobs(connection)
    return run(connection, job.command, now)


def stands(engine: Engine) -> dict[str, Any]:
    """All that firing leaves, but for ids."""
    with engine.connect() as connection:
        found = connection.execute(
            text(f"SELECT name, {', '.join(_OF_SCHEDULE)} FROM task_schedule ORDER BY name")
        )
        fires = connection.execute(
            text("""SELECT s.name, f.fire_at, f.outcome, f.fired_at,
                    f.task_id IS NOT DISTINCT FROM s.last_task_id
                FROM task_schedule_fire f JOIN task_schedule s ON s.id = f.schedule_id
                ORDER BY 1, 2""")
        )
        tasks = connection.execute(
            text("""SELECT name, queue, priority, payload, headers, unique_key, biz_key, due_at,
                scan_at, created_at, max_attempts, retry, timeout_ms, order_key, limit_key,
                more_limit_keys, state
                FROM task_pending ORDER BY headers ->> 'schedule', headers ->> 'fire_at'""")
        )
        return {"schedules": found.all(), "fires": fires.all(), "tasks": tasks.all()}


def made(engine: Engine) -> list[datetime]:
    """The instants that have a task."""
    return [at for _, at, outcome, *_ in stands(engine)["fires"] if outcome == "made"]


# From noon on; each fires its next instant when it is so late.
LATE = [0 * SECOND, 59 * SECOND, 61 * SECOND, 7 * MINUTE, 63 * MINUTE, 20 * HOUR, 100 * HOUR]


@pytest.mark.parametrize("late", LATE)
def test_a_run_does_what_python_does_at_that_time(
    database: Database, engine: Engine, late: timedelta
) -> None:
    def fired_by(fires: Any) -> dict[str, Any]:
        with engine.begin() as connection:
            for table in ("task_schedule_fire", "task_schedule", "task_pending"):
                connection.execute(text(f"DELETE FROM {table}"))
            add(connection, "daily", TASK, cron="5 12 * * *")
            add(connection, "skipping", TASK, cron="5 12 * * *", missed="skip")
            add(connection, "often")
            add(connection, "ends", cron="*/5 * * * *", ends_at=NOON + 12 * MINUTE)
            add(connection, "alone", cron="*/5 * * * *", overlap="skip")
            add(connection, "unique", {"unique_key": "u"}, cron="*/5 * * * *")
            add(connection, "off", cron="*/5 * * * *", enabled=False)
            add(connection, "starts", cron="*/5 * * * *", starts_at=NOON + HOUR)
        for at in (NOON + 5 * MINUTE, NOON + 10 * MINUTE):
            fires(at + late)
        return stands(engine)

    def by_jobs(now: datetime) -> None:
        with engine.begin() as connection:
            for job in jobs(connection):
                run(connection, job.command, now)

    python = fired_by(lambda now: Scheduler(database).run_once(now=now))
    assert python["fires"]
    assert fired_by(by_jobs) == python


@pytest.mark.parametrize(
    ("cron", "at", "instant"),
    [
        ("5 12 * * *", NOON + 7.5 * MINUTE, NOON + 5 * MINUTE),
        ("*/5 * * * *", NOON + 9.9 * MINUTE, NOON + 5 * MINUTE),
        ("50 23 * * *", NOON + 13 * HOUR, NOON + 11 * HOUR + 50 * MINUTE),
        ("0 4 1,3 * mon", NOON + 40.5 * HOUR, NOON + 40 * HOUR),
    ],
)
def test_a_late_run_fires_its_own_instant(
    database: Database, engine: Engine, cron: str, at: datetime, instant: datetime
) -> None:
    with engine.begin() as connection:
        add(connection, cron=cron)
        assert fire(connection, at) == "made"
    assert made(engine) == [instant]


def test_a_run_that_was_blocked_fires_its_own_instant(database: Database, engine: Engine) -> None:
    """Its instant is that of the time when it was sent."""
    with engine.begin() as connection:
        add(connection)
        (job,) = jobs(connection)
    with two(engine) as (a, b):
        a.execute(text("SELECT FROM task_schedule FOR UPDATE"))
        waits = blocked(engine, b, a, lambda b: run(b, job.command, NOON + 5 * MINUTE))
        a.rollback()
        assert waits.result() == "made"
        b.commit()
        assert run(b, job.command, NOON + 12 * MINUTE) == "made"
        assert run(b, job.command, NOON + 12 * MINUTE) is None
        b.commit()
    assert made(engine) == [NOON + 5 * MINUTE, NOON + 10 * MINUTE]


@pytest.mark.parametrize(
    "change",
    [
        {"expression": "*/6 * * * *"},
        {"zone": "Asia/Kolkata"},
        {"enabled": False},
        {"ends_at": NOON + 4 * MINUTE},
        {"starts_at": NOON + 6 * MINUTE},
        {"overlap": "queue"},
        {"missed": "fire_all(3)"},
        {"options": '{"calendar": "de"}'},
        {"options": '{"strict_order": true, "order_key": "o"}'},
        None,
    ],
)
def test_a_job_fires_nothing_of_what_its_schedule_is_not_any_more(
    database: Database, engine: Engine, change: dict[str, Any] | None
) -> None:
    with engine.begin() as connection:
        add(connection)
        (job,) = jobs(connection)
        if change is None:
            scheduling.remove(connection, "s")
        else:
            scheduling.change(connection, "s", change, now=NOON + SECOND)
    as_before = stands(engine)
    with engine.begin() as connection:
        assert run(connection, job.command, NOON + 5 * MINUTE) is None
    assert stands(engine) == as_before


def test_an_instant_from_before_it_was_enabled_again_is_nobodys(
    database: Database, engine: Engine
) -> None:
    with engine.begin() as connection:
        add(connection)
        (job,) = jobs(connection)
        for enabled in (False, True):
            scheduling.change(connection, "s", {"enabled": enabled}, now=NOON + 6 * MINUTE)
        assert run(connection, job.command, NOON + 7 * MINUTE) is None
        assert run(connection, job.command, NOON + 10 * MINUTE) == "made"


def test_both_at_once_make_one_task(database: Database, engine: Engine) -> None:
    now = NOON + 5 * MINUTE
    with engine.begin() as connection:
        add(connection)
    with two(engine) as (a, b):
        assert fire(a, now) == "made"
        Scheduler(database).run_once(now=now)  # the row is locked: it passes by
        (job,) = jobs(b)
        waits = blocked(engine, b, a, lambda b: run(b, job.command, now))
        a.commit()
        assert waits.result() is None
        b.commit()
    Scheduler(database).run_once(now=now)
    with engine.begin() as connection:  # what a restored backup, or an old leader, may believe
        connection.execute(
            text("UPDATE task_schedule SET next_run_at = :now, look_at = :now"), {"now": now}
        )
        assert fire(connection, now) is None

    stand = stands(engine)
    assert made(engine) == [now]
    assert len(stand["tasks"]) == 1
    assert stand["schedules"][0].next_run_at == now + 5 * MINUTE
    assert stand["schedules"][0].last_outcome == "made"


def test_a_task_that_cannot_be_written_breaks_its_schedule(
    database: Database, engine: Engine
) -> None:
    with engine.begin() as connection:
        add(connection)
        connection.execute(text("""UPDATE task_schedule SET options = '{"max_attempts": "x"}'"""))
        assert fire(connection, NOON + 5 * MINUTE) == "broken"
        broken = scheduling.get(connection, "s")
        assert broken is not None
        assert fire(connection, NOON + 10 * MINUTE) is None
    assert broken.last_outcome == "broken"
    assert broken.remark == "its task cannot be written (SQLSTATE 22P02)"
    assert stands(engine)["fires"] == []


def test_the_name_of_a_job_is_as_short_as_pg_cron_keeps_it(connection: Connection) -> None:
    for last in "ab":
        add(connection, "n" * 254 + last)
    names = {prefix_of("public") + job.duty for job in jobs(connection)}
    assert len(names) == 2
    assert {len(name) for name in names} == {63}


@pytest.fixture(scope="module")
def asked(shared_engine: Engine) -> Iterator[Connection]:
    """A transaction that has the functions, and is rolled back."""
    with shared_engine.connect() as connection:
        functions.create(connection, SETTINGS)
        yield connection
        connection.rollback()


@pytest.mark.test_all
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CRON, MINUTES)
def test_the_numbers_of_a_job_name_the_instants_of_its_expression(
    asked: Connection, expression: str, now: datetime
) -> None:
    zone = "Asia/Kolkata"
    try:
        check_cron(expression)
    except InvalidScheduleError:
        assume(False)
    found = schedule(cron=expression, timezone=zone)
    assume(why_pg_cron_cannot_fire(found, NOON) is None)
    (*_, job) = functions.jobs_of(functions.home_of(asked), [found], NOON)
    numbers = job.command.partition(f"'{zone}', ")[2]
    latest, following = asked.exec_driver_sql(
        f"SELECT * FROM task_instants_near('{now.isoformat()}', {numbers}"
    ).one()

    assert following == next_cron(expression, zone_of(zone), now)
    if latest is None:
        since = now - timedelta(days=1)
        assert next_cron(expression, zone_of(zone), since) == following
    else:
        assert latest <= now
        assert next_cron(expression, zone_of(zone), latest - SECOND) == latest
        assert next_cron(expression, zone_of(zone), latest) == following
