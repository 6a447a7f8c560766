"""Celery's prefork children as good processes: recycled, ended in time, and asked for stacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import House
from tests.clock import until
from tests.runtime.worker.test_processes import HANDLERS

pytestmark = pytest.mark.timeout(180, method="thread")
SPAWN = "worker_pool_start_method = 'spawn'\n"
Start = Callable[..., CeleryProcess]


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House) -> None:
    house.beat()


@pytest.fixture
def start(house: House, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "process_handlers.py").write_text(HANDLERS)
    started: list[CeleryProcess] = []

    def begin(*arguments: str, config: str = "", children: int = 1) -> CeleryProcess:
        (tmp_path / "celeryconfig.py").write_text(config)
        more = {
            "TASKS_APP_IMPORTS": "process_handlers",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HOUSE)]),
        }
        started.append(house.worker(*arguments, children=children, **more))
        return started[0]

    yield begin
    for worker in started:
        worker.end()
    house.sql("DELETE FROM task_worker")


def alive(worker: CeleryProcess) -> set[int]:
    return {each.pid for each in worker.children() if each.status() != psutil.STATUS_ZOMBIE}


def test_children_are_recycled_after_so_many_messages(house: House, start: Start) -> None:
    start("--max-tasks-per-child", "2")
    ids = []
    for _ in range(6):  # a message each
        ids += house.create("pid")
        assert house.over(ids) == {"SUCCEEDED": len(ids)}
    tasks = [house.task(task_id) for task_id in ids]
    assert 2 <= len({task.result["pid"] for task in tasks}) <= 4
    assert {(task.attempt, task.failures, task.crashes) for task in tasks} == {(1, 0, 0)}


def test_a_child_that_has_grown_is_recycled(house: House, start: Start) -> None:
    start("--max-memory-per-child", "350000")
    (grown,) = house.create("grows", payload={"bytes": 400 * 1024**2})
    house.over([grown])
    (after,) = house.create("pid")
    assert house.over([grown, after]) == {"SUCCEEDED": 2}
    assert house.task(grown).result["pid"] != house.task(after).result["pid"]


@pytest.mark.parametrize("config", ["", SPAWN], ids=["fork", "spawn"])
@pytest.mark.parametrize(
    "what",
    ["thread", "executor", "exit function", "exit function that lets no other thread run"],
)
def test_what_a_handler_left_keeps_no_child(
    house: House, start: Start, what: str, config: str
) -> None:
    """Neither when it is recycled, nor when the worker ends."""
    worker = start("--max-tasks-per-child", "1", config=config)
    first = alive(worker)
    ids = house.create("leaves", payload={"what": what})
    house.over(ids)
    ids += house.create("pid")
    assert house.over(ids) == {"SUCCEEDED": 2}
    assert house.task(ids[1]).result["pid"] not in first
    (last,) = house.create("leaves", payload={"what": what})
    house.over([last])
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(20) == 0
    assert house.sql("SELECT count(*) FROM task_worker") == 0


def test_sigusr1_logs_the_stacks_of_the_children_too(house: House, start: Start) -> None:
    worker = start(children=2)
    (slow,) = house.create("sleeps", payload={"seconds": 5})
    until(lambda: house.task(slow).state == "RUNNING")
    os.kill(worker.pid, signal.SIGUSR1)
    until(lambda: worker.log().count("stacks, as somebody asked") == 2, 10)
    assert f"runs task {slow} (sleeps)" in worker.log()
    assert "thread MainThread" in worker.log()
    assert house.over([slow]) == {"SUCCEEDED": 1}
