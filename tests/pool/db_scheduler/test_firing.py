"""A job's own command fires what Python fires at that time: the same task, once, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron, next_cron, zone_of
from tasks_app.domain.schedules.pg_cron import why_pg_cron_cannot_fire
from tasks_app.domain.schedules.schedule import plan_of
from tasks_app.domain.schedules.timing import instants_between
from tasks_app.pool import retention, scheduling
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.jobs import CronCall, prefix_of
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.retention import partitions
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.clock import until
from tests.domain.test_days_off import CRON, MINUTES, schedule
from tests.pg_cron import Vixie
from tests.pool.connection.test_row_by_row import POISON
from tests.pool.db_scheduler.conftest import SETTINGS
from tests.pool.interleave import blocked, two
from tests.pool.test_scheduling import plan

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
    "weight": 7,
    "locks": ["account:7", 'a "quote"'],
    "headers": {"h": 1},
    "retry": "5s,30s",
    "timeout": 30,
}


def add(connection: Connection, name: str = "s", task: Any = None, **when: Any) -> None:
    when = when or {"cron": "*/5 * * * *"}
    plan = plan_of(validate_task(NewTask("t", {"n": 1}, task or {}), None, 65536), when)  # type: ignore[arg-type]
    assert scheduling.add(connection, name, plan, now=NOON + SECOND)


def jobs(connection: Connection) -> list[CronCall]:
    rows = [
        row for row in scheduling.find(connection) if why_pg_cron_cannot_fire(row, NOON) is None
    ]
    found = functions.jobs_of(functions.home_of(connection), rows, NOON)
    return [job for job in found if job.duty.startswith(functions.FIRE_JOB_PREFIX)]


def run(connection: Connection, command: str, now: datetime) -> str | None:
    timed = f"{command.removesuffix(')')}, at => '{now.isoformat()}')"
    found: str | None = connection.exec_driver_sql(timed).scalar_one()
    return found


def fire(connection: Connection, now: datetime) -> str | None:
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
                more_limit_keys, weight, locks, state
                FROM task_pending ORDER BY headers ->> 'schedule', headers ->> 'fire_at'""")
        )
        return {"schedules": found.all(), "fires": fires.all(), "tasks": tasks.all()}


def made(engine: Engine) -> list[datetime]:
    return [at for _, at, outcome, *_ in stands(engine)["fires"] if outcome == "made"]


# From noon on; each fires its next instant when it is so late.
LATE = [0 * SECOND, 59 * SECOND, 61 * SECOND, 7 * MINUTE, 63 * MINUTE, 20 * HOUR, 100 * HOUR]


@pytest.mark.parametrize("late", LATE)
def test_a_run_does_as_python_then(database: Database, engine: Engine, late: timedelta) -> None:
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


def test_an_instant_before_it_was_enabled_is_nobodys(database: Database, engine: Engine) -> None:
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


def test_a_task_it_cannot_write_breaks_its_schedule(database: Database, engine: Engine) -> None:
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


@pytest.fixture
def asked(engine: Engine) -> Iterator[Connection]:
    """A transaction that has the functions, and is rolled back; its lock keeps out all others."""
    with engine.connect() as connection:
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
LATE_OF_DAY = timedelta(seconds=0.4)


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
        self._scheduler.run_once(now=now + LATE_OF_DAY)

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
                run(connection, command, now + LATE_OF_DAY)


@pytest.mark.test_all
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "who", [("beat",), ("pg_cron",), ("beat", "pg_cron"), ("by_turns",), ("killed",)]
)
def test_each_instant_comes_once(who: tuple[str, ...], database: Database, engine: Engine) -> None:
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
        for at in instants_between(each.timing, START + LATE_OF_DAY, now + LATE_OF_DAY)
    }
    wanted[min(key for key in wanted if key[0] == "alone")] = "made"
    assert fired == Counter((*key, outcome) for key, outcome in wanted.items())
    assert tasks == Counter(
        (name, at.isoformat()) for (name, at), outcome in wanted.items() if outcome == "made"
    )
    assert [each.next_run_at for each in found] == [each.timing.next_after(now) for each in found]


DEFAULTS = Settings()


def _moved(engine: Engine, rows: str, move: Any) -> list[list[tuple]]:
    """What is left in all pools, the history and the counters; ids in the order of making."""
    with engine.connect() as connection:
        connection.execute(text(rows))
        move(connection)
        found = [
            [tuple(row) for row in connection.execute(text(statement))]
            for statement in (
                """SELECT pool, state, name, attempt, failures, crashes, error FROM task_all
                    ORDER BY name""",
                "SELECT event, kind, message, fingerprint FROM task_attempt ORDER BY message",
                """SELECT name, queue, outcome, sum(number) FROM task_count_part
                    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
            )
        ]
        connection.rollback()
    return found


_RUNNING = """
    INSERT INTO task_pending (name, state, attempt, crashes, max_attempts, at_most_once, owner,
        lease_token, lease_until, started_at, cancel_requested_at)
    SELECT 'r' || n, 'RUNNING', 5, CASE n WHEN 2 THEN 4 ELSE 0 END, 3, n = 3, 'gone',
        gen_random_uuid(), now() - CASE n WHEN 5 THEN interval '-1 hour' ELSE '1 hour' END,
        now() - interval '2 hours', CASE n WHEN 4 THEN now() END
    FROM generate_series(1, 5) AS n
"""


def test_the_function_rescues_what_the_rescuer_rescues(database: Database, engine: Engine) -> None:
    python = _moved(
        engine,
        _RUNNING,
        lambda c: rescue_expired(c, lease=DEFAULTS.lease, max_crashes=DEFAULTS.max_crashes),
    )
    # An hour from now the server, which may have just started, is old enough.
    by_function = _moved(
        engine, _RUNNING, lambda c: c.execute(text("SELECT task_rescue_expired(now() + '9 min')"))
    )

    assert by_function == python
    assert sorted(row[1] for row in python[0]) == [
        *("CANCELLED", "FAILED", "FAILED", "PENDING", "RUNNING")
    ]


def test_a_refused_row_stops_none_of_its_functions(database: Database, engine: Engine) -> None:
    barred = "INSERT INTO task_pending (name, enabled) SELECT 'r' || n, false FROM generate_series"
    for rows, call in (
        (_RUNNING, "SELECT task_rescue_expired(now() + '9 min')"),
        (f"{barred}(1, 4) AS n", "SELECT task_sweep()"),
    ):
        moved: list[object] = []

        def refuse(connection: Connection, call: str = call, moved: list = moved) -> None:
            statement = POISON.format(id="(SELECT min(id) FROM task_pending)", state="23514",
                                      table="task_pending").replace(":=", r"\:=")  # fmt: skip
            connection.execute(text(statement))
            moved += [connection.execute(text(call)).scalar()]
            first = text("SELECT CAST(min(id) AS text) FROM task_pending")
            (told,) = refusals(connection)
            moved += [told.rows == connection.execute(first).scalar(), told.why]

        _moved(engine, rows, refuse)
        assert moved == [3, True, "SQLSTATE 23514"]


def test_a_lease_is_over_a_renewal_before_any_rescue(database: Database, engine: Engine) -> None:
    rows = _RUNNING.replace("'1 hour' END", "'-51 s' END")
    asked: list[int] = []
    for at in ("now() + interval '60 s'", "now() + interval '62 s'"):
        _moved(engine, rows, lambda c, at=at: asked.append(
            c.execute(text(f"SELECT task_rescue_expired({at})")).scalar()
        ))  # fmt: skip
    assert asked == [0, 4]


def test_the_function_sweeps_what_the_sweeper_sweeps(database: Database, engine: Engine) -> None:
    rows = """
        INSERT INTO task_pending (name, enabled, expires_at)
        VALUES ('a', false, NULL), ('b', true, now() - interval '1 s'), ('c', true, NULL)
    """
    python = _moved(engine, rows, lambda c: sweep_all(c, 500))
    assert _moved(engine, rows, lambda c: c.execute(text("SELECT task_sweep()"))) == python
    assert [row[1] for row in python[0]] == ["SKIPPED", "EXPIRED", "PENDING"]


def test_it_makes_and_drops_days_one_step_a_call(database: Database, engine: Engine) -> None:
    with engine.connect() as connection:
        today = connection.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date")).scalar_one()
        at = datetime(today.year, today.month, today.day, 12, tzinfo=UTC) + timedelta(days=31)
        steps = []
        while step := connection.execute(
            text("SELECT task_maintain_partitions(:at)"), {"at": at}
        ).scalar():
            steps.append(step)
        found, _ = partitions(connection, now=at)
        connection.rollback()

    assert len([step for step in steps if step.startswith("made ")]) == 15
    oldest = f"task_completed_p{today:%Y%m%d}"
    assert steps[-2:] == [f"detached {oldest}", f"dropped {oldest}"]
    assert oldest not in [day.name for day in found]
    assert found[-1].day.date() == (at + timedelta(days=14)).date()


def test_a_day_python_detached_is_dropped_by_it(database: Database, engine: Engine) -> None:
    with engine.connect() as connection:
        found, _ = partitions(connection)
        retention.detach_partition(connection, found[0])
        at = found[0].day + timedelta(days=31, hours=12)
        steps: list[str] = []
        while not steps or steps[-1].startswith("made "):
            steps.append(
                connection.execute(
                    text("SELECT task_maintain_partitions(:at)"), {"at": at}
                ).scalar_one()
            )
        connection.rollback()

    assert steps[-1] == f"dropped {found[0].name}"


def test_status_tells_functions_of_other_settings(database: Database, engine: Engine) -> None:
    with engine.begin() as connection:
        assert functions.installed(connection, DEFAULTS) is Installed.YES
        other = DEFAULTS.model_copy(update={"max_crashes": 9})
        assert functions.installed(connection, other) is Installed.OTHERWISE
        assert functions.drop(connection) == 5
        assert functions.installed(connection, DEFAULTS) is Installed.NO


def test_what_stands_is_not_made_anew(database: Database, engine: Engine) -> None:
    """A job that runs meanwhile finds what it calls; one of other settings is made anew."""
    query = text("SELECT proname, CAST(oid AS bigint) FROM pg_proc WHERE proname LIKE 'task\\_%'")

    def standing() -> dict[str, int]:
        with engine.connect() as connection:
            return {row.proname: row.oid for row in connection.execute(query)}

    before = standing()
    with engine.begin() as connection:
        functions.create(connection, DEFAULTS)
    assert standing() == before
    with engine.begin() as connection:
        functions.create(connection, Settings(lease=timedelta(seconds=99)))
    changed = {name for name, oid in standing().items() if before[name] != oid}
    assert changed == {"task_rescue_expired"}
