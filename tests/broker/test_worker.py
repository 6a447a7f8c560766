"""Celery's worker: start, probes, its pool and its consumer."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from billiard.pool import CLOSE, RUN, ApplyResult
from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.worker import state
from kombu.asynchronous import Hub

from dev.torture.fault_proxy import FaultProxy
from tasks_app.broker.worker import ChildWatch, ConsumerWatch, SilentConsumerError
from tasks_app.broker.worker_pool import REAP_TIMES, PromptPool
from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.health_files import RUN_DIR_VARIABLE, judge
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard
from tasks_app.runtime.worker.supervisor import STALE_S, starving
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until

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


@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.timeout(120, method="thread")
def test_an_orderly_end_takes_the_file_along(
    house: House, worker: CeleryProcess, healthy: Verdict
) -> None:
    assert worker.stop() == 0
    assert judge("worker") == (False, f"worker: no sign of life in {house.run_folder}")


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scoreboard:
    monkeypatch.setenv(SLOTS_VARIABLE, str(tmp_path / "slots"))
    return Scoreboard(tmp_path / "slots")


@pytest.fixture
def look(slots: Scoreboard):
    """One round of the timer; True: it raised what restarts the consumer."""
    timer = SimpleNamespace(call_repeatedly=lambda *_: None)
    consumer = SimpleNamespace(connection=object())
    worker = SimpleNamespace(hub=object(), timer=timer, consumer=consumer)
    step = ConsumerWatch(worker)
    step.start(worker)

    def once() -> bool:
        try:
            step.check_consumer(worker)
        except SilentConsumerError:
            return True
        return False

    once.step, once.consumer = step, consumer
    return once


@pytest.mark.parametrize("url", ["redis://", "amqp://"])
def test_celery_takes_it_for_a_lost_connection(url: str) -> None:
    with Celery(broker=url) as app:
        assert issubclass(SilentConsumerError, app.connection_for_read().connection_errors)


def test_only_when_all_children_starve(slots: Scoreboard, look) -> None:
    one, other = slots.take("one"), slots.take("other")
    assert not look()

    one.hunger(True)
    assert not look()
    other.hunger(True)
    other.message(in_hand=True)
    assert not look()
    other.message(in_hand=False)
    other.start(Run(1, 1), 60)
    assert not look()
    other.finish(Run(1, 1))

    assert look()


def test_never_while_it_stops_or_has_no_connection(slots: Scoreboard, look) -> None:
    slots.take("one").hunger(True)
    look.consumer.connection = None
    assert not look()
    look.consumer.connection = object()
    slots.drain()
    assert not look()


def test_what_a_child_said_long_ago_says_nothing(slots: Scoreboard, look) -> None:
    """Its standby is gone, or waits for a database that is away."""
    slots.take("one").hunger(True)
    assert look()
    assert not starving(slots, now=time.monotonic() + STALE_S)


def test_each_restart_in_vain_doubles_the_pause(slots: Scoreboard, look) -> None:
    child = slots.take("one")
    child.hunger(True)
    clock = SimpleNamespace(now=1000.0)
    look.step.clock = lambda: clock.now

    restarts = []
    for _ in range(400):
        if look():
            restarts.append(clock.now)
        clock.now += 1
        child.hunger(True)

    assert [b - a for a, b in itertools.pairwise(restarts)] == [30, 60, 120]
    child.hunger(False)
    clock.now += 1000
    assert not look()
    child.hunger(True)
    assert look()
    clock.now += 31
    assert look()


MINGLES = "mingle: "
"""Celery asks other workers for a second which of its tasks were revoked."""


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(("queues", "asks"), [((), False), (("-Q", "default,elsewhere"), True)])
def test_it_asks_neighbours_only_where_it_serves_queues_of_others(
    house: House, queues: tuple[str, ...], asks: bool
) -> None:
    worker = house.worker(*queues, children=1)
    worker.says(" ready.")
    assert (MINGLES in worker.log()) is asks


CHILDREN, LEAST, TASKS = 4, 40, 400
HELD = "SELECT count(*) FROM task_breaker_held"
GOOD = "SELECT sum(good) FROM task_breaker_count"


@pytest.mark.timeout(120, method="thread")
def test_few_more_calls_go_out_than_its_threshold(house: House, tmp_path: Path) -> None:
    """While 40 are missing, two of each child may wait for their second; and one is under way."""
    log = tmp_path / "calls"
    log.touch()
    more = {"TASKS_APP_IMPORTS": "outage_handlers", "CALL_LOG": str(log)}
    house.worker(children=CHILDREN, **more)
    house.beat(**more)
    house.create("pay", TASKS, {"up": True})  # so they know that it is fast
    until(lambda: house.sql(GOOD) == TASKS, 60, "reports")
    house.sql("DELETE FROM task_breaker_count")

    house.create("pay", TASKS)

    def gone_out() -> int:
        return len(log.read_text().splitlines())

    until(lambda: gone_out() + house.sql(HELD) == TASKS, 60, "an end")
    assert LEAST <= gone_out() <= LEAST + CHILDREN * 3
    assert house.sql("SELECT state FROM task_breaker") == "open"
    house.sql("DELETE FROM task_breaker_held; DELETE FROM task_breaker")


IDLE, BUSY, WRITTEN_TO = 3, 4, 5


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> PromptPool:
    """One that has three children; what is put into it only waits."""

    def made(self: Any, _hub: Any) -> None:
        self._quick_put = self.outbound_buffer.append

    monkeypatch.setattr(AsynPool, "_create_write_handlers", made)
    pool = PromptPool.__new__(PromptPool)
    pool.outbound_buffer = []
    pool._all_inqueues = {IDLE, BUSY, WRITTEN_TO}
    pool._busy_workers, pool._active_writes = {BUSY}, {WRITTEN_TO}
    return pool


@pytest.fixture
def write(pool: PromptPool) -> Mock:
    hub = Mock()
    pool._create_write_handlers(hub)
    return hub.consolidate_callback


def test_an_idle_child_gets_it_at_once(pool: PromptPool, write: Mock) -> None:
    write.side_effect = lambda _idle: pool.outbound_buffer.pop()
    pool._quick_put("job")
    write.assert_called_once_with([IDLE])
    assert pool.outbound_buffer == []


def test_it_waits_while_none_is_idle(pool: PromptPool, write: Mock) -> None:
    pool._busy_workers.add(IDLE)
    pool._quick_put("job")
    write.assert_not_called()
    assert pool.outbound_buffer == ["job"]


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
@pytest.mark.parametrize("status", [0, 1, True])
def test_it_waits_when_the_worker_is_about_to_stop(
    pool: PromptPool, write: Mock, monkeypatch: pytest.MonkeyPatch, flag: str, status: Any
) -> None:
    monkeypatch.setattr(state, flag, status)
    pool._quick_put("job")
    write.assert_not_called()


@pytest.fixture
def jobs(pool: PromptPool) -> dict[str, ApplyResult]:
    """One that waits here, one that was written to a child, and one that a child accepted."""
    pool._cache, pool.synack = {}, False
    pool.outbound_buffer, pool._active_writers = deque(), set()
    pool.maintain_pool = lambda: None
    jobs = {name: ApplyResult(pool._cache, None) for name in ("waits", "written", "accepted")}
    jobs["written"]._write_to = jobs["accepted"]._write_to = Mock(inqW_fd=BUSY)
    jobs["accepted"]._ack(0, 0.0, 4711, None)
    return jobs


@pytest.mark.parametrize(("state_of_pool", "keeps"), [(CLOSE, True), (RUN, False)])
def test_a_pool_that_ends_keeps_what_it_wrote_and_after_a_lost_connection_forgets_it(
    pool: PromptPool, jobs: dict[str, ApplyResult], state_of_pool: int, keeps: bool
) -> None:
    """What was only written the broker sends again."""
    pool._state = state_of_pool
    pool.flush()
    assert (jobs["written"] in pool._cache.values()) is keeps
    assert not keeps or jobs["accepted"] in pool._cache.values()


@pytest.fixture
def reaped(pool: PromptPool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often was looked for the dead, in a pool that takes them out as Celery's does."""
    looks: list[int] = []

    def look() -> None:
        looks.append(len(pool._pool))
        pool._pool = [process for process in pool._pool if process.poll() is None]

    monkeypatch.setattr(AsynPool, "_event_process_exit", lambda *_: look())
    pool.maintain_pool = look
    return looks


@pytest.mark.test_all
def test_a_child_whose_pipe_broke_before_it_ended_is_replaced(
    pool: PromptPool, reaped: list[int]
) -> None:
    ends, says = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=ends) as child:
        pool._pool, hub = [child], Hub()
        pool._event_process_exit(hub, child)
        hub.fire_timers()
        assert pool._pool == [child]
        os.write(says, b"\n")
        until(lambda: hub.fire_timers() and not pool._pool)
    hub.close()
    os.close(ends)
    os.close(says)


def test_a_child_that_lives_on_without_its_pipe_is_left_to_celery(
    pool: PromptPool, reaped: list[int]
) -> None:
    child, hub = Mock(), Mock()
    child.poll.return_value = None
    pool._pool = [child]
    hub.call_later = lambda _after, look, *arguments: look(*arguments)
    pool._event_process_exit(hub, child)
    assert len(reaped) == 1 + REAP_TIMES
