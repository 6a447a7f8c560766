"""What Celery's tools see and do: each task under its own id and name, and remote control."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tasks_app import requeue_task
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.house.flower_handlers import SECRET
from tests.broker.listening import Listener
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

FLOWER = {"TASKS_APP_IMPORTS": "flower_handlers", "TASKS_APP_EVENTS_SHOW": "points,shop"}
SECRETS = {"card": SECRET, "shop": "north"}


@pytest.fixture(scope="module")
def listener(house: House) -> Iterator[Listener]:
    listener = Listener(house.environment()["TASKS_APP_BROKER_URL"])
    yield listener
    listener.end()


@pytest.fixture(scope="module", autouse=True)
def worker(house: House, listener: Listener) -> CeleryProcess:
    """A worker without -E, which is asked for events as Flower asks, and a beat."""
    worker = house.worker(**FLOWER)
    house.beat(TASKS_APP_SCAN_INTERVAL="0.2s")
    # Its first event comes before it hears commands: what is sent in between reaches nobody.
    until(lambda: switched(listener, "enable"), 30, "the worker's answer to a command")
    until(lambda: is_heard_of(house, listener), 20, "the first task's event")
    return worker


def is_heard_of(house: House, listener: Listener) -> bool:
    """Whether the children know by now that somebody listens: they learn it within a second."""
    (task_id,) = house.create("fine", payload=SECRETS)
    house.over([task_id], 20)
    try:
        until(lambda: listener.shows(task_id) == "SUCCESS", 1)
    except AssertionError:
        return False
    return True


def switch(listener: Listener, how: str) -> None:
    """Let the worker send events of tasks, or not."""
    assert switched(listener, how)


def switched(listener: Listener, how: str) -> bool:
    """Ask once, and tell whether it answered."""
    command = getattr(listener.app.control, f"{how}_events")
    return bool(command(destination=list(listener.workers()), reply=True, timeout=5))


def shown(listener: Listener, task_id: int, state: str) -> Any:
    """Wait until Flower would show the task in this state; return what it shows."""
    until(lambda: listener.shows(task_id) == state, 20, f"{state} of {task_id}")
    return listener.task(task_id)


def test_a_success_is_shown_with_its_course_and_without_its_data(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("fine", payload=SECRETS, biz_key="order:7")
    task = shown(listener, task_id, "SUCCESS")
    assert listener.types(task_id) == ["received", "started", "succeeded"]
    assert (task.name, task.worker.hostname.partition("@")[0]) == ("fine", worker.name)
    assert task.kwargs == "{'biz_key': 'order:7', 'shop': 'north', 'payload': '40 bytes'}"
    assert task.result == "{'points': 10, 'result': '35 bytes'}"
    assert task.runtime >= 0
    assert task.received <= task.started <= task.succeeded
    assert listener.workers() == {task.worker.hostname}


def test_a_retry_is_red_no_longer_when_it_succeeds(house: House, listener: Listener) -> None:
    (task_id,) = house.create("wobbly", payload=SECRETS)
    task = shown(listener, task_id, "SUCCESS")
    first, again = ["received", "started", "retried"], ["retried", "received", "started"]
    assert listener.types(task_id) == [*first, *again, "succeeded"]
    assert task.retries == 1
    assert task.exception == "ValueError: no credit for ***"
    assert "raise ValueError" in task.traceback


@pytest.mark.parametrize(
    ("name", "payload", "state", "text"),
    [
        ("broken", SECRETS, "FAILURE", "ValueError: card *** refused"),
        ("stops", {"how": "fail"}, "FAILURE", "Fail: as told"),
        ("stops", {"how": "cancel"}, "REVOKED", "cancelled: Cancel: as told"),
        ("stops", {"how": "skip"}, "REVOKED", "skipped: Skip: as told"),
    ],
)
def test_each_other_end_has_its_state_and_cause(
    house: House, listener: Listener, name: str, payload: dict[str, Any], state: str, text: str
) -> None:

    (task_id,) = house.create(name, payload=payload)
    task = shown(listener, task_id, state)
    assert (task.exception or task.result) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enabled": False}, "skipped: disabled: The task was disabled when it became due."),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expired: expired: "),
    ],
)
def test_what_beat_itself_ends_is_shown_under_a_worker_that_is_there(
    house: House, listener: Listener, options: dict[str, Any], text: str
) -> None:

    (task_id,) = house.create("fine", **options)
    task = shown(listener, task_id, "REVOKED")
    assert (task.name, task.result[: len(text)]) == ("fine", text)
    assert len(listener.workers()) == 1


def test_a_requeued_task_leaves_the_red_state(house: House, listener: Listener) -> None:
    (task_id,) = house.create("mended")
    shown(listener, task_id, "FAILURE")
    with house.engine.begin() as connection:
        requeue_task(connection, task_id)
    shown(listener, task_id, "SUCCESS")
    assert listener.types(task_id)[3:] == ["retried", "received", "started", "succeeded"]


def test_a_killed_child_fails_its_task_and_not_the_message(
    house: House, listener: Listener
) -> None:
    """What the child told before it was killed is not lost: its neighbours are shown."""
    before, (task_id,) = house.create("fine", 20, {}), house.create("killer")
    task = shown(listener, task_id, "FAILURE")
    assert task.exception.startswith("process died")
    for neighbour in before:
        shown(listener, neighbour, "SUCCESS")
    uuids = {e["uuid"] for e in listener.events if e["type"].startswith("task-")}
    assert all(uuid.isdigit() for uuid in uuids)


def test_no_value_of_a_task_is_in_any_event(house: House, listener: Listener) -> None:
    (row,) = house.create("row", payload=SECRETS)
    task = shown(listener, row, "FAILURE")
    assert "duplicate key value violates unique constraint" in task.exception
    assert SECRET not in str(listener.events)


def test_events_may_be_switched_off_and_on_while_it_runs(house: House, listener: Listener) -> None:
    switch(listener, "disable")
    until(lambda: not told(house, listener), 10, "silence")
    switch(listener, "enable")
    until(lambda: told(house, listener), 10, "events")


def told(house: House, listener: Listener) -> bool:
    """Run a task; tell whether anything was heard of it."""
    (task_id,) = house.create("fine")
    house.over([task_id])
    with suppress(AssertionError):
        until(lambda: listener.of(task_id), 1)
    return bool(listener.of(task_id))


def control(listener: Listener, command: str, **arguments: Any) -> dict[str, Any]:
    """Send a command; return the worker's answer."""
    (answers,) = listener.app.control.broadcast(
        command, arguments=arguments, destination=list(listener.workers()), reply=True, timeout=5
    )
    (answer,) = answers.values()
    return answer


def test_revoke_cancels_a_waiting_row_and_shows_it(house: House, listener: Listener) -> None:
    (task_id,) = house.create("fine", delay="1h")
    answer = control(listener, "revoke", task_id=str(task_id), terminate=False, signal="SIGTERM")
    assert answer["ok"].startswith(f"tasks {task_id} will be cancelled if they wait")
    assert house.over([task_id]) == {"CANCELLED": 1}
    assert shown(listener, task_id, "REVOKED").name == "fine"


def test_terminate_cancels_a_running_row_and_kills_nobody(house: House, listener: Listener) -> None:
    (task_id,) = house.create("patient")
    shown(listener, task_id, "STARTED")
    (child,) = [c for c in control(listener, "pool_stats")["children"] if c["running"]]
    control(listener, "revoke", task_id=[str(task_id)], terminate=True, signal="SIGTERM")
    assert (child["running"], child["alive"]) == ([task_id], True)
    assert child["seconds"] >= 0
    assert house.over([task_id]) == {"CANCELLED": 1}
    shown(listener, task_id, "REVOKED")
    assert {c["pid"] for c in control(listener, "pool_stats")["children"]} >= {child["pid"]}


def test_ids_that_are_not_ours_are_revoked_as_celery_does(listener: Listener) -> None:
    foreign = "0f8fad5b-d9cb-469f-a165-70867728950e"
    control(listener, "revoke", task_id=[foreign, "17"])
    assert control(listener, "revoked") == [foreign]


@pytest.mark.parametrize("arguments", [{"queue": "default"}, {}])
def test_a_queue_is_paused_by_remote_control_and_runs_soon_after_resume(
    house: House, listener: Listener, arguments: dict[str, str]
) -> None:
    control(listener, "pool_pause", **arguments)
    count = "SELECT count(*) FROM task_queue_pause"
    until(lambda: house.sql(count) == 1, 5)
    (task_id,) = house.create("fine")
    started = [e["timestamp"] for e in listener.events][-1]
    until(lambda: [e for e in listener.events if e["timestamp"] > started + 1.5], 10)
    assert house.task(task_id).state == "PENDING"
    control(listener, "pool_resume", **arguments)
    until(lambda: house.sql(count) == 0, 5)
    assert house.over([task_id], timeout_s=2) == {"SUCCEEDED": 1}


def test_no_queue_has_such_a_name(listener: Listener) -> None:
    assert "queue is 'no queue'" in control(listener, "pool_pause", queue="no queue")["error"]
