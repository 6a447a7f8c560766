"""One run: start everything, create, hurt, heal, wait, judge."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.embedded import Stack, temporary
from tasks_app.pool.schema import migrate
from torture.faults import World
from torture.processes import Service
from torture.verdict import Check, judge, remarks

NAMES = ("torture.quick", "torture.steady", "torture.flaky", "torture.awaited")
WEIGHTS = (55, 30, 10, 5)
BATCH = 100
ROLLED_BACK = 0.05
"""Share of producers' transactions that roll back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do; the seed replays it."""

    seed: int
    tasks: int
    lease_s: float
    spread_s: float
    """Over how long the tasks are created, while faults are injected."""
    quiet_s: float
    """How long the rest may take after the last fault."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run."""

    checks: list[Check]
    world: World
    remarks: list[tuple[str, object]]


def run(plan: Plan, folder: Path) -> Report:
    """Carry out a plan; the processes log into ``folder``."""
    with temporary() as stack:
        engine = create_engine(stack.urls.database)
        _prepare(engine)
        try:
            return _run(plan, engine, _world(plan, folder, stack))
        finally:
            engine.dispose()


def _run(plan: Plan, engine: Engine, world: World) -> Report:
    services = [*world.workers, *world.beats]
    for service in services:
        service.start()
    try:
        producer = threading.Thread(target=_produce, args=(plan, engine), daemon=True)
        producer.start()
        while producer.is_alive():
            time.sleep(world.rng.uniform(0.5, 2.5))
            print(f"  {_finished(engine):>6} done   {world.hurt()}", flush=True)
            _revive(services)
        committed = _until_quiet(plan, engine, services)
    finally:
        for service in services:
            service.resume()
            service.end()
    with engine.connect() as connection:
        checks = judge(connection, committed)
        refused = sum(worker.refusals() for worker in world.workers)
        revived = sum(service.revivals for service in services)
        facts = [
            ("stale writes refused by the fence", refused),
            ("services that ended by themselves, and were started again", revived),
            *remarks(connection),
        ]
    return Report(checks, world, facts)


def _prepare(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE effect (task_id bigint, attempt integer)"))
        connection.execute(text("CREATE TABLE committed (id bigint PRIMARY KEY)"))


def _world(plan: Plan, folder: Path, stack: Stack) -> World:
    environment = {
        "TASKS_APP_DATABASE_URL": stack.urls.database,
        "TASKS_APP_BROKER_URL": stack.urls.broker,
        "TASKS_APP_IMPORTS": "torture.handlers",
        "TASKS_APP_LEASE": f"{plan.lease_s}s",
        "TASKS_APP_REPUBLISH_AFTER": f"{plan.lease_s}s",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    workers = [
        Service(f"worker{n}", ["worker", "-c", "2", "-n", f"w{n}@%h"], environment, folder)
        for n in (1, 2)
    ]
    beats = [Service(f"beat{n}", ["beat", "--pidfile="], environment, folder) for n in (1, 2)]
    return World(workers, beats, stack.valkey, plan.lease_s, random.Random(plan.seed))


def _produce(plan: Plan, engine: Engine) -> None:
    """Create tasks in transactions; some roll back. What commits is written down with them."""
    rng = random.Random(plan.seed + 1)
    made = 0
    pause_s = plan.spread_s * BATCH / plan.tasks
    while made < plan.tasks:
        number = min(BATCH, plan.tasks - made)
        tasks = [NewTask(name) for name in rng.choices(NAMES, WEIGHTS, k=number)]
        with engine.connect() as connection:
            ids = create_tasks(connection, tasks)
            connection.execute(
                text("INSERT INTO committed SELECT unnest(CAST(:ids AS bigint[]))"),
                {"ids": [int(i) for i in ids]},
            )
            if rng.random() < ROLLED_BACK:
                connection.rollback()
                continue
            connection.commit()
        made += number
        time.sleep(pause_s)


def _revive(services: list[Service]) -> None:
    for service in services:
        service.revive()


def _until_quiet(plan: Plan, engine: Engine, services: list[Service]) -> int:
    """Wait until nothing is pending, at most ``quiet_s``; return how many tasks were committed."""
    deadline = time.monotonic() + plan.quiet_s
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            left = connection.execute(text("SELECT count(*) FROM task_pending")).scalar_one()
        if left == 0:
            break
        _revive(services)
        time.sleep(0.5)
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM committed")).scalar_one())


def _finished(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM task_completed")).scalar_one())
