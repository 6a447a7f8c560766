"""Every pool on every broker: a life, a drain, a kill. One line of the table for each cell."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from tasks_app.broker.checks.pools import check_pool
from tasks_app.domain.errors import ConfigurationError
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.life import STATES, begin_life, effects_of
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]

PATIENT = {"TASKS_APP_LEASE": "15s"}
CELL = "cell"
"""A queue whose handlers declare no limit: not every pool could enforce it."""
SPAWN = "worker_pool_start_method = 'spawn'\n"
POOLS = {
    "prefork, forked": (("-P", "prefork"), ""),
    "prefork, spawned": (("-P", "prefork"), SPAWN),
    "threads": (("-P", "threads"), ""),
    "solo": (("-P", "solo"), ""),
}
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
CHARGES = "SELECT sum(failures), sum(crashes) FROM task_all WHERE id = ANY(:ids)"
Start = Callable[[], CeleryProcess]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")
def test_cell(house: House, pool: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(house.end)
    arguments, config = POOLS[pool]
    prefork = "prefork" in pool
    numbers = iter(range(10))

    def start() -> CeleryProcess:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "celeryconfig.py").write_text(config)
        worker = house.worker(*arguments, "-Q", CELL, folder=folder, ready=False, **PATIENT)
        house.ready(worker, children=2 if prefork else 1)
        return worker

    worker = start()
    beat = house.beat(**PATIENT)
    lived = live(house, poison=prefork)
    drained = drain(house, worker)
    recovered = kill_and_recover(house, start, at_once=1 if pool == "solo" else 2)
    assert beat.stop() == 0
    broker = type(house.broker).__name__
    print(f"\n| {pool} | {broker} | {lived:.1f} s | {drained:.1f} s | {recovered:.1f} s |")


def live(house: House, *, poison: bool) -> float:
    """Success, retry, failure, cancel; and where it is survived, a task that kills its process."""
    began = time.monotonic()
    ids = begin_life(house, CELL)
    deadly = house.create("poison", queue=CELL) if poison else []

    assert house.over(ids, 60) == STATES
    assert effects_of(house, ids) == (13, 13)
    if deadly:
        assert house.over(deadly, 60) == {"FAILED": 1}
        assert [a.kind for a in house.attempts(deadly[0])] == ["process died"] * 3
    return time.monotonic() - began


def drain(house: House, worker: CeleryProcess) -> float:
    """SIGTERM: what runs ends, the rest goes back, nobody is charged."""
    slow = house.create("slow", payload={"seconds": 2.0}, queue=CELL)
    until(lambda: house.sql(RUNNING))
    waiting = house.create("brief", 50, queue=CELL)
    began = time.monotonic()

    assert worker.stop() == 0
    took = time.monotonic() - began

    assert house.task(slow[0]).state == "SUCCEEDED"
    assert house.sql(RUNNING) == 0
    left = [i for i in waiting if house.task(i).state == "PENDING"]
    assert len(left) > 20
    with house.engine.connect() as connection:
        assert tuple(connection.execute(text(CHARGES), {"ids": [*slow, *waiting]}).one()) == (0, 0)
    house.clean()
    return took


def kill_and_recover(house: House, start: Start, *, at_once: int) -> float:
    """SIGKILL to parent and children: nobody is charged, all is done by the next worker."""
    worker = start()
    ids = house.create("slow", 2, {"seconds": 2.0}, queue=CELL)
    ids += house.create("ok", 10, queue=CELL)
    until(lambda: house.sql(RUNNING) >= at_once, 30)
    worker.signal_all(signal.SIGKILL)
    worker.wait()
    on_board = [i for i in ids if house.task(i).state == "RUNNING"]
    began = time.monotonic()
    another = start()

    assert house.over(ids, 90) == {"SUCCEEDED": 12}
    took = time.monotonic() - began
    assert effects_of(house, ids) == (12, 12)
    assert all(house.task(i).failures == 0 for i in ids)
    assert on_board
    assert [house.task(i).crashes for i in on_board] == [1] * len(on_board)
    assert another.stop() == 0
    return took


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_cells_that_are_refused(pool: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        check_pool(pool)
    print(f"\n| {pool} | any | refused: {refusal.value} |")
