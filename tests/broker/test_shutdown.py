"""A worker that is told to stop: what goes back, what may end, and what is let go."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from redis import Redis

from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

IMPORTS = {"TASKS_APP_IMPORTS": "house_handlers,stop_handlers"}
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House) -> None:
    house.beat(**IMPORTS)


def doomed(house: House, *, children: int = 2, folder: Path | None = None) -> CeleryProcess:
    arguments = ("-l", "DEBUG")  # where Celery's log has our messages
    environment = {"TASKS_APP_GIVE_BACK_AFTER": "1h", **IMPORTS}
    return house.worker(*arguments, children=children, folder=folder, **environment)


def test_sigterm_gives_back_at_once_while_running_tasks_end(house: House) -> None:
    """To the whole group, as some process managers do it; two messages wait in the parent."""
    worker = doomed(house)
    long = house.create("slow", 2, {"seconds": 4.0}, priority=0)
    until(lambda: house.sql(RUNNING) == 2)
    rest = house.create("ok", 40)
    until(lambda: worker.log().count("Task tasks_app.execute[") == 4)  # two in hand, two reserved

    worker.signal_all(signal.SIGTERM)
    until(lambda: house.sql("SELECT count(*) FROM task_worker WHERE queues = '{}'") == 2, 5)

    assert house.sql(RUNNING) == 2
    assert worker.wait() == 0
    assert {house.task(i).state for i in long} == {"SUCCEEDED"}
    assert {(t.state, t.attempt) for t in map(house.task, rest)} == {("PENDING", 0)}
    assert house.effects() == (2, 2)


def test_what_the_parent_reserved_goes_back_and_redis_keeps_no_receipts(house: House) -> None:
    """A receipt in Redis costs two transactions a message; a scan makes good what is lost."""
    with Redis.from_url(house.broker.url_of(house.number % 16)) as redis:
        redis.delete("tasks_app:default")  # of the test before
        worker = doomed(house, children=1)
        ids = house.create("slow", 1, {"seconds": 2.0}, priority=0)
        until(lambda: house.sql(RUNNING) == 1)
        ids += house.create("ok", 10)
        until(lambda: worker.log().count("Task tasks_app.execute[") == 2)  # one in hand
        until(lambda: redis.llen("tasks_app:default"))
        waiting, receipts = redis.llen("tasks_app:default"), list(redis.scan_iter("*unacked*"))

        worker.stop()

        assert redis.llen("tasks_app:default") > waiting
        assert receipts == []
        other = doomed(house, children=1)
        assert house.over(ids) == {"SUCCEEDED": 11}
        until(lambda: redis.llen("tasks_app:default") == 0)
        other.stop()
        assert "dropped" not in other.log()
        redis.delete("tasks_app:default")


def test_after_the_grace_running_tasks_are_let_go_whatever_they_catch(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_soft_shutdown_timeout = 0.5\n")
    worker = doomed(house, children=4, folder=tmp_path)
    on = {"on": worker.name}
    ids: list[int] = []
    for name in ("stop.free", "stop.charged", "stop.once", "stop.async"):
        ids += house.create(name, payload=on)  # each to a child of its own, so that all begin
        until(lambda ids=ids: house.sql(RUNNING) == len(ids))
    free, charged, once, caught = ids

    worker.signal_all(signal.SIGQUIT)

    assert worker.wait() == 0
    seen = {i: (t.state, t.attempt, t.failures, t.crashes) for i in (free, charged, once, caught)
            for t in [house.task(i)]}  # fmt: skip
    assert seen == {
        free: ("PENDING", 1, 0, 0),
        charged: ("PENDING", 1, 1, 0),
        once: ("FAILED", 1, 1, 0),
        caught: ("PENDING", 1, 0, 0),
    }
    assert [a.kind for a in house.attempts(charged)] == ["interrupted"]
    assert (house.task(once).error or "").startswith("outcome unknown")
    assert house.effects() == (0, 0)


def test_a_child_that_leaves_as_asked_is_no_error_in_the_log(house: House) -> None:
    worker = doomed(house, children=1)
    (task_id,) = house.create("stop.free", payload={"on": worker.name})
    until(lambda: house.sql(RUNNING) == 1)
    (child,) = [each for each in worker.children() if not each.children()]
    child.terminate()
    worker.says(f"leaving; let go of tasks [{task_id}]")
    worker.says("a child left as planned, and with it message ")
    assert "WorkerLostError" not in worker.log()
    assert "Task handler raised error" not in worker.log()


def test_sigterm_while_a_message_is_on_its_way_to_a_child(house: House) -> None:
    """Nobody had read yet that the child accepted it; the child waited for that for 30 seconds."""
    worker = house.worker(TASKS_APP_IMPORTS="house_handlers,stop_amid_write")
    house.create("ok")
    assert worker.wait(20) == 0
    assert "asked to stop: a message is on its way to a child" in worker.log()
