"""Long drains, bulks and standstills."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from tasks_app import Breaker, NewTask, change_queue, create_tasks, pause_queue
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control.circuit_breakers import hold_tasks
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.heartbeats import live_workers
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.runtime.api.bulk import run_bulk, start_bulk
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tests.broker.conftest import House
from tests.clock import until
from tests.edge.bulk_operators import Crowd, finish, left, steps_of
from tests.edge.gated_runs import Workers
from tests.factory import LEASE, claimer, count, ending
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory

DRAINS = int(os.environ.get("TASKS_APP_TEST_DRAINS", "6"))
SEED = int(os.environ.get("TASKS_APP_TEST_SEED", "1"))
GRACE_S = 20.0
LATE_S = 2.0
CALM = {  # a machine under load is slow: nobody shall be rescued, nothing published twice
    "TASKS_APP_LEASE": "30s",
    "TASKS_APP_GIVE_BACK_AFTER": "1s",
    "TASKS_APP_IMPORTS": "house_handlers,stop_handlers",
}
QUICK, BRIEF, SLOW, LONG = 0.0, 0.2, 1.0, 4.0


class Load(threading.Thread):
    """A producer: bursts of tasks, fast and slow, sync and async."""

    def __init__(self, house: House, rng: random.Random, *, long: bool) -> None:
        super().__init__(daemon=True)
        self._house, self._rng, self._long = house, rng, long
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(0.5):
            tasks = [self._task("load.sync", QUICK) for _ in range(self._rng.randint(2, 20))]
            tasks += [self._task("load.sync", BRIEF), self._task("load.async", BRIEF)]
            tasks += [self._task("load.async", SLOW)] if self._rng.random() < 0.5 else []
            tasks += [self._task("load.sync", SLOW)] if self._rng.random() < 0.3 else []
            tasks += [self._task("load.sync", LONG)] * (self._long and self._rng.random() < 0.2)
            self._rng.shuffle(tasks)
            with self._house.engine.begin() as connection:
                create_tasks(connection, tasks)

    def _task(self, name: str, seconds: float) -> Any:
        return NewTask(name, {"seconds": seconds})

    def end(self) -> None:
        self._ends.set()
        self.join(10)


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which every handler notes that it was called."""
    path = tmp_path / "starts"
    path.touch()
    monkeypatch.setenv("STOP_STARTS", str(path))
    return path


HANDLERS = str(Path(__file__).parents[1] / "broker" / "house")
HOLDS = """
    SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND owner LIKE :node
    AND (payload->>'seconds')::float >= :seconds
"""
RELEASED = "SELECT extract(epoch FROM started_at - due_at) FROM task_completed WHERE attempt > 1"
FRESH = "SELECT extract(epoch FROM started_at - due_at) FROM task_completed WHERE attempt = 1"
"""The same of tasks that were never released: what this machine can do just now."""


def drain(
    house: House, folder: Path, number: int, how: signal.Signals, soft: float
) -> tuple[list[float], Counter[int]]:
    """Stop so many workers, one after the other; return how long each took, and its status."""
    (folder / "celeryconfig.py").write_text(f"worker_soft_shutdown_timeout = {soft}\n")
    configured = {**CALM, "PYTHONPATH": os.pathsep.join([str(folder), HANDLERS])}
    held = LONG if how is signal.SIGQUIT else QUICK
    rng = random.Random(SEED)
    load = Load(house, rng, long=held == LONG)
    house.worker(children=4, **CALM)
    house.beat(**CALM)
    load.start()
    took, statuses = [], Counter[int]()
    try:
        for _ in range(number):
            worker = house.worker(**configured)
            until(lambda w=worker: house.sql(HOLDS, node=f"{w.name}@%", seconds=held), 60)
            threading.Event().wait(rng.random())  # the random moment
            began = time.monotonic()
            os.kill(worker.pid, how)
            statuses[worker.wait(60)] += 1
            took.append(time.monotonic() - began)
    finally:
        load.end()
    until(lambda: house.sql("SELECT count(*) FROM task_pending") == 0, 120)
    return took, statuses


def lateness(house: House, which: str = RELEASED) -> list[float]:
    """Seconds between the instant at which tasks were due again and their start."""
    with house.engine.connect() as connection:
        return sorted(float(late) for late in connection.execute(text(which)).scalars())


def charged(house: House) -> int:
    return house.sql(
        "SELECT (SELECT count(*) FROM task_error) + (SELECT count(*) FROM task_attempt)"
        " + (SELECT count(*) FROM task_completed WHERE failures + crashes > 0)"
    )


def figures(what: str, values: list[float]) -> str:
    middle = statistics.median(values)
    late = sum(value > LATE_S for value in values)
    return f"{what}: {len(values)}, median {middle:.2f} s, max {max(values):.2f} s, {late} over 2 s"


def report(capsys: pytest.CaptureFixture[str], house: House, *lines: str) -> None:
    number = house.sql("SELECT count(*) FROM task_completed")
    with capsys.disabled():
        sys.stdout.write("\n  ".join(["", f"tasks done: {number}", *lines, ""]))


@pytest.mark.timeout(600, method="thread")
@pytest.mark.parametrize(
    ("how", "number", "grace_s"),
    [(signal.SIGTERM, DRAINS, 0.0), (signal.SIGQUIT, max(1, DRAINS // 2), 0.5)],
    ids=["sigterm", "sigquit with a grace"],
)
def test_workers_are_told_to_stop_at_random_moments(
    house: House,
    tmp_path: Path,
    starts: Path,
    capsys: pytest.CaptureFixture[str],
    how: signal.Signals,
    number: int,
    grace_s: float,
) -> None:
    took, statuses = drain(house, tmp_path, number, how, grace_s)

    late, fresh = lateness(house), lateness(house, FRESH)
    runs = Counter(starts.read_text().split())
    effects = house.effects()
    done = house.sql("SELECT count(*) FROM task_completed")
    let_go = sum(n - 1 for n in runs.values())
    report(
        capsys, house,
        figures(f"{how.name} with {grace_s} s of grace", took),
        f"exit statuses: {dict(statuses)}",
        f"let go while they ran: {let_go}, charged: {charged(house)}",
        figures("released tasks, until they started elsewhere", late),
        figures("tasks never released, until they started", fresh),
    )  # fmt: skip
    assert statuses == {0: number}
    assert max(took) < GRACE_S
    assert charged(house) == 0
    assert runs
    assert (let_go > 0) is (how is signal.SIGQUIT)
    assert effects == (done, done)
    assert max(late) <= max(LATE_S, *fresh)


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


TASKS, WORKERS = 3_000, 2
BAD = Cause("shop.Away", "nobody there")


def work(url: str, seed: int) -> None:
    """Claim and end tasks until there is none: some fail, some succeed."""
    engine, dice = create_engine(url), random.Random(seed)
    child = claimer("t", owner=f"w{seed}")
    while True:
        with engine.begin() as connection:
            taken = claim_next(connection, ["default"], 5, child, uuid4())
        ends = [
            ending(task, Event.FAIL, cause=BAD) if dice.random() < 0.3 else ending(task)
            for task in taken
        ]
        with engine.begin() as connection:
            went = settle_group(connection, ends)
        for end in ends:
            if end.fence.task_id not in went:  # the other worker's claim looked at its row
                with engine.begin() as connection:
                    settle_one(connection, end)
        time.sleep(0.02)  # or they would have run all of them before the first is cancelled


def fail_all(engine: Engine) -> None:
    """Run all that is due once; all of it fails."""
    child = claimer("t")
    while True:
        with engine.begin() as connection:
            taken = claim_next(connection, ["default"], 500, child, uuid4())
            settle_group(connection, [ending(task, Event.FAIL, cause=BAD) for task in taken])
        if not taken:
            return


@pytest.mark.timeout(900)
def test_thousands_are_cancelled_while_workers_take_them_and_operators_are_killed(
    engine: Engine, database_url: str
) -> None:
    with engine.begin() as connection:
        ids = create_tasks(connection, [NewTask("t")] * TASKS)
    crowd = Crowd(database_url)
    try:
        for seed in range(WORKERS):
            crowd.start(work, seed)
        token = start_bulk(engine, "cancel", name="t", by="first")
        ten = run_bulk(engine, token, first=10, by="first")
        killed = finish(engine, database_url, token, crowd)
    finally:
        crowd.end()

    assert ten is not None
    assert ten.number == 10
    assert killed >= 3
    told = [one for line in steps_of(engine, token) for one in line.ids]
    assert len(told) == len(set(told))
    answers = sum((Counter(line.answers) for line in steps_of(engine, token)), Counter())
    with engine.connect() as connection:
        cancelled = set(
            connection.execute(
                text("SELECT id FROM task_completed WHERE state = 'CANCELLED'")
            ).scalars()
        )
        asked = set(
            connection.execute(
                text("SELECT id FROM task_pending WHERE cancel_requested_at IS NOT NULL")
            ).scalars()
        )
        there = count(connection)
    assert there == len(ids)
    assert cancelled <= set(told)
    assert answers["cancelled"] + answers["requested"] == len(told)
    assert answers["cancelled"] <= len(cancelled) <= len(told)
    assert asked <= set(told)
    print(f"\n{answers=} {killed=} steps={len(steps_of(engine, token))}")


@pytest.mark.timeout(900)
def test_thousands_that_failed_are_requeued_once_while_workers_fail_them_again(
    engine: Engine, database_url: str
) -> None:
    """Each comes back once, so its attempts are two: what failed again is not requeued again."""
    with engine.begin() as connection:
        create_tasks(connection, [NewTask("t")] * TASKS)
    fail_all(engine)
    crowd = Crowd(database_url)
    try:
        token = start_bulk(engine, "requeue", name="t", error_kind="Away", by="first")
        ten = run_bulk(engine, token, first=10, by="first")
        for seed in range(WORKERS):
            crowd.start(work, seed)
        killed = finish(engine, database_url, token, crowd)
        until(lambda: not left(engine), 600, "the last run")
    finally:
        crowd.end()

    assert ten is not None
    assert ten.answers == {"requeued": 10}
    assert killed >= 3
    steps = steps_of(engine, token)
    told = [one for line in steps for one in line.ids]
    assert len(told) == len(set(told)) == TASKS
    assert sum(line.number for line in steps) == TASKS
    with engine.connect() as connection:
        attempts = connection.execute(
            text("SELECT attempt, count(*) AS n FROM task_all GROUP BY attempt")
        ).all()
    assert [tuple(row) for row in attempts] == [(2, TASKS)]
    print(f"\n{killed=} steps={len(steps)}")


def release_in_stages(engine: Engine, url: str, workers: Workers, crowd: Crowd) -> tuple[int, int]:
    """Return the bulk that did it, and how many operators were killed."""
    with engine.connect() as connection:
        until(lambda: len(live_workers(connection, LEASE)) == WORKERS, 120, "a worker")
    token, released = start_bulk(engine, "release", name="gated", by="first"), 0
    for stage in (10, 190, 400):
        done = run_bulk(engine, token, first=stage, by="first")
        assert done is not None
        released += done.number
        until(lambda n=released: len(workers.runs()) == n, 120, f"the stage of {stage}")
    killed = finish(engine, url, token, crowd)
    until(lambda: not left(engine), 600, "the last run")
    return token, killed


@pytest.mark.timeout(900)
def test_thousands_held_are_released_in_stages_beside_real_workers(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """None is lost, none runs before its release, none runs twice."""
    with engine.begin() as connection:
        ids = create_tasks(connection, [NewTask("gated", {"key": "held"})] * TASKS)
    held = run_bulk(engine, start_bulk(engine, "hold", name="gated", by="first"))
    crowd, workers = Crowd(database_url), Workers(database_url, tmp_path, WORKERS)
    try:
        token, killed = release_in_stages(engine, database_url, workers, crowd)
    finally:
        crowd.end()
        workers.stop()

    assert held is not None
    assert held.number == TASKS
    assert killed >= 3
    steps = steps_of(engine, token)
    released_at = {one: line.at.timestamp() for line in steps for one in line.ids}
    assert sum(line.number for line in steps) == TASKS
    runs = workers.runs()
    assert sorted(run.task_id for run in runs) == sorted(released_at) == sorted(ids)
    assert [run for run in runs if run.began / 1e9 < released_at[run.task_id]] == []
    with engine.connect() as connection:
        ends = connection.execute(
            text("SELECT state, attempt, count(*) FROM task_all GROUP BY 1, 2")
        )
        assert ends.all() == [("SUCCEEDED", 1, TASKS)]
    print(f"\n{killed=} steps={len(steps)}")
