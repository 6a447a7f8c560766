"""A worker with two children and a beat: what walks through them, and what must not stop them."""

from __future__ import annotations

import statistics
import time
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    return house.worker()


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House, worker: CeleryProcess) -> CeleryProcess:
    return house.beat()


def test_tasks_go_through(house: House) -> None:
    ids = house.create("ok", 20)
    states = house.over(ids)
    assert states == {"SUCCEEDED": 20}
    assert house.effects() == (20, 20)


def test_tasks_in_sql_go_through(house: House) -> None:
    before, _ = house.effects()
    ids = house.create("ok.sql", 20, {"n": -1, "note": "'); DROP TABLE effect; --"})
    states = house.over(ids)
    assert states == {"SUCCEEDED": 20}
    assert house.effects()[0] == before + 20


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO task_pending (name) VALUES ('plain') RETURNING id",
        "SELECT task_create('plain', '{\"n\": 1}')",
    ],
    ids=["insert", "task_create"],
)
def test_what_plain_sql_creates_is_executed_within_two_seconds(
    house: House, statement: str
) -> None:
    took = []
    for _ in range(5):
        began = time.monotonic()
        task_id = house.sql(statement)
        assert house.over([task_id]) == {"SUCCEEDED": 1}
        took.append(time.monotonic() - began)
    assert statistics.median(took) < 2


def test_children_have_connections_of_their_own_made_after_the_fork(house: House) -> None:
    ids = house.create("who", 20)
    house.over(ids)
    seen = [house.task(i).result for i in ids]
    pids, parents = {r["pid"] for r in seen}, {r["parent"] for r in seen}
    backends = {(r["pid"], r["backend"]) for r in seen}
    assert (len(pids), len(parents)) == (2, 1)
    assert len({backend for _, backend in backends}) == len(backends)


def test_what_a_worker_loaded_is_not_looked_at_by_its_childrens_collections(house: House) -> None:
    (task_id,) = house.create("who")
    house.over([task_id])
    assert house.task(task_id).result["frozen"] > 50_000


def test_memory_errors_and_exits_are_outcomes_and_the_worker_lives(
    house: House, worker: CeleryProcess
) -> None:
    before = {child.pid for child in worker.children()}
    ids = [*house.create("memory", 3), *house.create("leave", 3), *house.create("ok", 3)]
    states = house.over(ids)
    assert states == {"FAILED": 6, "SUCCEEDED": 3}
    assert "MemoryError" in (house.task(ids[0]).error or "")
    assert {child.pid for child in worker.children()} == before


def test_forged_messages_start_nothing_and_the_worker_lives(
    house: House, worker: CeleryProcess
) -> None:
    future = house.create("ok", delay="1h")
    app = Celery(broker=house.environment()["TASKS_APP_BROKER_URL"])
    app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
    bodies: list[Any] = [
        (), (1,), (None, []), (None, [0]), (None, [-1]), (None, [2**63]), (None, ["1"]),
        (None, [True]), (None, {"ids": 1}), ("1", [1]), (None, list(range(1, 502))),
        (None, future), (None, [2**62]), (2**62, [1]), (None, [1], 3), (None, [[1]]), (1.5, [1]),
    ]  # fmt: skip

    for body in bodies:
        app.send_task("tasks_app.execute", body, queue="default", ignore_result=True)
    app.send_task("tasks_app.execute", kwargs={"os": "system"}, queue="default")
    for name in ("os.system", "celery.backend_cleanup", "celery.map", str(uuid4())):
        app.send_task(name, ["tasks_app.scan", [[]]], queue="default", ignore_result=True)
    app.close()
    after = house.create("ok")

    assert house.over(after) == {"SUCCEEDED": 1}
    assert house.task(future[0]).state == "PENDING"
    assert house.task(future[0]).attempt == 0
    assert worker.alive
    assert house.effects() == (1, 1)


def test_only_the_task_that_kills_its_process_is_charged(house: House) -> None:
    """Two children; each death is found by the sibling or by the replacement."""
    before = house.create("ok", 250)
    poison = house.create("poison")
    after = house.create("ok", 250)
    states = house.over([*before, *poison, *after], 60)
    assert states == {"FAILED": 1, "SUCCEEDED": 500}
    task = house.task(poison[0])
    assert (task.failures, task.crashes) == (3, 0)
    assert [a.kind for a in house.attempts(poison[0])] == ["process died"] * 3
    assert house.sql("SELECT count(*) FROM task_completed WHERE failures > 0 OR crashes > 0") == 0
    assert house.effects() == (500, 500)


def test_a_child_past_its_hard_limit_is_killed_and_only_that_task_is_charged(house: House) -> None:
    hang = house.create("hang")
    ids = house.create("ok", 50)
    states = house.over([*hang, *ids])
    assert states == {"FAILED": 1, "SUCCEEDED": 50}
    assert "killed at its hard limit of 1 s" in (house.task(hang[0]).error or "")
    assert house.sql("SELECT count(*) FROM task_completed WHERE failures > 0 OR crashes > 0") == 0


def test_limits_inside_a_message_hit_only_their_own_tasks(house: House) -> None:
    names = ["late", "late.async", "hang", "stuck.async"]
    ids = {name: house.create(name)[0] for name in names}
    neighbours = [*house.create("ok", 60), *house.create("plain", 20)]
    states = house.over([*ids.values(), *neighbours], 60)
    assert states == {"FAILED": 4, "SUCCEEDED": 80}
    causes = {name: house.attempts(i)[-1].kind for name, i in ids.items()}
    assert causes == dict(
        zip(names, ["HandlerTimeoutError"] * 2 + ["process died"] * 2, strict=True)
    )
    assert house.sql("SELECT count(*) FROM task_completed WHERE failures > 0 OR crashes > 0") == 0
    assert house.effects() == (60, 60)


def test_a_worker_that_is_asked_ends_with_status_0(house: House, worker: CeleryProcess) -> None:
    """The last of this module: it takes the worker away, in the middle of two long messages."""
    house.create("brief", 200)
    until(lambda: house.sql("SELECT count(*) FROM task_completed") > 3)
    status = worker.stop()
    assert status == 0
    assert house.sql("SELECT count(*) FROM task_worker") == 0
    assert house.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0
    assert house.sql("SELECT count(*) FROM task_pending WHERE failures + crashes = 0") > 100
