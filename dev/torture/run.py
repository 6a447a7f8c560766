"""One run: start everything, create, hurt, heal, wait, judge."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from dev.torture import cancels, flows, jobs, timetable
from dev.torture.failpoints import CALM, HITS, hits
from dev.torture.fault_proxy import FaultProxy
from dev.torture.operators import COMMITTED
from dev.torture.processes import Service
from dev.torture.surroundings import Servers, Surroundings
from dev.torture.verdict import Check, judge, remarks
from dev.torture.world import World
from tasks_app import NewTask, create_tasks
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate

NAMES = ("torture.quick", "torture.steady", "torture.flaky", "torture.awaited", "torture.slow")
WEIGHTS = (55, 29, 10, 5, 1)
HERE = Path(__file__).parent
HANDLERS = ("handlers", "jobs", "flows", "cancels")
CELERY = ("celery", "-A", "tasks_app")
BATCH = 100
START_S = 60.0
MIGRATING = threading.Lock()
"""Alembic knows one database at a time."""
ROLLED_BACK = 0.05
"""Share of producers' transactions that roll back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run; the seed replays it."""

    seed: int
    tasks: int
    lease_s: float
    spread_s: float
    """Over how long the tasks are created, while faults are injected."""
    quiet_s: float
    """How long the rest may stand still after the last fault."""
    failpoints: str = ""
    """What may happen inside of workers and beats, as :mod:`dev.torture.failpoints` reads it."""
    workers: int = 2
    beats: int = 2
    children: int = 2
    """Of each worker; threads in an engine."""
    pause_s: tuple[float, float] = (0.5, 2.5)
    """Between two faults from outside."""
    cancels: bool = False
    """Operators cancel some."""
    cancels_running: bool = False
    """Also while they run, and have them killed."""
    engine: bool = False
    """Without Celery: workers are ``tasks-app work``, which need neither beat nor broker."""
    jobs: bool = False
    """A batch job and groups run beside the tasks."""
    flows: int = 0
    """How many flows of twenty steps run beside them."""
    surroundings: Surroundings = Surroundings()  # noqa: RUF009  frozen


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    checks: list[Check]
    world: World
    remarks: list[tuple[str, object]]
    recovery_s: float
    """From the last fault to the last task's end."""

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks)


Draw = Callable[[World], str]
"""Hurt the world once; return what was done."""


def run(plan: Plan, folder: Path, draw: Draw, tell: Callable[[str], None] = print) -> Report:
    with servers_of(plan, folder) as world:
        with at_work(plan, world):
            recovery_s, committed = _hurt(plan, world, folder, draw, tell)
        return _judged(plan, world, folder, committed, recovery_s)


@contextmanager
def running(plan: Plan, folder: Path) -> Iterator[World]:
    """Yield a world whose workers and beats are at work."""
    with servers_of(plan, folder) as world, at_work(plan, world):
        yield world


@contextmanager
def servers_of(plan: Plan, folder: Path) -> Iterator[World]:
    """Yield a world with its servers and no services yet."""
    with ExitStack() as stack:
        servers = stack.enter_context(plan.surroundings.servers())
        # Ours has the settings that it needs, whatever becomes of the role's.
        own = {
            "client_encoding": "utf8",
            "options": "-c DateStyle=ISO -c IntervalStyle=postgres -c array_nulls=on"
            " -c default_transaction_isolation=read\\ committed -c statement_timeout=0",
        }
        engine = create_engine(servers.postgres.url, pool_size=100, connect_args=own)
        stack.callback(engine.dispose)
        _prepare(engine)
        yield stack.enter_context(_world(plan, folder, servers, engine))


@contextmanager
def at_work(plan: Plan, world: World) -> Iterator[None]:
    """Start all services, and end them."""
    for service in world.services:
        service.start()
    try:
        _until_there(plan, world)
        yield
    finally:
        for service in world.services:
            service.resume()
            service.end()


def _hurt(
    plan: Plan, world: World, folder: Path, draw: Draw, tell: Callable[[str], None]
) -> tuple[float, int]:
    """Create tasks and faults, then wait; return the seconds until quiet, and how many tasks."""
    with world.engine.begin() as connection:
        timetable.begin(connection, plan.spread_s)
        if plan.jobs:
            jobs.begin(connection)
        flows.begin(connection)
    producers = [
        threading.Thread(target=_produce, args=(plan, world.engine), daemon=True),
        flows.Producer(world.engine, plan.flows, plan.spread_s),
        flows.Sender(world.engine, plan.flows, plan.spread_s),
    ]
    for producer in producers:
        producer.start()
    while any(producer.is_alive() for producer in producers):
        time.sleep(world.rng.uniform(*plan.pause_s))
        tell(f"  {_count(world.engine, 'task_completed') or 0:>6} done   {draw(world)}")
        _revive(world)
    (folder / CALM).touch()
    calm_at = time.monotonic()
    committed = _until_quiet(plan, world)
    return time.monotonic() - calm_at, committed


def _judged(plan: Plan, world: World, folder: Path, committed: int, recovery_s: float) -> Report:
    world.counts.update(hits(folder / HITS))
    with world.engine.connect() as connection:
        checks = judge(connection, committed, cancels=plan.cancels)
        checks += timetable.judge_instants(connection)
        if plan.jobs:
            checks += jobs.judge_jobs(connection, cancels=plan.cancels)
        if plan.cancels_running:
            checks += cancels.judge_cancels(connection, folder)
        if plan.flows:
            checks += flows.judge_flows(connection, plan.flows)
        facts: list[tuple[str, object]] = [
            ("stale writes refused by the fence", sum(w.refusals() for w in world.workers)),
            (
                "services that ended by themselves, and were started again",
                sum(service.revivals for service in world.services),
            ),
            *remarks(connection),
        ]
    return Report(checks, world, facts, recovery_s)


def _prepare(engine: Engine) -> None:
    with MIGRATING, engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE effect (task_id bigint, attempt integer)"))
        connection.execute(text("CREATE TABLE committed (id bigint PRIMARY KEY)"))
    for day in _days(engine):
        with engine.begin() as connection:
            add_partition(connection, day)


def _days(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return missing_partitions(connection)


@contextmanager
def _world(plan: Plan, folder: Path, servers: Servers, engine: Engine) -> Iterator[World]:
    database, broker = make_url(servers.database_url), make_url(servers.broker.url)
    with (
        FaultProxy((database.host or "", database.port or 0)) as database_line,
        FaultProxy((broker.host or "", broker.port or 0)) as broker_line,
    ):
        environment = {
            "TASKS_APP_DATABASE_URL": _through(database, database_line),
            "TASKS_APP_BROKER_URL": _through(broker, broker_line),
            "TASKS_APP_IMPORTS": ",".join(f"dev.torture.{each}" for each in HANDLERS),
            "TASKS_APP_LEASE": f"{plan.lease_s}s",
            **servers.settings,
            "TORTURE_FAILPOINTS": plan.failpoints,
            "TORTURE_SEED": str(plan.seed),
            "TORTURE_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE / "site")]),
        }
        workers = [
            Service(f"worker{n}", _worker(plan, n), environment, folder)
            for n in range(1, plan.workers + 1)
        ]
        beats = [
            Service(f"beat{n}", [*CELERY, "beat", "--pidfile="], environment, folder)
            for n in range(1, plan.beats + 1)
            if not plan.engine
        ]
        yield World(
            workers,
            beats,
            servers,
            database_line,
            broker_line,
            engine,
            plan.lease_s,
            random.Random(plan.seed),
        )


def _worker(plan: Plan, number: int) -> list[str]:
    if plan.engine:
        return ["tasks_app", "work", "-c", str(plan.children)]
    return [*CELERY, "worker", "-c", str(plan.children), "-n", f"w{number}@%h"]


def _through(url: Any, line: FaultProxy) -> str:
    through = url.set(host="127.0.0.1", port=line.port)
    return str(through.render_as_string(hide_password=False))


def _until_there(plan: Plan, world: World) -> None:
    """Wait for the first heartbeats: a fault from outside before them would hurt nobody.

    A worker whose children die before it is ready ends, and is started again.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (_count(world.engine, "task_worker") or 0) >= plan.workers:
            return
        _revive(world)
        time.sleep(0.1)


def _produce(plan: Plan, engine: Engine) -> None:
    """Create tasks in transactions; some roll back. What commits is written down with them."""
    rng = random.Random(plan.seed + 1)
    made = 0
    pause_s = plan.spread_s * BATCH / plan.tasks
    while made < plan.tasks:
        number = min(BATCH, plan.tasks - made)
        tasks = [NewTask(name) for name in rng.choices(NAMES, WEIGHTS, k=number)]
        rolls_back = rng.random() < ROLLED_BACK
        try:
            with engine.connect() as connection:
                ids = create_tasks(connection, tasks)
                connection.execute(COMMITTED, {"ids": [int(i) for i in ids]})
                if rolls_back:
                    connection.rollback()
                    continue
                connection.commit()
        except DBAPIError:  # nobody knows whether the COMMIT was carried out: so count
            engine.dispose()
            time.sleep(0.2)
            made = _count(engine, "committed") or made
            continue
        made += number
        time.sleep(pause_s)


def _count(engine: Engine, table: str) -> int | None:
    """Count rows; None: the database is away."""
    try:
        with engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
    except DBAPIError:
        engine.dispose()
        return None


def _revive(world: World) -> None:
    for service in world.services:
        service.resume()  # a failpoint may have stopped one of its processes
        service.revive()


def _until_quiet(plan: Plan, world: World) -> int:
    """Wait until nothing is pending; return how many tasks were committed.

    A run that ends no task in ``quiet_s`` is stuck; on a busy machine it is only slow.
    """
    fewest, deadline = sys.maxsize, time.monotonic() + plan.quiet_s
    while (left := _left(plan, world.engine)) != 0:
        if left is not None and left < fewest:
            fewest, deadline = left, time.monotonic() + plan.quiet_s
        if time.monotonic() > deadline:
            break
        _revive(world)
        time.sleep(0.2)
    with world.engine.begin() as connection:
        timetable.note_tasks(connection)
        if plan.jobs:
            jobs.note_callbacks(connection)
    return _count(world.engine, "committed") or 0


def _left(plan: Plan, engine: Engine) -> int | None:
    """Count what is pending or has yet to be fired or to go on; None: the database is away."""
    try:
        with engine.begin() as connection:
            coming = int(not timetable.is_over(connection)) + flows.go_on(connection)
            if plan.jobs:
                coming += jobs.go_on(connection, restart=plan.cancels)
    except DBAPIError:
        engine.dispose()
        return None
    pending = _count(engine, "task_pending")
    return pending if pending is None else pending + coming
