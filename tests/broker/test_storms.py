"""What the world does to workers, beats and brokers: every task is done, each effect once."""

from __future__ import annotations

import signal
import time

import pytest

from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

NUMBER = 500
OVER = "SELECT count(*) FROM task_completed"


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    return house.worker()


@pytest.fixture(scope="module", autouse=True)
def beats(house: House, worker: CeleryProcess) -> list[CeleryProcess]:
    """Two of them, all the time."""
    return [house.beat(), house.beat()]


def test_two_beats_let_every_task_run_once(house: House) -> None:
    ids = house.create("ok", NUMBER)
    states = house.over(ids)
    assert states == {"SUCCEEDED": NUMBER}
    assert house.effects() == (NUMBER, NUMBER)
    assert house.sql("SELECT max(attempt) FROM task_completed") == 1


def test_a_broker_that_forgets_everything_loses_nothing(house: House) -> None:
    ids = house.create("ok", NUMBER)
    until(lambda: house.sql(OVER))
    for _ in range(5):
        flush(house)
    states = house.over(ids)
    assert states == {"SUCCEEDED": NUMBER}
    assert house.effects() == (NUMBER, NUMBER)


def flush(house: House) -> None:
    from redis import Redis

    with Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as redis:
        redis.flushall()


def test_a_broker_that_dies_and_comes_back_empty_loses_nothing(house: House) -> None:
    ids = house.create("ok", NUMBER)
    until(lambda: house.sql(OVER))
    house.broker.kill()
    more = house.create("ok", 20)
    house.broker.start()
    states = house.over([*ids, *more], 60)
    assert states == {"SUCCEEDED": NUMBER + 20}
    assert house.effects() == (NUMBER + 20, NUMBER + 20)


def test_beats_may_be_killed_and_replaced(house: House, beats: list[CeleryProcess]) -> None:
    ids = house.create("ok", NUMBER)
    for beat in beats:
        beat.kill()
    ids += house.create("ok", NUMBER)
    beats.append(house.beat())
    states = house.over(ids)
    assert states == {"SUCCEEDED": 2 * NUMBER}
    assert house.effects() == (2 * NUMBER, 2 * NUMBER)


def test_a_worker_that_sleeps_beyond_its_lease_writes_nothing_when_it_wakes(
    house: House, worker: CeleryProcess
) -> None:
    """SIGSTOP to parent and children; rescue; another worker does the tasks; SIGCONT."""
    ids = house.create("slow", 2, {"seconds": 1.0})
    running = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
    until(lambda: house.sql(running) == 2)
    worker.signal_all(signal.SIGSTOP)
    house.worker()

    states = house.over(ids, 40)
    worker.signal_all(signal.SIGCONT)
    worker.says("the lease was lost")

    assert states == {"SUCCEEDED": 2}
    assert house.effects() == (2, 2)
    assert house.sql("SELECT min(note) FROM effect") > "attempt 1"
    assert house.sql("SELECT min(crashes) FROM task_completed") == 1


def test_a_worker_that_is_killed_whole_charges_nobody(house: House, worker: CeleryProcess) -> None:
    """The last of this module: the lease decides, and another worker goes on, each one alone."""
    house.beat()
    ids = house.create("slow", 8, {"seconds": 0.5})
    running = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND owner LIKE :owner"
    until(lambda: house.sql(running, owner=f"{worker.name}@%"))
    worker.signal_all(signal.SIGKILL)
    house.worker()
    began = time.monotonic()

    states = house.over(ids, 60)

    assert states == {"SUCCEEDED": 8}
    assert house.effects() == (8, 8)
    assert house.sql("SELECT max(crashes) FROM task_completed") == 1
    assert house.sql("SELECT sum(failures) FROM task_completed") == 0
    assert time.monotonic() - began < 60
