"""Real children take as many connections as ``doctor`` says, or one fewer each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest
from sqlalchemy import make_url

from tasks_app import Settings
from tasks_app.monitor.checks.database import connections
from tests.broker.celery_process import HOUSE
from tests.broker.conftest import House
from tests.waiting import until

CHILDREN = 2


@contextmanager
def celery(house: House) -> Iterator[int]:
    worker = house.worker(children=CHILDREN)
    yield worker.pid
    worker.stop()


@contextmanager
def work(house: House) -> Iterator[int]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    parent = subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", "-c", str(CHILDREN)],
        env={**kept, **house.environment(), "PYTHONPATH": str(HOUSE)},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: house.sql("SELECT count(*) FROM task_worker") == CHILDREN, 30)
    yield parent.pid
    parent.terminate()
    parent.wait(30)


def taken(parent: int, url: str) -> list[int]:
    """How many connections to the database each child has."""
    port = make_url(url).port
    return sorted(
        sum(
            c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port
            for c in child.net_connections("tcp")
        )
        for child in psutil.Process(parent).children()
    )


@pytest.mark.parametrize("started", [celery, work])
def test_children_take_as_many_as_doctor_says(
    house: House, started: Callable[[House], AbstractContextManager[int]]
) -> None:
    with started(house) as parent:
        house.over(house.create("who", 8 * CHILDREN))  # each writes by its own, for a while
        house.over(house.create("ok", 200))
        house.over(house.create("only.writes", 200))
        with house.engine.connect() as connection:
            (said,) = connections(connection, Settings(database_url=house.url))
        most = int(re.search(r"up to (\d+) of", said.fact)[1]) // CHILDREN
        seen: list[list[int]] = []

        def is_as_said() -> bool:
            """One that is replaced is counted twice for a moment."""
            seen.append([n for n in taken(parent, house.url) if n])
            return len(seen[-1]) == CHILDREN and set(seen[-1]) <= {most, most - 1}

        until(is_as_said, 10, f"{most} connections, or one fewer, of each child: {seen}")
