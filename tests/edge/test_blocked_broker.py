"""RabbitMQ without memory takes no message: what needs none goes on, and everybody is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from dev.torture.rabbit_node import Node, rabbitmq_program
from tasks_app import create_schedule
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(180, method="thread"),
    pytest.mark.skipif(
        rabbitmq_program("rabbitmq-server") is None,
        reason="RabbitMQ is not tested: it needs rabbitmq-server installed",
    ),
    pytest.mark.parametrize("house", ["node"], indirect=True, scope="module"),
]

FIRES = 5
LONGEST_S = 4.0
SCAN_AGE = (
    "SELECT extract(epoch FROM clock_timestamp() - done_at)::float FROM task_lease"
    " WHERE name = 'scan'"
)
FIRED = "SELECT count(*) FROM task_all WHERE name = 'when'"


@contextmanager
def memory_alarm(node: Node) -> Iterator[None]:
    """Let it believe that it has no memory left."""
    node.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        node.control("set_vm_memory_high_watermark", "0.4")


def doctor(house: House) -> str:
    """What the check-up says of the broker."""
    command = [Path(sys.executable).with_name("tasks-app"), "doctor"]
    run = subprocess.run(
        command, env=house.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    return "\n".join(line for line in run.stdout.splitlines() if "broker" in line)


@pytest.fixture(params=[True, False], ids=["beat", "standbys"])
def lost(house: House, request: pytest.FixtureRequest) -> Iterator[tuple[int, CeleryProcess]]:
    """A task in the hands of a worker; another one lives, and a schedule is due each second."""
    doomed, worker = house.worker("-Q", "doomed", children=1), house.worker(children=1)
    processes = [doomed, worker, *([house.beat()] if request.param else [])]
    task_id = house.create("slow", payload={"seconds": 60}, queue="doomed", max_attempts=3)[0]
    until(lambda: house.task(task_id).state == "RUNNING", 30)
    with Session(house.engine) as session, session.begin():
        create_schedule(session, "each_second", "when", every="1s")
    yield task_id, doomed
    for process in processes:
        process.end()
    house.sql("DELETE FROM task_worker")
    house.sql("DELETE FROM task_schedule")


def test_a_memory_alarm_stops_neither_scan_nor_schedules_nor_rescue(
    house: House, node: Node, lost: tuple[int, CeleryProcess]
) -> None:
    """On a node of its own: the alarm stops whoever publishes, tests of other jobs as well."""
    task_id, doomed = lost
    ages: list[float] = []
    with memory_alarm(node):
        doomed.signal_all(signal.SIGKILL)
        ids = house.create("ok", 20)
        until(lambda: house.task(task_id).crashes == 1, 30, "the rescue")  # it may have led
        fired = house.sql(FIRED)

        def goes_on() -> bool:
            ages.append(house.sql(SCAN_AGE))
            return house.sql(FIRED) >= fired + FIRES

        until(goes_on, 30, "schedules")
        said = doctor(house)
    alarm_over = time.monotonic()

    assert house.over(ids) == {"SUCCEEDED": 20}

    assert time.monotonic() - alarm_over < 10
    assert max(ages) < LONGEST_S, ages
    assert "refuses messages (connection.blocked" in said, said
    assert "nothing could be published since 20" in said, said
    until(lambda: "since 20" not in doctor(house))
