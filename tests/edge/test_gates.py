"""Order and limits while workers are killed at random. Prints its figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.flow_control.limits import GateKind, Limit, limit_of
from tasks_app.pool.dispatch.leader_lease import Rank
from tasks_app.pool.flow_control.limits import set_limit
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tests.edge.gated_runs import Workers, most_at_once, overlaps
from tests.runtime.memory import Memory
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(3600, method="thread")]

KEYS, OF_KEY = 200, 100
LEFT = text("SELECT count(*) FROM task_pending")


@pytest.fixture
def async_pool(database_url: str, tmp_path: Path) -> Iterator[list[Workers]]:
    started: list[Workers] = []
    yield started
    for each in started:
        each.stop()


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(LEFT).scalar_one()


def create(engine: Engine, *tasks: NewTask) -> list[int]:
    with engine.begin() as connection:
        return [int(task_id) for task_id in create_tasks(connection, tasks)]


def test_tasks_of_a_key_run_one_at_a_time_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    ids = create(
        engine,
        *(
            NewTask(
                "gated", {"key": f"k{n % KEYS}", "seconds": 0.005}, {"order_key": f"k{n % KEYS}"}
            )
            for n in range(KEYS * OF_KEY)
        ),
    )
    began = time.monotonic()
    gang = Workers(database_url, tmp_path, 4)
    async_pool.append(gang)
    with gang.kills(3.0):
        until(lambda: left(engine) == 0, 3000)
    took_s = time.monotonic() - began
    runs = gang.runs()

    hit = len(runs) - len(ids)
    print(f"{len(runs)} runs, {len(gang.killed)} kills, {len(ids) / took_s:.0f} tasks/s")
    assert gang.killed
    assert hit, "no kill hit a run"
    assert set(ids) == {run.task_id for run in runs}
    assert overlaps(runs) == 0
    first = Counter[str]()
    for run in sorted(runs):
        assert run.task_id >= first[run.key], "a later one of the key ran before"
        first[run.key] = run.task_id


@pytest.mark.parametrize("most", [1, 3, 10])
def test_no_more_than_the_limit_run_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers], most: int
) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", most))
    payload = {"key": "tenant:1", "seconds": 0.3}  # long beside the way from one run to the next
    ids = create(engine, *[NewTask("gated", payload, {"limit_key": "tenant:1"})] * (100 * most))
    gang = Workers(database_url, tmp_path, 8, threads=2)
    async_pool.append(gang)
    with gang.kills(3.0):
        until(lambda: left(engine) == 0, 3000)
    runs = gang.runs()

    print(f"{len(runs)} runs, {len(gang.killed)} kills, at most {most_at_once(runs)} at once")
    assert set(ids) == {run.task_id for run in runs}
    assert most_at_once(runs) == most


def test_no_more_than_each_limit_run_of_tasks_with_several_keys_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "bank", 4))
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 2))
    payload = {"key": "bank", "seconds": 0.2}
    tenants = [f"tenant:{n % 3}" for n in range(200)]
    keys = [[tenant, "bank"] if n % 2 else ["bank", tenant] for n, tenant in enumerate(tenants)]
    ids = create(engine, *(NewTask("gated", payload, {"limit_key": pair}) for pair in keys))
    gang = Workers(database_url, tmp_path, 4, threads=2)
    async_pool.append(gang)
    with gang.kills(3.0):
        until(lambda: left(engine) == 0, 3000)
    runs = gang.runs()

    tenant_of = dict(zip(ids, tenants, strict=True))
    each = {
        tenant: most_at_once([run for run in runs if tenant_of[run.task_id] == tenant])
        for tenant in tenant_of.values()
    }
    print(f"{len(runs)} runs, {len(gang.killed)} kills, {most_at_once(runs)} at once, {each}")
    assert gang.killed
    assert set(ids) == {run.task_id for run in runs}
    assert most_at_once(runs) == 4
    assert set(each.values()) == {2}


RATE, BURST, MINUTE_S = 10, 5, 60.0
LATENCY_TASKS = 2
"""A start is noted some time after its claim, and that time varies."""


def test_a_bucket_keeps_its_rate_over_a_minute_and_never_more_than_its_burst(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        set_limit(connection, limit_of("name", "gated", None, f"{RATE}/1s", BURST))
    create(engine, *[NewTask("gated", {"key": "k"})] * int(RATE * MINUTE_S * 1.5))
    gang = Workers(database_url, tmp_path, 2)
    async_pool.append(gang)
    until(lambda: gang.log.exists() and gang.runs(), 60)
    time.sleep(MINUTE_S + 5)
    starts = [run.began / 1e9 for run in gang.runs()]

    first = starts[BURST]  # what the full bucket held at the beginning is not its rate
    within = sum(first <= at < first + MINUTE_S for at in starts)
    most = max(
        sum(at <= other < at + span for other in starts) - RATE * span
        for span in (0.5, 1.0, 5.0)
        for at in starts
    )
    print(f"{within} starts in a minute at {RATE}/s; at most {most:+.1f} beside the rate")
    assert abs(within - RATE * MINUTE_S) <= 0.02 * RATE * MINUTE_S
    assert most <= BURST + LATENCY_TASKS


STEPS, WAITING = 40, 100_000


def test_a_hundred_thousand_behind_a_closed_limit_cost_what_an_idle_pool_does(
    engine: Engine, database_url: str
) -> None:
    settings = Settings(database_url=database_url)
    database = Database(database_url)
    leader = Leader(settings, database, Memory(), "edge", rank=Rank.BEAT)

    def alive() -> None:
        with engine.begin() as connection:
            known = {"queues": ["default"], "handlers": ["gated"]}
            heartbeats.beat(connection, owner="w", node="n", **known)

    def load() -> float:
        """CPU of the server for so many seconds of scans."""
        alive()
        until(lambda: leader.hold() and not leader.scan().did_something, 600)
        began = cpu_of_server(engine)
        for _ in range(STEPS):
            leader.hold()
            assert not leader.scan().published
            time.sleep(1.0)
        return cpu_of_server(engine) - began

    idle = load()
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 0))
    create(engine, *[NewTask("gated", {"key": "k"}, {"limit_key": "tenant:1"})] * WAITING)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        until(lambda: (alive(), leader.hold(), leader.scan().did_something)[2] is False, 900)
        connection.execute(text("VACUUM ANALYZE task_pending"))
    closed = load()
    database.dispose()

    with engine.connect() as connection:
        parked = text("SELECT count(*) FROM task_pending WHERE parked = 'limit key tenant:1'")
        assert connection.execute(parked).scalar() == WAITING
    print(f"idle {idle:.3f} s of CPU in {STEPS} s, closed {closed:.3f} s: {closed / idle:.2f}")
    assert closed <= 1.2 * idle


def cpu_of_server(engine: Engine) -> float:
    """Seconds of CPU that all processes of the server have used; none of them ends meanwhile."""
    with engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    server = psutil.Process(pid).parent()
    assert server is not None
    processes = [server, *server.children()]
    return sum(
        int(Path(f"/proc/{each.pid}/schedstat").read_text().split()[0]) / 1e9 for each in processes
    )
