"""A real Flower over a real worker: what it shows of 500 tasks, its buttons, its costs."""

from __future__ import annotations

import base64
import json
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psutil
import pytest
from sqlalchemy import text

from tasks_app import NewTask, create_tasks, requeue_task
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.listening import Listener
from tests.clock import until

pytestmark = pytest.mark.timeout(300, method="thread")

HANDLERS = {"TASKS_APP_IMPORTS": "flower_handlers,house_handlers"}
SHOWN = {
    "SUCCEEDED": "SUCCESS",
    "FAILED": "FAILURE",
    "CANCELLED": "REVOKED",
    "SKIPPED": "REVOKED",
    "EXPIRED": "REVOKED",
}
MIX: tuple[tuple[str, dict[str, Any] | None, int], ...] = (
    ("fine", {"card": "canary-4711"}, 299),
    ("wobbly", {"card": "canary-4711"}, 50),
    ("broken", {"card": "canary-4711"}, 30),
    ("stops", {"how": "cancel"}, 30),
    ("stops", {"how": "skip"}, 30),
    ("stops", {"how": "fail"}, 30),
    ("mended", None, 30),
    ("killer", None, 1),
)
LOGIN = "operator:of-this-test"


class Flower:
    def __init__(self, house: House, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        house.start(
            "flower",
            f"--port={port}",
            "--address=127.0.0.1",
            f"--basic_auth={LOGIN}",
            "--max_tasks=100000",
        )
        until(self._healthy, 60, "Flower's start")

    def _healthy(self) -> bool:
        with suppress(URLError, ConnectionError):
            return self.ask("/healthcheck") == b"OK"
        return False

    def ask(self, path: str, method: str = "GET") -> bytes:
        """Send a request; return the body."""
        request = urllib.request.Request(self._root + path, method=method)
        request.add_header("Authorization", f"Basic {base64.b64encode(LOGIN.encode()).decode()}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()  # type: ignore[no-any-return]

    def tasks(self) -> dict[str, dict[str, Any]]:
        """All tasks that it knows, by id."""
        return json.loads(self.ask("/api/tasks?limit=100000"))  # type: ignore[no-any-return]

    def workers(self) -> dict[str, Any]:
        return json.loads(self.ask("/api/workers"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    worker = house.worker("-E", **HANDLERS)
    house.beat(TASKS_APP_SCAN_INTERVAL="0.2s")
    return worker


@pytest.fixture(scope="module")
def flower(house: House, worker: CeleryProcess, port: int) -> Flower:
    return Flower(house, port)


@pytest.fixture
def listener(house: House) -> Iterator[Listener]:
    listener = Listener(house.environment()["TASKS_APP_BROKER_URL"])
    yield listener
    listener.end()


def states(house: House) -> dict[str, tuple[str, str]]:
    """Name and state of every task, as Flower should show them."""
    with house.engine.connect() as connection:
        rows = connection.execute(text("SELECT id, name, state FROM task_all"))
        return {str(row.id): (row.name, SHOWN.get(row.state, row.state)) for row in rows}


def shown(flower: Flower) -> dict[str, tuple[str, str]]:
    """The same, as Flower shows it."""
    return {uuid: (task["name"], task["state"]) for uuid, task in flower.tasks().items()}


def test_each_of_500_mixed_tasks_is_shown_in_its_final_state(
    house: House, flower: Flower, worker: CeleryProcess
) -> None:
    new = [NewTask(name, payload) for name, payload, number in MIX for _ in range(number)]
    new = new[::7] + [task for n, task in enumerate(new) if n % 7]
    with house.engine.begin() as connection:
        ids = create_tasks(connection, new)
    house.over(ids, 120)
    with house.engine.begin() as connection:
        mended = connection.execute(text("SELECT id FROM task_error WHERE name = 'mended'"))
        requeued = mended.scalars().all()
        for task_id in requeued:
            requeue_task(connection, task_id)
    house.over(ids, 120)
    truth = states(house)

    until(lambda: shown(flower) == truth, 60, "the same picture in Flower")

    assert len(truth) == len(ids) == 500
    assert len(requeued) == 30
    print("\nshown by Flower:", Counter(shown(flower).values()))
    everything = json.dumps(flower.tasks())
    assert "canary" not in everything
    assert "tasks_app.execute" not in everything
    assert len(flower.workers()) == 1


def test_its_revoke_button_cancels_a_waiting_and_a_running_task(
    house: House, flower: Flower, worker: CeleryProcess
) -> None:
    (waiting,), (running,) = house.create("fine", payload={}, delay="1h"), house.create("patient")
    until(lambda: shown(flower).get(str(running)) == ("patient", "STARTED"), 20)
    flower.ask(f"/api/task/revoke/{waiting}", "POST")
    flower.ask(f"/api/task/revoke/{running}?terminate=true", "POST")
    assert house.over([waiting, running], 10) == {"CANCELLED": 2}
    until(lambda: shown(flower).get(str(waiting)) == ("fine", "REVOKED"), 10)
    until(lambda: shown(flower).get(str(running)) == ("patient", "REVOKED"), 10)


@pytest.mark.parametrize("pool", ["threads", "solo", "spawn"])
def test_every_pool_shows_its_tasks(
    house: House, listener: Listener, tmp_path: Path, pool: str
) -> None:
    """In threads and solo the parent is the child; spawned children inherit no open pipe."""
    arguments = ["-E", "-Q", pool]
    if pool == "spawn":
        (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    else:
        arguments += ["-P", pool]
    worker = house.worker(*arguments, ready=False, folder=tmp_path, **HANDLERS)
    known, number = "SELECT count(*) FROM task_worker WHERE :queue = ANY(queues)", pool == "spawn"
    until(lambda: house.sql(known, queue=pool) == 1 + number, 90, f"the start of {pool}")
    house.beat(TASKS_APP_SCAN_INTERVAL="0.2s")
    ids = house.create("fine", 50, {"card": "canary-4711"}, queue=pool)
    ids += house.create("broken", 50, {"card": "canary-4711"}, queue=pool)

    house.over(ids, 60)

    def pictures() -> Counter[str | None]:
        return Counter(listener.shows(task_id) for task_id in ids)

    until(lambda: pictures() == {"SUCCESS": 50, "FAILURE": 50}, 20, pool)
    worker.stop()


ROUNDS, NUMBER = 2, 1000


def cpu_s(process: CeleryProcess) -> float:
    """Seconds of CPU that the worker and its children took so far."""
    times = [p.cpu_times() for p in (psutil.Process(process.pid), *process.children())]
    return sum(each.user + each.system for each in times)


def measured(house: House, worker: CeleryProcess) -> tuple[list[int], tuple[float, float]]:
    """Tasks per second, from the first start to the last end of tasks that lay ready; us of CPU.

    With the ids of the tasks.
    """
    house.clean()
    house.sql("INSERT INTO task_queue_pause VALUES ('costs')")
    ids = house.create("plain", NUMBER, queue="costs")
    house.sql("DELETE FROM task_queue_pause")
    before = cpu_s(worker)
    assert house.over(ids, 120) == {"SUCCEEDED": NUMBER}
    used = cpu_s(worker) - before
    span = "SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM task_completed"
    return ids, (NUMBER / float(house.sql(span)), used / NUMBER * 1e6)


def done(house: House) -> list[int]:
    ids = house.create("plain", 1, queue="costs")
    house.over(ids, 10)
    return ids


def heard_of(listener: Listener, ids: list[int]) -> int:
    """How many of the tasks the listener has heard of."""
    known = {event.get("uuid") for event in tuple(listener.events)}
    return len(known.intersection(map(str, ids)))


def test_what_events_cost(house: House, listener: Listener) -> None:
    """One worker without -E, whose events are switched on and off by turns."""
    worker = house.worker("-Q", "costs", **HANDLERS)
    house.beat(TASKS_APP_SCAN_INTERVAL="0.2s")

    def nodes() -> list[str]:
        return [node for node in listener.workers() if node.startswith(f"{worker.name}@")]

    until(nodes, 20)
    figures: dict[str, list[tuple[float, float]]] = {"enable": [], "disable": []}
    measured(house, worker)
    for turn in range(2 * ROUNDS):
        how = ("enable", "disable")[turn % 2]
        getattr(listener.app.control, f"{how}_events")(destination=nodes(), reply=True)
        if how == "enable":  # a worker looks once a second whether anybody listens
            until(lambda: heard_of(listener, done(house)), 10, "the first event")
        ids, figure = measured(house, worker)
        figures[how].append(figure)
        if how == "enable":  # the listener may lag behind the worker
            until(lambda ids=ids: heard_of(listener, ids) >= NUMBER, 60, "events of the tasks")
        else:
            assert heard_of(listener, ids) < NUMBER  # it looks once a second

    (on, on_us), (off, off_us) = (
        map(statistics.median, zip(*figures[how], strict=True)) for how in ("enable", "disable")
    )
    print(f"\nwithout events {off:.0f} tasks/s and {off_us:.0f} us of CPU per task,")
    print(f"with events    {on:.0f} tasks/s and {on_us:.0f} us of CPU per task", figures)
    assert on > off / 4  # 2.5 on a quiet machine: two events cost twice what a task of nothing does


def test_no_task_notices_that_the_broker_dies(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    """Killed while events flow; tasks in hand go on, and events come back after it does."""
    ids = house.create("brief", 100)
    until(lambda: sum(1 for i in ids if listener.shows(i) == "SUCCESS") >= 4, 30)

    house.broker.kill()
    dead = time.monotonic()
    done = "SELECT count(*) FROM task_completed"
    before = house.sql(done)
    until(lambda: house.sql(done) >= before + 2, 20, "what was in hand")
    took = time.monotonic() - dead
    longest = house.sql("SELECT max(run_ms) FROM task_completed")
    house.broker.start()

    assert house.over(ids, 120) == {"SUCCEEDED": 100}
    assert house.sql("SELECT count(*) FROM task_attempt") == 0
    assert house.sql("SELECT max(failures) + max(crashes) FROM task_completed") == 0
    print(f"\nbroker dead: 2 tasks of 0.2 s more in {took:.1f} s, longest run {longest} ms")

    def heard() -> bool:
        (task_id,) = house.create("fine", payload={})
        house.over([task_id])
        with suppress(AssertionError):
            until(lambda: listener.shows(task_id) == "SUCCESS", 2)
        return listener.shows(task_id) == "SUCCESS"

    began = time.monotonic()
    until(heard, 60, "events after the broker's return")
    print(f"events came back {time.monotonic() - began:.1f} s after the last task")
