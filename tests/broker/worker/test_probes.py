"""What probes say of real workers and beats."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dev.torture.fault_proxy import FaultProxy
from tasks_app.broker.worker import ChildWatch
from tasks_app.runtime.health_files import RUN_DIR_VARIABLE, judge
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

Verdict = Callable[[str], bool]


@pytest.fixture(scope="module")
def road(house: House) -> Iterator[FaultProxy]:
    """The way to the broker, which can be closed."""
    with FaultProxy(("127.0.0.1", house.broker.port)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(house: House, road: FaultProxy) -> CeleryProcess:
    url = house.environment()["TASKS_APP_BROKER_URL"]
    broker = url.replace(f":{house.broker.port}", f":{road.port}")
    return house.worker(TASKS_APP_HEALTHY_FOR="3s", TASKS_APP_BROKER_URL=broker)


@pytest.fixture(scope="module")
def beat(house: House, worker: CeleryProcess) -> CeleryProcess:
    return house.beat()


@pytest.fixture
def healthy(house: House, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(house.run_folder))
    return lambda role: judge(role)[0]


def test_a_worker_that_is_stopped_is_not_healthy_until_it_goes_on(
    house: House, worker: CeleryProcess, healthy: Verdict
) -> None:
    until(lambda: healthy("worker") and healthy("db"))

    os.kill(worker.pid, signal.SIGSTOP)
    try:
        until(lambda: not healthy("worker"), 10)
        word = judge("worker")[1]
    finally:
        os.kill(worker.pid, signal.SIGCONT)

    until(lambda: healthy("worker"))
    assert "no sign of life for" in word
    assert f"{worker.name}@" in word


def test_a_beat_whose_scan_fails_is_not_healthy_until_it_works(
    house: House, beat: CeleryProcess, healthy: Verdict
) -> None:
    until(lambda: healthy("beat"), 30)

    house.sql("ALTER TABLE task_queue_pause RENAME TO task_queue_pause_away")
    try:
        until(lambda: not healthy("beat"), 30)
        word = judge("beat")[1]
    finally:
        house.sql("ALTER TABLE task_queue_pause_away RENAME TO task_queue_pause")

    until(lambda: healthy("beat"), 30)
    assert "fails (ProgrammingError)" in word


def test_a_worker_without_its_broker_is_healthy_and_goes_on_watching(
    house: House, worker: CeleryProcess, beat: CeleryProcess, road: FaultProxy, healthy: Verdict
) -> None:
    """Celery waits for a broker in a loop in which no timer fires."""
    (task_id,) = house.create("hang")
    until(lambda: house.task(task_id).state == "RUNNING", 20)
    road.refusing = True
    road.cut()
    worker.says("does not answer")
    seen = [healthy("beat")]
    beat.stop()

    states = house.over([task_id], 30)
    seen += [healthy("worker"), healthy("db"), not healthy("beat")]
    until(lambda: "; the broker does not answer" in judge("worker")[1])
    seen.append(healthy("worker"))
    said = worker.log().count("; it is tried again. ")
    road.refusing = False
    worker.says("The broker answers again. It was away for ")
    until(lambda: "the broker" not in judge("worker")[1])

    assert states == {"FAILED": 1}
    assert house.attempts(task_id)[0].kind == "process died"
    assert seen == [True] * 5
    assert said <= 2  # one a minute


def test_a_worker_whose_children_starve_for_long_is_not_healthy(
    tmp_path: Path, healthy: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, str(tmp_path / "slots"))
    parent = SimpleNamespace(
        hostname="lone", consumer=SimpleNamespace(connection=None), timer=Mock()
    )
    slot = Scoreboard(tmp_path / "slots").take("child")
    watch = ChildWatch(parent)
    clock = SimpleNamespace(now=1000.0)
    watch.clock = lambda: clock.now
    watch.start(parent)

    def said_after(seconds: float) -> str:
        clock.now += seconds
        slot.hunger(True)
        watch.check_children()
        return judge("worker", "lone")[1]

    away = said_after(2 * ChildWatch.HUNGRY_S)
    parent.consumer.connection = object()
    patient = said_after(ChildWatch.HUNGRY_S)
    starved = said_after(1)
    slot.hunger(False)
    watch.check_children()

    assert "alive" in away
    assert "alive" in patient
    assert "no child got one for 121 s" in starved
    assert "alive" in judge("worker", "lone")[1]
    parent.liveness.end()


def test_an_orderly_end_takes_the_file_along(
    house: House, worker: CeleryProcess, healthy: Verdict
) -> None:
    assert worker.stop() == 0

    assert judge("worker") == (False, f"worker: no sign of life in {house.run_folder}")
