"""Every pool of Celery that we support, on every broker: prefork children are spawned here."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.life import STATES, begin_life, effects_of
from tests.waiting import until

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(120, method="thread"),
    pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module"),
]

PATIENT = {"TASKS_APP_LEASE": "15s"}
"""New children take seconds; nobody shall be rescued meanwhile."""
THREADS = 8
SERVED = """
    SELECT string_agg(queues[1] || ' x ' || threads, ', ' ORDER BY queues) FROM task_worker
"""
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND queue = :queue"
RESCUED = "SELECT count(*) FROM task_all WHERE crashes > 0"


def start(house: House, folder: Path) -> dict[str, CeleryProcess]:
    """Start a worker of each pool, each with a queue of its own."""
    folder.mkdir()
    (folder / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    workers = {
        "solo": house.worker("-P", "solo", "-Q", "solo", ready=False),
        "threads": house.worker(
            "-P", "threads", "-Q", "threads", children=THREADS, ready=False, **PATIENT
        ),
        "spawn": house.worker("-Q", "spawn", folder=folder, ready=False, **PATIENT),
    }
    for name, worker in workers.items():
        house.ready(worker, children=2 if name == "spawn" else 1)
    return workers


@pytest.fixture(scope="module")
def workers(house: House, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CeleryProcess]:
    """One of each pool, beside a beat."""
    house.beat(**PATIENT)
    return start(house, tmp_path_factory.mktemp("pools") / "spawn")


def test_every_pool_does_what_a_life_asks_for(
    house: House, workers: dict[str, CeleryProcess]
) -> None:
    assert house.sql(SERVED) == "solo x 1, spawn x 1, spawn x 1, threads x 8"
    lives = {queue: begin_life(house, queue) for queue in workers}
    leave = [i for queue in workers for i in house.create("leave", 2, queue=queue)]
    poison = house.create("poison", queue="spawn")

    assert house.over([*leave, *poison], 60) == {"FAILED": 7}
    for ids in lives.values():
        assert house.over(ids) == STATES
        assert effects_of(house, ids) == (13, 13)
    assert [a.kind for a in house.attempts(poison[0])] == ["process died"] * 3


def test_every_pool_ends_in_good_order(house: House, workers: dict[str, CeleryProcess]) -> None:
    """What runs ends, what waits goes back, nobody is charged."""
    slow = {q: house.create("slow", payload={"seconds": 2.0}, queue=q) for q in workers}
    for queue in workers:
        until(lambda queue=queue: house.sql(RUNNING, queue=queue))
        house.create("brief", 20, queue=queue)

    for worker in workers.values():
        worker.ask()
    status = {queue: worker.wait() for queue, worker in workers.items()}

    assert status == dict.fromkeys(workers, 0)
    for queue in workers:
        assert house.task(slow[queue][0]).state == "SUCCEEDED"
        assert house.sql(RUNNING, queue=queue) == 0
    assert house.sql("SELECT count(*) FROM task_all WHERE failures + crashes > 0") == 0
    assert house.sql("SELECT count(*) FROM task_worker") == 0


def test_every_pool_is_killed_and_another_worker_goes_on(house: House, tmp_path: Path) -> None:
    """SIGKILL to parent and children charges nobody; neither lease nor distance is waited for."""
    workers = start(house, tmp_path / "killed")
    ids = [i for q in workers for i in house.create("slow", 2, {"seconds": 2.0}, queue=q)]
    for queue in workers:
        until(lambda queue=queue: house.sql(RUNNING, queue=queue))
    for worker in workers.values():
        worker.signal_all(signal.SIGKILL)
        worker.wait()
    on_board = [i for i in ids if house.task(i).state == "RUNNING"]
    house.sql("UPDATE task_pending SET lease_until = now() WHERE state = 'RUNNING'")
    start(house, tmp_path / "next")
    until(lambda: house.sql(RESCUED) == len(on_board), 20, "the rescue")
    house.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")

    assert house.over(ids, 60) == {"SUCCEEDED": len(ids)}
    assert effects_of(house, ids) == (len(ids), len(ids))
    assert {house.task(i).failures for i in ids} == {0}
    assert {house.task(i).crashes for i in on_board} == {1}
