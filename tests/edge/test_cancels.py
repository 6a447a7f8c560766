"""The table of docs/operations/cancel.md: each kind of handler on real workers of each kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tasks_app import cancel_task
from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import House
from tests.clock import until
from tests.environment import python_path

pytestmark = pytest.mark.timeout(300, method="thread")

IMPORTS = {"TASKS_APP_IMPORTS": "house_handlers,cancel_handlers"}
QUEUE = "cancel"
SOON_S = 2.5
"""Two seconds, and the time of a machine with much to do."""
ENDS_AT_ONCE = {
    "cancel.sleep", "cancel.cpu", "cancel.statement", "cancel.sql", "cancel.subprocess",
    "cancel.await", "cancel.awaited_statement",
}  # fmt: skip
GOES_ON = {"cancel.blocks", "cancel.swallows", "cancel.told"}
BLOCKED_THREAD = {"cancel.sleep", "cancel.subprocess"}
POOLS = {
    "prefork": ["-c", "4"],
    "threads": ["-P", "threads", "-c", "10"],
    "solo": ["-P", "solo"],
    "work": ["-c", "1", "--threads", "10"],
}


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House) -> None:
    house.beat(**IMPORTS)


@contextmanager
def working(house: House, pool: str, *arguments: str) -> Iterator[None]:
    arguments = arguments or POOLS[pool]
    process: CeleryProcess | subprocess.Popen[bytes]
    if pool == "work":
        command = [sys.executable, "-m", "tasks_app", "work", "-q", QUEUE, *arguments]
        ours = {"PYTHONPATH": python_path(HOUSE), **house.environment(**IMPORTS)}
        process = subprocess.Popen(command, env={**os.environ, **ours})
    else:
        process = house.worker("-Q", f"{QUEUE},tasks_app", *arguments, ready=False, **IMPORTS)
    until(lambda: house.sql("SELECT count(*) FROM task_worker WHERE 'cancel' = ANY(queues)"), 90)
    try:
        yield
    finally:
        if isinstance(process, CeleryProcess):
            process.end()
        else:
            process.send_signal(signal.SIGQUIT)
            process.wait(20)
        house.sql("DELETE FROM task_worker")


def run(house: House, name: str) -> int:
    (task_id,) = house.create(name, queue=QUEUE)
    until(lambda: house.task(task_id).state == "RUNNING", 30)
    return task_id


def seconds_to_end(house: House, task_id: int, kill_after: timedelta | None = None) -> float:
    with house.engine.begin() as connection:
        assert cancel_task(connection, task_id, kill_after=kill_after) == "requested"
    began = time.monotonic()
    until(lambda: house.task(task_id).finished_at is not None, 30)
    return time.monotonic() - began


@pytest.mark.parametrize("pool", POOLS)
def test_each_kind_ends_as_the_table_says(house: House, pool: str) -> None:
    with working(house, pool):
        look_at_each(house, pool)


def look_at_each(house: House, pool: str) -> None:
    in_threads = pool in {"threads", "work"}
    at_once = ENDS_AT_ONCE - (BLOCKED_THREAD if in_threads else set())
    told = {}
    for name in sorted(ENDS_AT_ONCE | GOES_ON):
        task_id = run(house, name)
        time.sleep(0.3)
        took_s = seconds_to_end(house, task_id)
        told[name] = f"{took_s:.1f} s, {house.task(task_id).state}"
        state = "SUCCEEDED" if name in GOES_ON else "CANCELLED"
        assert house.task(task_id).state == state, told
        if not (pool == "work" and name in BLOCKED_THREAD):  # it may have had the main thread
            assert (took_s < SOON_S) == (name in at_once), told
    print(f"\n{pool}: {told}")


@pytest.mark.parametrize(("pool", "children"), [("prefork", 1), ("prefork", 2), ("work", 2)])
def test_a_kill_ends_what_swallows_a_cancel_and_charges_nobody_else(
    house: House, pool: str, children: int
) -> None:
    with working(house, pool, "-c", str(children)):
        beside = [run(house, "cancel.beside") for _ in range(4)]
        task_id = run(house, "cancel.swallows")
        took_s = seconds_to_end(house, task_id, kill_after=timedelta(seconds=1))
        task = house.task(task_id)
        assert (task.state, task.failures, task.crashes) == ("CANCELLED", 0, 0)
        assert "was killed, as whoever cancelled it asked for" in (task.error or "")
        until(lambda: all(house.task(one).state == "RUNNING" for one in beside), 30)
        found = [house.task(one) for one in beside]
        assert {one.crashes for one in found} == {0}
        assert 2 in {one.attempt for one in found}
        print(f"\n{pool}, {children} children: {took_s:.1f} s")
        with house.engine.begin() as connection:
            for one in beside:
                cancel_task(connection, one)
        house.over(beside, 10)
