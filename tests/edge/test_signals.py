"""The table of docs/operations/stopping.md, line by line: each on a real worker with a real task.

The task never ends by itself and catches whatever is raised.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy.engine import make_url

from dev.torture.fault_proxy import FaultProxy
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until

pytestmark = pytest.mark.timeout(180, method="thread")

CALM = {"TASKS_APP_LEASE": "30s", "TASKS_APP_IMPORTS": "house_handlers,stop_handlers"}
HANDLERS = str(Path(__file__).parents[1] / "broker" / "house")
QUEUE = "stop"
TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
DRAINS = "SELECT count(*) FROM task_worker WHERE queues = '{}'"
SOON_S = 12.0
"""Generous: a worker on an idle machine takes about two seconds."""


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House) -> None:
    house.beat(**CALM)


Start = Callable[..., CeleryProcess]


@pytest.fixture
def start(house: House, tmp_path: Path) -> Iterator[Start]:
    """Start a worker; what is left of it ends with the test, and its locks."""
    started: list[CeleryProcess] = []

    def begin(*arguments: str, config: str = "", children: int = 2, **more: str) -> CeleryProcess:
        (tmp_path / "celeryconfig.py").write_text(config)
        more = {**CALM, "PYTHONPATH": os.pathsep.join([str(tmp_path), HANDLERS]), **more}
        # a queue of its own: handlers of others have limits, which not every pool can enforce
        arguments = ("-Q", f"{QUEUE},tasks_app", *arguments)
        started.append(house.worker(*arguments, children=children, ready=False, **more))
        house.ready(started[0], 1 if "-P" in arguments else children)
        return started[0]

    yield begin
    for worker in started:
        worker.end()
    house.sql("DELETE FROM task_worker")


def hold(house: House, worker: CeleryProcess, name: str = "stop.free") -> int:
    (task_id,) = house.create(name, payload={"on": worker.name}, queue=QUEUE)
    until(lambda: house.task(task_id).state == "RUNNING")
    return task_id


def send(house: House, worker: CeleryProcess, *signals: signal.Signals, group: bool) -> None:
    """Send the signals, each when the one before was understood."""
    for nth, number in enumerate(signals):
        if nth:
            until(lambda: house.sql(DRAINS))
        if group:
            worker.signal_all(number)
        else:
            os.kill(worker.pid, number)


def status_of(worker: CeleryProcess) -> int:
    try:
        return worker.wait(60)
    except subprocess.TimeoutExpired:
        pytest.fail(worker.log()[-5000:])


def row(house: House, task_id: int) -> tuple[str, int, int, int]:
    task = house.task(task_id)
    return (str(task.state), task.attempt, task.failures, task.crashes)


SOFT = "worker_soft_shutdown_timeout = {}\n"
SPAWN = "worker_pool_start_method = 'spawn'\n"
REMAP = {"REMAP_SIGTERM": "SIGQUIT"}
GRACE = {"TASKS_APP_STOP_GRACE": "1s"}
GROUPED = ("quit", "interrupted twice", "term with a grace of ours")
"""To children as well, which other pools do not have."""
LET_GO = [
    # what, signals, arguments, celeryconfig, environment, exit status (None: chance decides)
    ("quit", [QUIT], [], "", {}, 0),
    ("quit after a grace", [QUIT], [], SOFT.format(1), {}, 0),
    ("quit, spawned children", [QUIT], [], SPAWN, {}, 0),
    ("quit twice, a long grace", [QUIT, QUIT], [], SOFT.format(600), {}, 0),
    ("term, then quit", [TERM, QUIT], [], "", {}, 0),
    ("interrupted twice", [INT, INT], [], "", {}, None),
    ("term is remapped", [TERM], [], SOFT.format(1), REMAP, 0),
    ("term with a grace of ours", [TERM], [], "", GRACE, 0),
    ("quit, threads", [QUIT], ["-P", "threads"], SOFT.format(1), {}, 0),
    ("term with a grace, threads", [TERM], ["-P", "threads"], "", GRACE, 0),
    ("quit, solo", [QUIT], ["-P", "solo"], SOFT.format(600), {}, 0),
    ("term with a grace, solo", [TERM], ["-P", "solo"], "", GRACE, 0),
]  # fmt: skip
TO_THE_GROUP = [line for line in LET_GO if line[0] in GROUPED]


@pytest.mark.parametrize(
    ("signals", "arguments", "config", "more", "status", "group"),
    [*((*line[1:], False) for line in LET_GO), *((*line[1:], True) for line in TO_THE_GROUP)],
    ids=[*(line[0] for line in LET_GO), *(f"{line[0]}, to the group" for line in TO_THE_GROUP)],
)
def test_the_task_is_let_go(
    house: House, start: Start, signals, arguments, config, more, status, *, group: bool
) -> None:
    worker = start(*arguments, config=config, **more)
    task_id = hold(house, worker)
    began = time.monotonic()
    send(house, worker, *signals, group=group)
    assert status_of(worker) in ((0, 1) if status is None else (status,))
    assert time.monotonic() - began < SOON_S
    assert row(house, task_id) == ("PENDING", 1, 0, 0)


@pytest.mark.parametrize(
    ("signals", "pool", "status", "group"),
    [([TERM], "prefork", 0, False), ([TERM], "prefork", 0, True),
     ([TERM, TERM], "prefork", 0, False), ([INT], "prefork", 1, False),
     ([INT], "prefork", 1, True), ([TERM], "threads", 0, False), ([TERM], "solo", 0, False)],
    ids=["term", "term to the group", "term twice", "interrupted", "interrupted, the group",
         "threads", "solo"],
)  # fmt: skip
def test_the_task_may_end(
    house: House, start: Start, signals, pool: str, status: int, *, group: bool
) -> None:
    arguments = [] if pool == "prefork" else ["-P", pool]
    worker = start(*arguments)
    (task_id,) = house.create("slow", payload={"seconds": 3.0}, queue=QUEUE)
    until(lambda: house.sql(RUNNING))
    send(house, worker, *signals, group=group)
    assert status_of(worker) == status
    assert row(house, task_id) == ("SUCCEEDED", 1, 0, 0)


def test_a_control_command_stops_a_worker_as_sigterm_does(house: House, start: Start) -> None:
    worker = start("-l", "DEBUG", children=1)  # where Celery's log has our messages
    slow = house.create("slow", payload={"seconds": 6.0}, queue=QUEUE, priority=0)
    until(lambda: house.sql(RUNNING))
    rest = house.create("ok", 30, queue=QUEUE)
    until(lambda: worker.log().count("Task tasks_app.execute[") == 2)  # one is reserved

    with Celery(broker=house.environment()["TASKS_APP_BROKER_URL"]) as app:
        app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
        app.control.shutdown()

    until(lambda: house.sql("SELECT count(*) FROM task_worker WHERE queues = '{}'") == 1, 5)
    assert house.sql(RUNNING) == 1
    assert status_of(worker) == 0
    assert house.task(slow[0]).state == "SUCCEEDED"
    assert {house.task(i).attempt for i in rest} == {0}


def test_a_child_that_is_terminated_alone_lets_go_and_is_replaced(
    house: House, start: Start
) -> None:
    worker = start(children=1)
    task_id = hold(house, worker)
    (child,) = [p for p in worker.children() if p.is_running()]
    child.send_signal(TERM)
    until(lambda: row(house, task_id) == ("RUNNING", 2, 0, 1), 20)  # who terminates one child?
    assert worker.alive
    assert child.pid not in {p.pid for p in worker.children()}


def test_whoever_never_lets_other_threads_run_is_killed_and_charges_nobody(
    house: House, start: Start
) -> None:
    """An idle sibling gives its task back, after the kill."""
    worker = start()
    task_id = hold(house, worker, "stop.selfish")
    os.kill(worker.pid, QUIT)
    assert status_of(worker) == 0
    assert "it does not let go" in worker.log()
    assert row(house, task_id) == ("PENDING", 1, 0, 0)


def test_a_database_that_is_away_holds_nobody_up(house: House, start: Start) -> None:
    url = make_url(house.url)
    with FaultProxy((url.host or "", url.port or 0)) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        worker = start(TASKS_APP_DATABASE_URL=proxied)
        (task_id,) = house.create("plain.slow", payload={"seconds": 2.0}, queue=QUEUE)
        until(lambda: house.sql(RUNNING))
        proxy.refusing = True
        proxy.cut()
        os.kill(worker.pid, TERM)
        assert status_of(worker) == 0
    assert row(house, task_id) == ("RUNNING", 1, 0, 0)


def work(house: House, **more: str) -> subprocess.Popen:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {**house.environment(**CALM), "PYTHONPATH": HANDLERS, "TASKS_APP_NODE": "work@", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", "-c", "2"],
        env={**kept, **ours},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("signals", "more", "group"),
    [([QUIT], {}, False), ([QUIT], {}, True), ([TERM, TERM], {}, False),
     ([INT, INT], {}, True), ([TERM], GRACE, False)],
    ids=["quit", "quit to the group", "term twice", "interrupted twice", "term with a grace"],
)  # fmt: skip
def test_work_lets_go_of_its_tasks(house: House, signals, more, *, group: bool) -> None:
    ids = [house.create("stop.free", payload={"on": "work"})[0] for _ in range(2)]
    parent = work(house, **more)
    until(lambda: house.sql(RUNNING) == 2, 20)
    for nth, number in enumerate(signals):
        if nth:
            until(lambda: house.sql(DRAINS))
        (os.killpg if group else os.kill)(parent.pid, number)
    assert parent.wait(SOON_S) == 0
    assert [row(house, i) for i in ids] == [("PENDING", 1, 0, 0)] * 2
