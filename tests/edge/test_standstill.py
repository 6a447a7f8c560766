"""What a queue that stands still costs the database, with thousands of tasks that wait in it.

Passes of a scanner, and of a worker without a broker, one after the other without a pause: an hour
has as many of them either way, so that the cost of each is compared. The norm is an idle pool of
the same size, whose tasks are due tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from tasks_app import Breaker, NewTask, change_queue, create_tasks, pause_queue
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.circuit_breakers import hold_tasks
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory
from tests.waiting import until

WAITING, PASSES, ROUNDS = 10_000, 30, 2
MOST = 1.2
COST = """
    SELECT blks_hit + blks_read AS blocks, active_time AS active_ms,
        tup_returned + tup_fetched AS rows, xact_commit AS transactions
    FROM pg_stat_database WHERE datname = :name
"""
BACKENDS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = :name AND backend_type = 'client backend'
"""
ScanPasses = Callable[[Bench, int], None]


def scanner(bench: Bench, number: int) -> None:
    database = Database(bench.url)
    leader = Leader(bench.settings(), database, Memory(), "edge")
    leader.hold()
    for _ in range(number):
        leader._last = leader._last.__class__()
        leader.scan()
    leader.lead.release()
    database.dispose()


def worker(bench: Bench, number: int) -> None:
    work = bench.work(scan_interval=0.001)
    for _ in range(number):
        work.child.slot.tidy_at = 0.0
        work.tidy()
        work.claim()
        work.nap()
    bench.children[-1].stop()


def paused(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        pause_queue(connection, "default")


def closed(bench: Bench) -> None:
    other = datetime.now(UTC) + timedelta(hours=12)
    with bench.engine.begin() as connection:
        change_queue(connection, "default", windows=[f"{other:%H}:00-{other:%H}:01"])


def shut(bench: Bench) -> None:
    """Its gate stays shut: tasks of a queue that nobody serves run, as far as anybody knows."""
    with bench.engine.begin() as connection:
        change_queue(connection, "default", running_below=1)
    bench.create(queue="other")
    bench.sql("""
        UPDATE task_pending SET state = 'RUNNING', attempt = 1, owner = 'w', started_at = now(),
            lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour',
            max_attempts = 3, at_most_once = false
        WHERE queue = 'other'
    """)


def broken(bench: Bench) -> None:
    """The breaker of what its tasks depend on is open; those that come are put aside."""
    with bench.engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
        circuit_breakers.override(connection, "bank", BreakerMode.OPEN)


def limited(bench: Bench) -> None:
    """None may run of what has their key."""
    with bench.engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 0))


def settle(bench: Bench) -> None:
    """Scan until nothing changes any more: what may not run is put aside once."""
    with bench.engine.begin() as connection:
        heartbeats.write_heartbeat(
            connection, owner="w", node="n", queues=["default"], handlers=["t"]
        )
    database = Database(bench.url)
    leader = Leader(bench.settings(), database, Memory(), "edge")
    until(lambda: leader.hold() and not leader.scan().did_something, 60)
    leader.lead.release()
    database.dispose()
    with bench.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE task_pending"))


def fill(bench: Bench, **options: str) -> None:
    with bench.engine.begin() as connection:
        ids = create_tasks(
            connection, [NewTask("t", None, {"limit_key": "tenant:1", **options})] * WAITING
        )
        for start in range(0, WAITING, 1_000):
            hold_tasks(connection, ids[start : start + 1_000])


@pytest.fixture
def cost(bench: Bench) -> Iterator[Callable[[ScanPasses], dict[str, float]]]:
    url = make_url(bench.url)
    outside = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")

    def read() -> dict[str, float]:
        with outside.connect() as connection:  # a backend tells what it did when it is gone
            there = {"name": url.database}
            until(lambda: not connection.execute(text(BACKENDS), there).scalar(), 30)
            return dict(connection.execute(text(COST), {"name": url.database}).one()._mapping)

    def measure(passes: ScanPasses) -> dict[str, float]:
        found = []
        for _ in range(ROUNDS):
            passes(bench, 2)
            bench.engine.dispose()
            before = read()
            passes(bench, PASSES)
            bench.engine.dispose()
            after = read()
            found.append({name: after[name] - before[name] for name in after})
        return {name: min(each[name] for each in found) for name in found[0]}

    yield measure
    outside.dispose()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("passes", [scanner, worker])
@pytest.mark.parametrize("stop", [paused, closed, shut, broken, limited])
def test_a_queue_that_stands_still_costs_no_more_than_an_idle_pool(
    bench: Bench,
    cost: Callable[[ScanPasses], dict[str, float]],
    stop: Callable[[Bench], None],
    passes: ScanPasses,
) -> None:
    bench.succeeding()
    fill(bench, delay="1d")
    settle(bench)
    idle = cost(passes)
    bench.sql("TRUNCATE task_pending, task_breaker_held")
    stop(bench)
    fill(bench)
    settle(bench)

    still = cost(passes)

    print(f"\n{stop.__name__} {passes.__name__}, per pass: idle, standing still")
    for name in idle:
        each = " ".join(f"{figures[name] / PASSES:8.2f}" for figures in (idle, still))
        print(f"  {name:<12} {each}")
    assert bench.runs == []
    assert bench.sql("SELECT count(*) FROM task_pending WHERE queue = 'default'") == WAITING
    assert still["blocks"] <= MOST * idle["blocks"]
