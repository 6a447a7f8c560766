"""Thousands of forged messages, pushed past kombu into a real worker's queues."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine

from tasks_app import cancel_task, create_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks import browse
from tests.broker.conftest import House
from tests.clock import until
from tests.factory import as_json, claimer
from tests.fuzz.forgery import Forger, Oddities

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(900, method="thread")]

LISTS = ("tasks_app:default", "tasks_app:tasks_app")
"""Our queues, as kombu names their lists."""
STRANGERS = (0, -1, -(2**63), 2**63 - 1, 2**62, 2**63, 10**30)


def sleeping(house: House) -> list[int]:
    """Tasks that no message may start: not due, disabled, cancelled, failed, known to nobody."""
    later = house.create("ok", 20, delay="1h")
    cancelled = house.create("ok", 20, delay="1h")
    with house.engine.begin() as connection:
        for task_id in cancelled:
            cancel_task(connection, task_id)
    failed, done = house.create("bad", 5), house.create("ok", 5)
    house.over([*failed, *done])
    strangers = house.create("known.to.nobody", 5)
    disabled = house.create("ok", 5, delay="1h", enabled=False)
    return [*later, *cancelled, *failed, *done, *strangers, *disabled]


def picture(house: House, ids: list[int]) -> Any:
    return house.sql(
        "SELECT string_agg(concat_ws(' ', id, pool, state, attempt, failures, crashes), ','"
        " ORDER BY id) FROM task_all WHERE id = ANY(:ids)",
        ids=ids,
    )


def test_forged_messages_run_nothing_and_kill_nobody(
    house: House, dice: random.Random, count: int, tmp_path: Path
) -> None:
    worker = house.worker("-E", TASKS_APP_SCAN_INTERVAL="200ms")
    house.beat(TASKS_APP_SCAN_INTERVAL="200ms")
    pids = {child.pid for child in worker.children()}
    asleep = sleeping(house)
    before, effects = picture(house, asleep), house.effects()
    client = redis.Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"])
    forger = Forger(dice, [*asleep, *STRANGERS], tmp_path / "executed")

    def left() -> int:
        assert worker.alive, worker.log()[-3000:]
        return sum(client.llen(name) for name in LISTS)

    due: list[int] = []
    for number in range(count):
        if number % 50 == 0:  # honest work goes on among them, and its ids are forged, too
            due += house.create("ok", 5)
            forger = Forger(dice, [*asleep, *due, *STRANGERS], tmp_path / "executed")
        client.lpush(dice.choice(LISTS), forger.message())
        if number % 500 == 499:
            until(lambda: left() < 200, 120, "reading")
    until(lambda: left() == 0, 120, "reading")
    after = house.create("ok", 50)

    assert house.over([*due, *after], 60) == {"SUCCEEDED": len(due) + 50}
    ran = len(due) + 50 + effects[0]
    assert house.effects() == (ran, ran)
    assert picture(house, asleep) == before
    assert not (tmp_path / "executed").exists()
    assert worker.alive
    assert {child.pid for child in worker.children()} == pids
    assert "Traceback" not in worker.log()
    client.close()
    print(f"{count} forged messages among {len(due)} due tasks: each ran once, nobody died")


def test_a_pushed_message_reaches_the_executor(house: House, dice: random.Random) -> None:
    """Else the test above would prove nothing."""
    house.worker("-Q", "lonely")
    (task_id,) = house.create("ok", queue="lonely", delay="1h")
    house.sql("UPDATE task_pending SET due_at = now() WHERE id = :id", id=task_id)
    with redis.Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as client:
        message = Forger(dice, [task_id], Path("nowhere")).honest([task_id])
        client.lpush("tasks_app:lonely", message.replace(b'"default"', b'"lonely"'))
    assert house.over([task_id], 10) == {"SUCCEEDED": 1}


def test_without_remote_control_nobody_stops_a_worker_through_the_broker(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_enable_remote_control = False\n")
    deaf = house.worker("-E", "-Q", "deaf", folder=tmp_path)
    hears = house.worker("-Q", "hears")
    house.beat(TASKS_APP_SCAN_INTERVAL="200ms")
    app = Celery(broker=house.environment()["TASKS_APP_BROKER_URL"], set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
    app.control.broadcast("shutdown")
    assert hears.wait(30) == 0
    assert house.over(house.create("ok", 5, queue="deaf")) == {"SUCCEEDED": 5}
    assert deaf.alive
    app.close()


BATCH = 500


def test_each_payload_is_refused_with_its_path_or_read_back_equal_among_hundreds(
    engine: Engine, dice: random.Random, count: int
) -> None:
    oddities = Oddities(dice)
    made: dict[int, Any] = {}
    refused = 0
    for begin in range(0, count, BATCH):
        with engine.begin() as connection:
            for _ in range(min(BATCH, count - begin)):
                payload, good = oddities.payload()
                try:
                    task_id = create_task(connection, "t", payload)
                except InvalidTaskError as refusal:
                    named = refusal.path.startswith("payload")
                    assert named and not good, refusal  # noqa: PT017, PT018  both ways are good
                    refused += 1
                else:
                    assert good, payload
                    made[int(task_id)] = as_json(payload)

    with engine.begin() as connection:
        announced = [i for found in find_due(connection, {"default": count}) for i in found.ids]
        assert sorted(announced) == sorted(made)
        for begin in range(0, len(announced), BATCH):
            ids = sorted(announced[begin : begin + BATCH])
            listed = browse.find_tasks(connection, name="t", before=ids[-1] + 1, most=len(ids))
            shown = {task.id: task.payload for task in listed}
            taken = claim(connection, ids, claimer(), uuid4())
            assert {t.task_id for t in taken} == set(ids)
            for task in taken:
                expected = made[task.task_id]
                assert decode(task.payload or "", "payload") == expected
                assert shown[task.task_id] == expected
        connection.rollback()
    assert len(made) + refused == count
    assert min(len(made), refused) > count / 5
    print(f"{count} payloads: {len(made)} read back equal, {refused} refused with their path")
