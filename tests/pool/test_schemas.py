"""Several pools in one database, a schema each: every migration touches its own alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app.pool.schema import newest
from tests.factory import count, tables
from tests.pool.interleave import Load, all_of
from tests.servers import Databases
from tests.tiers import starts_processes

POOL = """
import sys
from sqlalchemy import create_engine
from tasks_app import Settings, create_task, get_task, handler
from tasks_app.pool import schema
from tasks_app.pool.tables import table
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import drain

engine, registry = create_engine(sys.argv[1]), Registry()
handler("t", registry=registry)(lambda ctx: None)
function = table("task_create")

def up():
    with engine.begin() as connection:
        versions = schema.migrate(connection)
    with engine.begin() as connection:
        task_id = create_task(connection, "t")
        connection.exec_driver_sql(f"SELECT {function}('t')")
    drain(Settings(database_url=sys.argv[1]), registry=registry, queues=["default"])
    with engine.begin() as connection:
        return *versions, get_task(connection, task_id).state

for _ in sys.stdin:
    print(*up(), flush=True)
"""
POOLS = ("public", "one", "two")
PROJECT = Path(__file__).parents[2]


class Pools:
    """A process for each: the name of the schema is fixed for a process's life."""

    def __init__(self, engine: Engine, processes: dict[str, subprocess.Popen[str]]) -> None:
        self.engine, self._processes = engine, processes

    def up(self, pool: str) -> None:
        """Migrate it and let two tasks run, one created in Python and one in SQL."""
        process = self._processes[pool]
        assert process.stdin
        assert process.stdout
        process.stdin.write("up\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == f"None {newest()} SUCCEEDED"

    def standing(self) -> dict[str, int]:
        """Return how many tasks are done, of each that has its tables; the others have none."""
        with self.engine.connect() as connection:
            found = [name.split(".") for name in tables(connection)]
            of = {pool: {name for schema, name in found if schema == pool} for pool in POOLS}
            whole = {pool: names for pool, names in of.items() if names}
            assert len({frozenset(names) for names in whole.values()}) == 1
            done = "SELECT count(*) FROM {}.task_completed"
            return {p: connection.execute(text(done.format(p))).scalar_one() for p in whole}


@pytest.fixture
@starts_processes
def pools(databases: Databases) -> Iterator[Pools]:
    url = databases.create("schemas")
    engine = create_engine(url)
    with ExitStack() as ends:
        processes = {}
        for pool in POOLS:
            process = subprocess.Popen(
                [sys.executable, "-c", POOL, url],
                env={**os.environ, "TASKS_APP_SCHEMA": "" if pool == "public" else pool},
                cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            processes[pool] = ends.enter_context(process)
            ends.callback(process.kill)
        yield Pools(engine, processes)
    engine.dispose()


@pytest.mark.test_all
@pytest.mark.timeout(300)
def test_a_pool_is_made_without_touching_anybody_elses(pools: Pools) -> None:
    for number, pool in enumerate(POOLS, 1):
        pools.up(pool)
        assert pools.standing() == dict.fromkeys(POOLS[:number], 2)


PROCESSES, CREATES, KEYS = 3, 100, 5
WORKING = [
    ("queued", "return_existing"),
    ("queued_or_running", "replace_payload"),
    ("until_terminal", "return_existing"),
    ("for_period 1h", "raise"),
    ("forever", "reschedule"),
]
IDLE = [
    ("queued", "raise"),
    ("queued_or_running", "reschedule"),
    ("until_terminal", "replace_payload"),
]


@pytest.mark.test_all
@pytest.mark.parametrize(("scope", "policy"), WORKING)
def test_somebody_works(engine: Engine, scope: str, policy: str) -> None:
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=True)
    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    with engine.connect() as connection:
        there = count(connection)
    assert there == seen.outcomes["created"] >= KEYS
    if scope in ("for_period 1h", "forever"):
        assert there == KEYS


@pytest.mark.test_all
@pytest.mark.parametrize(("scope", "policy"), IDLE)
def test_nobody_works(engine: Engine, scope: str, policy: str) -> None:
    """Whatever a scope says of tasks that run or ran: there is exactly one of each key."""
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=False)
    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    assert seen.outcomes["created"] == KEYS
    with engine.connect() as connection:
        assert count(connection) == KEYS
