"""pg_cron, retention, rotation of keys and SQL tasks with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, assume, given, settings
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app import (
    NewTask,
    Settings,
    create_schedule,
    create_task,
    create_tasks,
    get_task,
    sql_handler,
)
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.encryption import new_key
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import check_cron
from tasks_app.domain.schedules.pg_cron import why_pg_cron_cannot_fire, written_for_pg_cron
from tasks_app.domain.schedules.timing import instants_between
from tasks_app.pool import scheduling
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.jobs import EVERY_MINUTE
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.schema import migrate
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.leader.retention import Pruned, Retention
from tasks_app.runtime.schedules.db_scheduler import DbScheduler, sql_tasks_of
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.clock import until
from tests.domain.test_days_off import CRON, NOW, schedule
from tests.edge.gated_runs import Workers
from tests.factory import claimer, ending
from tests.pg_cron import CronServer, cron_server
from tests.pool.database import DAY, NAME, NOON, ONE, drop_old_days, old_day

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
        create_task(connection, "late", expires_at=database_now(connection))
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


@pytest.mark.timeout(900, method="thread")
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


@pytest.mark.timeout(900, method="thread")
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


OLD = int(os.environ.get("RETENTION_ROWS", "100000"))
TOLD = 10_000
"""Of them have a line in the history."""
MOST_MS = 250.0
SETTLERS = 2
TRIES = 5
FILL = """
    INSERT INTO task_completed (id, name, state, attempt, payload, result, due_at, finished_at)
    SELECT n, 'old', 'SUCCEEDED', CASE WHEN n <= :told THEN 2 ELSE 1 END,
        '{"order_id": 42}', '{"points": 10}', :at, :at
    FROM generate_series(1, :rows) AS n
"""
HISTORY = """
    INSERT INTO task_attempt (task_id, attempt, event, kind, message)
    SELECT n, 1, 'retry', 'E', 'm' FROM generate_series(1, :told) AS n
"""
NO_DELETE = f"""
    CREATE FUNCTION no_delete() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'a row was deleted'; END $$;
    CREATE TRIGGER no_delete BEFORE DELETE ON {NAME} FOR EACH ROW EXECUTE FUNCTION no_delete();
"""
LSN = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"


class Settlers:
    """They settle one task after the other, each in a transaction of its own, and look at it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._taken_ms: list[float] = []
        self._threads = [threading.Thread(target=self._work) for _ in range(SETTLERS)]

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._engine.begin() as connection:
                ids = create_tasks(connection, [NewTask("t") for _ in range(100)])
            with self._engine.begin() as connection:
                tasks = claim(connection, ids, claimer(), uuid4())
            for task in tasks:
                began = time.perf_counter()
                with self._engine.begin() as connection:
                    assert settle_one(connection, ending(task)) is not None
                self._taken_ms.append(1000 * (time.perf_counter() - began))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            until(lambda: len(self._taken_ms) > 100, what="the first settles")
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def slowest(self, of: int = 10) -> tuple[float, int]:
        """The longest of those since the last call, in milliseconds, and how many there were."""
        before = len(self._taken_ms)
        until(lambda: len(self._taken_ms) > before + of, 60, what="settles")
        taken, self._taken_ms = self._taken_ms, []
        return max(taken), len(taken)


@pytest.fixture
def full_day(engine: Engine) -> Iterator[Engine]:
    """A day that is over, full."""
    drop_old_days(engine)
    with engine.begin() as connection:
        old_day(connection)
        connection.execute(text(FILL), {"rows": OLD, "told": TOLD, "at": NOON})
        connection.execute(text(HISTORY), {"told": TOLD})
        connection.execute(text(NO_DELETE))
    assert DAY < NOON < DAY + ONE
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
    yield engine
    drop_old_days(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP FUNCTION IF EXISTS no_delete CASCADE"))


@pytest.fixture
def settlers(full_day: Engine, database_url: str) -> Iterator[Settlers]:
    own = create_engine(database_url, pool_size=SETTLERS)
    yield Settlers(own)
    own.dispose()


@pytest.fixture
def retention(full_day: Engine, database_url: str) -> Iterator[Retention]:
    database = Database(database_url)
    yield Retention(Settings(database_url=database_url), database)
    database.dispose()


def wal(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(LSN)).scalar_one())


@pytest.mark.timeout(300)
def test_a_day_goes_and_no_settle_waits_longer_than_a_quarter_of_a_second(
    full_day: Engine, settlers: Settlers, retention: Retention
) -> None:
    with settlers.at_work():
        calm_ms, calm = settlers.slowest(of=500)

        in_the_way_ms = []
        with full_day.connect() as somebody:
            somebody.execute(text("LOCK TABLE ONLY task_completed IN ROW EXCLUSIVE MODE"))
            for _ in range(TRIES):
                gave_up = retention.run()
                assert gave_up == Pruned(in_use=[NAME])
                in_the_way_ms.append(settlers.slowest()[0])
            somebody.rollback()

        before, began = wal(full_day), time.perf_counter()
        pruned = retention.run()
        took_s, written = time.perf_counter() - began, wal(full_day) - before
        during_ms, during = settlers.slowest()

    ordered = sorted(in_the_way_ms)
    print(
        f"\n{OLD:,} rows in {took_s:.2f} s, {written / 1e6:.1f} MB of log, {during} settles beside"
        f"\nslowest settle: calm {calm_ms:.0f} ms ({calm} of them); while the day goes "
        f"{during_ms:.0f} ms; {TRIES} times in vain behind an open transaction: "
        f"median {ordered[TRIES // 2]:.0f} ms, worst two {ordered[-2]:.0f} and {ordered[-1]:.0f} ms"
    )
    assert pruned.days == [NAME]
    assert (pruned.completed, pruned.errors) == (0, 0)
    with full_day.connect() as connection:
        history = connection.execute(text("SELECT count(*) FROM task_attempt")).scalar()
    assert history == 0
    assert during_ms <= MOST_MS
    assert ordered[-2] <= MOST_MS  # one slow pass is the machine's


VALUES = int(os.environ.get("ROTATION_COUNT", "1500"))
OLD_OF_ROTATION, NEW = f"old:{new_key()}", f"new:{new_key()}"
TABLE = text("DROP TABLE IF EXISTS effect; CREATE TABLE effect (task_id bigint, note text)")
DONE = text("SELECT count(*), count(DISTINCT task_id) FROM effect")
WRONG = text("SELECT count(*) FROM effect WHERE note <> (task_id - :first)::text")
LEFT = text("SELECT count(*) FROM task_pending")
BY_OLD = text("""
    SELECT (SELECT count(*) FROM task_pending WHERE payload::text LIKE '%"v1.old.%')
         + (SELECT count(*) FROM task_completed
            WHERE payload::text LIKE '%"v1.old.%' OR result::text LIKE '%"v1.old.%')
""")
ENDED = text("SELECT state, attempt, count(*) FROM task_completed GROUP BY 1, 2")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process encrypts by the old key, and later by the new one."""

    def use(value: str) -> None:
        monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", value)
        encryption.cache_clear()

    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "secret")
    use(OLD_OF_ROTATION)
    yield use
    encryption.cache_clear()


def rotation(url: str) -> subprocess.Popen[str]:
    keys = {"TASKS_APP_DATABASE_URL": url, "TASKS_APP_ENCRYPTION_KEYS": f"{NEW},{OLD_OF_ROTATION}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "encryption", "rotate"],
        env={**os.environ, **keys},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def count(engine: Engine, statement: Any, **values: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(statement, values).scalar_one())


def rotated(engine: Engine, url: str) -> str:
    """Kill a rotation when it has done a tenth, and let another one finish; return what it said."""
    killed = rotation(url)
    until(lambda: count(engine, BY_OLD) < VALUES * 0.9, 600, "a tenth to be encrypted anew")
    killed.kill()
    killed.communicate()
    again = rotation(url)
    said, _ = again.communicate(timeout=1500)
    assert (killed.returncode, again.returncode) == (-9, 0), said
    return said


@pytest.mark.timeout(600, method="thread")
def test_all_values_change_beside_workers(
    engine: Engine, database_url: str, tmp_path: Path, keys: Any
) -> None:
    with engine.begin() as connection:
        connection.execute(TABLE)
        made = create_tasks(connection, [NewTask("secret", {"n": n}) for n in range(VALUES)])
    first = min(made)
    assert count(engine, BY_OLD) == VALUES
    began = time.monotonic()

    more = {"TASKS_APP_ENCRYPTION_KEYS": f"{NEW},{OLD_OF_ROTATION}"}
    workers = Workers(database_url, tmp_path, 2, imports="secret_handlers", more=more)
    try:
        until(lambda: count(engine, DONE) > 0, 60, "a task to be over")
        said = rotated(engine, database_url)
        beside = count(engine, DONE)
        until(lambda: count(engine, LEFT) == 0, 600, "all tasks to be over")
    finally:
        workers.stop()

    took = time.monotonic() - began
    print(f"\n{VALUES:,} values, {took:.0f} s in all, {beside:,} tasks over by the end. {said}")
    with engine.connect() as connection:
        assert [tuple(r) for r in connection.execute(ENDED)] == [("SUCCEEDED", 1, VALUES)]
        assert tuple(connection.execute(DONE).one()) == (VALUES, VALUES)
    assert (count(engine, WRONG, first=first), count(engine, BY_OLD)) == (0, 0)
    keys(NEW)
    with engine.connect() as connection:
        last = get_task(connection, first + VALUES - 1)
    assert last is not None
    assert (last.payload, last.result) == ({"n": VALUES - 1}, {"n": VALUES - 1})


MANY = int(os.environ.get("SQL_TASK_COUNT", "1000"))
STATES = text("""
    SELECT state, count(*) FROM (
        SELECT state FROM task_completed UNION ALL SELECT state FROM task_error) AS s GROUP BY 1
""")
EFFECTS = text("SELECT count(*), count(DISTINCT task_id) FROM effect")
AGAIN = text("SELECT count(*) FROM task_completed WHERE attempt > 1")
KILL = text("""
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
          AND query LIKE 'INSERT INTO effect%pg_sleep%'
        ORDER BY random() LIMIT 1) AS one
""")


@contextmanager
def kills(engine: Engine, every_s: float, killed: list[int]) -> Iterator[None]:
    """Terminate one backend that carries out a statement every so often, meanwhile."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_s):
            with engine.begin() as connection:
                killed.append(connection.execute(KILL).scalar_one())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(1800, method="thread")
def test_effect_and_outcome_are_one_to_one(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        connection.execute(TABLE)
        create_tasks(connection, [NewTask("slow.sql", {"n": n}) for n in range(MANY)])
    killed: list[int] = []
    began = time.monotonic()

    workers = Workers(database_url, tmp_path, 2, threads=2, imports="house_handlers")
    try:
        with kills(engine, 0.1, killed):
            until(lambda: _left(engine) == 0, 1500, "all tasks to be over")
    finally:
        workers.stop()

    with engine.connect() as connection:
        states = {row.state: row.count for row in connection.execute(STATES)}
        effects = tuple(connection.execute(EFFECTS).one())
        again = connection.execute(AGAIN).scalar_one()
    seconds = time.monotonic() - began
    print(f"\n{MANY:,} tasks in {seconds:.0f} s, {sum(killed)} backends killed, {again} run again")
    assert states == {"SUCCEEDED": MANY}
    assert effects == (MANY, MANY)
    assert sum(killed) > 10


def _left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(LEFT).scalar_one())


LONE_TASKS = int(os.environ.get("SQL_TASK_COUNT", "1000"))
RUNNERS = 3
SETTINGS = Settings().model_copy(update={"lease": timedelta(seconds=3)})
STATES_OF_SQL_TASKS_ALONE = text("SELECT state, count(*) FROM task_all GROUP BY 1")
EFFECTS_OF_SQL_TASKS_ALONE = text("SELECT count(*), count(DISTINCT task_id) FROM sql_effect")
KILL_OF_SQL_TASKS_ALONE = text("""
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE 'CALL task_run_sql%'
        ORDER BY random() LIMIT 1) AS one
""")


def _call(engine: Engine, command: str, over: threading.Event, every_s: float) -> None:
    """Call it again and again, as a scheduler does; a killed call is followed by the next."""
    while not over.wait(every_s):
        with (
            suppress(DBAPIError),
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(text(command))


@pytest.mark.timeout(1800, method="thread")
def test_effect_and_outcome_are_one_to_one_in_sql_tasks_alone(engine: Engine) -> None:
    registry, over, killed = Registry(), threading.Event(), 0
    sql_handler(
        "slow.sql",
        "INSERT INTO sql_effect SELECT :n::bigint FROM pg_sleep(0.005)",
        registry=registry,
    )
    with engine.begin() as connection:
        connection.execute(
            text("DROP TABLE IF EXISTS sql_effect; CREATE TABLE sql_effect (task_id bigint)")
        )
        functions.create(connection, SETTINGS, sql_tasks_of(registry, SETTINGS, leave=False))
        create_tasks(connection, [NewTask("slow.sql", {"n": n}) for n in range(LONE_TASKS)])
    calls = ["CALL task_run_sql()"] * RUNNERS + ["SELECT task_rescue_expired()"]
    threads = [
        threading.Thread(target=_call, args=(engine, call, over, 0.1), daemon=True)
        for call in calls
    ]
    began = next_kill = time.monotonic()
    for thread in threads:
        thread.start()

    def is_done() -> bool:
        nonlocal killed, next_kill
        with engine.begin() as connection:
            left = connection.execute(LEFT).scalar_one()
            if left > LONE_TASKS // 20 and time.monotonic() > next_kill:
                next_kill = time.monotonic() + 0.3
                killed += connection.execute(KILL_OF_SQL_TASKS_ALONE).scalar_one()
        return left == 0

    until(is_done, 1500, "all tasks over")
    took = time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    with engine.begin() as connection:
        states = dict(connection.execute(STATES_OF_SQL_TASKS_ALONE).all())
        effects = tuple(connection.execute(EFFECTS_OF_SQL_TASKS_ALONE).one())
        again = connection.execute(AGAIN).scalar_one()
        functions.drop(connection)
        connection.execute(text("DROP TABLE sql_effect"))
    print(f"{LONE_TASKS} tasks in {took:.0f} s, {killed} backends killed, {again} tasks ran again")
    assert (states, effects) == ({"SUCCEEDED": LONE_TASKS}, (LONE_TASKS, LONE_TASKS))
    assert min(killed, again) > 0
