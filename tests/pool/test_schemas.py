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
from tests.factory import tables
from tests.servers import Databases
from tests.tiers import starts_processes

POOL = """
import sys
from alembic import command
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

def down():
    with engine.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    return ("gone",)

for line in sys.stdin:
    print(*{"up": up, "down": down}[line.strip()](), flush=True)
"""
POOLS = ("public", "one", "two")
PROJECT = Path(__file__).parents[2]


class Pools:
    """A process for each: the name of the schema is fixed for a process's life."""

    def __init__(self, engine: Engine, processes: dict[str, subprocess.Popen[str]]) -> None:
        self.engine, self._processes = engine, processes

    def _say(self, pool: str, word: str) -> str:
        process = self._processes[pool]
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def up(self, pool: str) -> None:
        """Migrate it and let two tasks run, one created in Python and one in SQL."""
        assert self._say(pool, "up") == f"None {newest()} SUCCEEDED"

    def down(self, pool: str) -> None:
        """Take it away."""
        assert self._say(pool, "down") == "gone"

    def standing(self) -> dict[str, int]:
        """Return how many tasks are done, of each that has its tables; the others have none."""
        with self.engine.connect() as connection:
            found = [name.split(".") for name in tables(connection)]
            of = {pool: {name for schema, name in found if schema == pool} for pool in POOLS}
            whole = {pool: names for pool, names in of.items() if "task_pending" in names}
            assert len({frozenset(names) for names in whole.values()}) == 1
            left = set().union(*(names for pool, names in of.items() if pool not in whole))
            assert left <= {"tasks_app_version"}
            done = "SELECT count(*) FROM {}.task_completed"
            return {p: connection.execute(text(done.format(p))).scalar_one() for p in whole}


@pytest.fixture
@starts_processes
def pools(databases: Databases) -> Iterator[Pools]:
    """None yet."""
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
def test_pools_go_up_and_down_in_any_order_and_touch_nobody_elses(pools: Pools) -> None:
    for number, pool in enumerate(POOLS, 1):
        pools.up(pool)
        assert pools.standing() == dict.fromkeys(POOLS[:number], 2)

    for pool in ("one", "public"):
        pools.down(pool)
        assert pools.standing() == {other: 2 for other in POOLS if other != pool}
        pools.up(pool)
        assert pools.standing() == dict.fromkeys(POOLS, 2)
