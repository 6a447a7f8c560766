"""`make size` leaves nothing, whatever ends it; the model of many cores and its page."""

from __future__ import annotations

import io
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text

from dev.benchmarks.simulation import page
from dev.benchmarks.simulation.engine import Clock, Cores, Lock, Log, Process
from dev.benchmarks.simulation.measure import read
from dev.benchmarks.simulation.model import simulate
from dev.benchmarks.simulation.profiles import checks, profiles, usable
from dev.benchmarks.sizing import __main__ as sizing
from dev.benchmarks.sizing import schema as bench_schema
from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import expect
from dev.benchmarks.sizing.measured import DrainMeasured, Measured
from dev.benchmarks.sizing.run import tidy
from tasks_app.runtime.db.database import Database
from tests.cli.shell import Done
from tests.clock import until
from tests.factory import pending_task
from tests.servers import named

SCHEMAS = text("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tasks\\_app\\_bench\\_%'")
PROJECT = Path(__file__).parents[2]
LEFT = "tasks_app_bench_0123abcd"
MEASURED = Measured(
    settings={"server_version": "18.4", "jit": "on", "fsync": "on", "synchronous_commit": "on"},
    round_trip_ms=0.21,
    way_ms=0.1,
    commit_ms=0.8,
    commit_p99_ms=3.2,
    flush_ms=0.4,
    create_one=900,
    create_bulk=40_000,
    groups=DrainMeasured(20_000, 9_000, 70),
    inserts=DrainMeasured(2_000, 500, 800),
    seconds=24,
)


def schemas(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(SCHEMAS).scalars())


@pytest.fixture
def nothing_stays(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    yield
    for name in schemas(engine):
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def left_behind(engine: Engine) -> str:
    with engine.begin() as connection:
        bench_schema.make(connection, LEFT)
        connection.exec_driver_sql(f"CREATE TABLE {LEFT}.task_pending (i int)")
    return LEFT


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.test_all
def test_it_measures_and_leaves_nothing(engine: Engine, left_behind: str) -> None:
    with engine.begin() as connection:
        due = pending_task(connection)

    process = start("--json", "--database-cores", "8")

    output, errors = process.communicate(timeout=100)

    assert process.returncode == 0, errors
    assert f"Dropped {left_behind}, which a run that was killed had left." in errors
    found = json.loads(output)
    assert found["settings"]["server_version"]
    assert 0 < found["round_trip_ms"] < found["commit_ms"] <= found["commit_p99_ms"]
    assert found["groups"]["rate"] > found["inserts"]["rate"] > 10
    assert found["create_bulk"] > found["create_one"] > 10
    assert found["database_cores"] == 8
    assert {cell["tasks"] for cell in found["expected"]} == {"groups", "inserts"}
    first = next(cell for cell in found["expected"] if cell["tasks"] == "inserts")
    assert first["rate"] == pytest.approx(found["inserts"]["rate"], rel=0.1)
    assert schemas(engine) == []
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT id, state FROM task_all").all()
    assert [tuple(row) for row in rows] == [(due, "PENDING")]


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.test_all
def test_it_works_beside_a_pool_in_a_schema(engine: Engine) -> None:
    process = start(TASKS_APP_SCHEMA="jobs", TASKS_APP_HISTORY="none")
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "one INSERT each" in output
    assert max(map(len, f"{output}\n{errors}".splitlines())) <= 80
    assert schemas(engine) == []


@pytest.mark.usefixtures("nothing_stays")
def test_it_says_what_it_will_write_and_asks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    done = run()
    assert done.returncode == 1
    assert done.stdout == ""
    said = " ".join(done.stderr.split())
    assert "For 25 s or less this writes into a schema of its own, tasks_app_bench_" in said
    assert "Your tasks are not touched" in said
    assert done.stderr.endswith("Go on? [y/N]: Stopped.\n")
    assert schemas(engine) == []


@pytest.mark.usefixtures("nothing_stays")
def test_only_what_a_killed_run_left_is_dropped(
    engine: Engine, database_url: str, left_behind: str
) -> None:
    guarded, theirs = "tasks_app_bench_00000001", "tasks_app_bench_00000002"
    database = Database(database_url)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {theirs}")
            bench_schema.make(connection, guarded)
        with engine.connect() as running:
            bench_schema.guard(running, guarded)
            assert tidy(database) == [left_behind]
            assert sorted(schemas(engine)) == [guarded, theirs]
        assert tidy(database) == [guarded]
    finally:
        database.dispose()
    assert schemas(engine) == [theirs]


@pytest.mark.usefixtures("nothing_stays")
def test_the_guard_holds_nobody_up(engine: Engine) -> None:
    with engine.connect() as running, engine.connect() as watching:
        bench_schema.guard(running, LEFT)
        driver = running.connection.driver_connection
        pid = driver.info.backend_pid if driver else 0
        found = watching.exec_driver_sql(
            "SELECT state, backend_xmin FROM pg_stat_activity WHERE pid = %s", (pid,)
        ).one()
    assert tuple(found) == ("idle in transaction", None)


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.parametrize("name", ["public", "tasks_app_bench_", "tasks_app_bench_0123abcd; x"])
def test_no_other_schema_can_be_dropped(engine: Engine, name: str) -> None:
    with engine.connect() as connection, pytest.raises(ValueError, match="no schema of a meas"):
        bench_schema.drop(connection, name)


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.test_all
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_finds_nothing_left(engine: Engine, sign: signal.Signals) -> None:
    process = start()
    until(lambda: tables(engine) > 20, timeout_s=60)
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.endswith("Stopped.\n")
    assert schemas(engine) == []


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.test_all
def test_what_a_killed_one_leaves_is_dropped_by_the_next(engine: Engine, database_url: str) -> None:
    process = start()
    until(lambda: tables(engine) > 20, timeout_s=60)
    process.kill()
    process.communicate(timeout=60)
    (name,) = schemas(engine)
    database = Database(database_url)
    try:
        until(lambda: tidy(database) == [name], timeout_s=60)
    finally:
        database.dispose()
    assert schemas(engine) == []


@pytest.mark.usefixtures("nothing_stays")
def test_a_server_that_only_reads_is_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = make_url(database_url).update_query_dict(
        {"options": "-c default_transaction_read_only=on"}
    )
    url = reads.render_as_string(hide_password=False)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    done = run("--yes")
    assert done.returncode == 1
    assert done.stderr.startswith("This role can only read")


@pytest.mark.usefixtures("nothing_stays")
def test_a_role_that_may_not_is_told_what_to_ask_for(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_role(engine, "bench-guest") as role:
        url = make_url(database_url).set(username=role, password="word")
        monkeypatch.setenv("TASKS_APP_DATABASE_URL", url.render_as_string(hide_password=False))
        done = run("--yes")
    assert done.returncode == 1
    assert f"The role {role} may not make a schema in this database." in done.stderr
    assert f'GRANT CREATE ON DATABASE {make_url(database_url).database} TO "{role}"' in done.stderr
    assert schemas(engine) == []


@pytest.mark.usefixtures("nothing_stays")
def test_it_warns_of_settings_that_lose_or_slow(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = sizing._Sizes(4, 8, 20.0, 8)
    sizing._tell(MEASURED, sizing._expected(MEASURED, sizes), sizes)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    warnings = [line for line in lines if line.startswith("warn")]
    assert [line.split()[1] for line in warnings] == ["jit"]
    assert "commit                0.80 ms median, 3.20 ms p99; 0.40 ms for the disk" in lines
    assert "one INSERT each       500 tasks a second; 2,000 us each, 800 us its CPU" in lines
    assert "one INSERT each, and waits 20 ms for others; 8 threads a child" in lines
    (one,) = [line for line in lines if line.startswith("1 host ")][:1]
    assert 300 < int(one.split()[2]) < 8 / 0.022


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.parametrize(
    ("load", "said"),
    [(0.9, ""), (1.5, " This machine is busy (load 1.5 on 2 cores): the figures will be too low.")],
)
def test_it_says_that_others_are_in_its_way(load: float, said: str) -> None:
    assert sizing._busy(load, 2) == said


def run(*arguments: str) -> Done:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as end:
        sizing.main(arguments)
    assert isinstance(end.value.code, int)
    return Done(end.value.code, output.getvalue(), errors.getvalue())


def start(*arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dev.benchmarks.sizing", "--yes", "--seconds", "3", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={**os.environ, **more},
    )


def tables(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_tables WHERE schemaname LIKE 'tasks\\_app\\_bench\\_%%'"
            ).scalar_one()
        )


@contextmanager
def a_role(engine: Engine, name: str) -> Iterator[str]:
    role = named(name)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"""CREATE ROLE "{role}" LOGIN PASSWORD 'word'""")
    try:
        yield role
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f'DROP ROLE "{role}"')


INSERT = TaskCost(0.000_6, 0.000_3, 0.000_01, 0.000_005, 2, 1.02)
GROUPS = TaskCost(0.000_04, 0.000_03, 0.000_003, 0.000_005, 0.02, 0.006, group=500)
WAITING = TaskCost(0.000_9, 0.000_4, 0, 0.000_005, 3, 1, wait_s=0.1)


Steps = list[tuple[str, float]]


@pytest.mark.parametrize(
    ("cores", "log", "steps", "expected"),
    [
        ((2,), (0,), [[("cores", 2)]] * 3, [2, 2, 4]),
        ((2, 1.5), (0,), [[("cores", 2)]] * 2, [2, 3]),
        ((1,), (0,), [[("cores", 500)], [("cores", 1)]], [501, 4]),
        ((8,), (0.005,), [[("log", 0)], [("cores", 1), ("log", 0)], [("cores", 2), ("log", 0)]],
         [5, 10, 10]),
        ((8,), (0.005,), [[("log", 1)], *[[("cores", 1), ("log", 2)]] * 2], [6, 15, 15]),
        ((8,), (0.001, 0.005), [[("log", 0)], [("cores", 2), ("log", 0)]], [6, 6]),
        ((4,), (0,), [[("lock", 1000), ("cores", 1), ("lock", 0)]] * 3, [1, 2, 3]),
    ],
    ids=[
        "cores do as much at once as there are", "a core is slower beside a busy one",
        "a long burst lets others in", "one flush serves all who came before it began",
        "a flush takes longer by what is written",
        "a commit delay lets those in who come meanwhile",
        "threads of a child share its interpreter",
    ],
)  # fmt: skip
def test_processes_that_begin_at_once_end_in_ms(
    cores: tuple[int, float], log: tuple[float, float], steps: list[Steps], expected: list[float]
) -> None:
    clock = Clock()
    things = {"cores": Cores(clock, *cores), "log": Log(clock, *log), "lock": Lock(clock)}
    ends = [0.0] * len(steps)

    def process(number: int) -> Process:
        yield from ((things[name], ms / 1e3) for name, ms in steps[number])
        ends[number] = clock.now * 1e3

    for number in range(len(steps)):
        clock.resume(process(number))
    clock.run(lambda: False)
    assert ends == pytest.approx(expected)
    used = sum(ms for each in steps for name, ms in each if name == "cores") / 1e3
    assert len(cores) == 2 or things["cores"].busy_s == pytest.approx(used)


@pytest.mark.test_all
@pytest.mark.parametrize("cost", [INSERT, GROUPS, WAITING], ids=["insert", "groups", "waiting"])
@pytest.mark.parametrize("flush_ms", [0.1, 5])
@pytest.mark.parametrize(
    ("children", "hosts", "database"), [(1, 1, 4), (4, 1, 4), (16, 4, 16), (22, 20, 64)]
)
def test_the_closed_form_agrees_with_the_events(
    cost: TaskCost, flush_ms: float, children: int, hosts: int, database: int
) -> None:
    place = Deployment(children, hosts, 16, database, flush_s=flush_ms / 1e3, slowdown=1.3)
    assert expect(cost, place).rate == pytest.approx(simulate(cost, place).rate, rel=0.15)


@pytest.mark.test_all
def test_the_model_foretells_what_was_measured_here() -> None:
    found = profiles()
    errors = [
        abs(page.predicted(found, trial, records)[1] / rate - 1)
        for trial, records in checks(usable(read()))
        for rate in [statistics.median(record["rate"] for record in records)]
    ]
    assert len(errors) >= 3
    assert statistics.median(errors) < 0.15
    assert max(errors) < 0.4


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_the_page_says_what_the_model_computes() -> None:
    text = page.PAGE.read_text()
    assert text.split(page.BEGIN)[1].split(page.END)[0].strip() == page.part().strip(), (
        "Run: make scaling"
    )
    assert page.PICTURE.read_text() == page.picture()
