"""A Celery, kombu or redis whose insides are not as we know them: Celery's own way, with notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery, Task
from redis import Redis

from tasks_app.broker import internals
from tasks_app.broker.app import make_celery
from tasks_app.broker.celery_tasks import _current
from tasks_app.broker.internals import CURRENT_APP, KEPT_SOCKET, ONE_CLIENT, Need, PrivateApi
from tasks_app.broker.publisher import CeleryHints, CeleryPublisher
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Level
from tests.broker.conftest import House
from tests.broker.publish.messages import message
from tests.renaming import in_all_processes

RENAMED = """
from celery.concurrency.asynpool import AsynPool
from kombu.transport.redis import Channel
from redis.connection import ConnectionPool
rename("_create_write_handlers", AsynPool)
rename("_brpop_read", Channel)
rename("_q_for_pri", Channel)
"""
UNGUARDED = """
from celery.app.task import Task
from celery.worker.consumer import Consumer
rename("start_strategy", Task, Consumer)
"""


@pytest.mark.test_all
@pytest.mark.test_all
def test_a_worker_says_what_it_does_without_and_works(house: House, tmp_path: Path) -> None:
    process = house.worker(**in_all_processes(tmp_path / "site", RENAMED))
    try:
        ended = house.over(house.create("plain", 20), 60)
    finally:
        process.end()

    assert ended == {"SUCCEEDED": 20}
    for name in ("AsynPool._create_write_handlers", "Channel._brpop_read", "Channel._q_for_pri"):
        assert f"{name} as we know it: " in process.log()
    assert "Install kombu<5.8,>=5.5.4." in process.log()
    assert "Traceback" not in process.log()


@pytest.mark.test_all
@pytest.mark.test_all
def test_a_worker_that_could_not_guard_its_queues_does_not_start(
    house: House, tmp_path: Path
) -> None:
    process = house.worker(ready=False, **in_all_processes(tmp_path / "site", UNGUARDED))

    process.says("has no celery:Task.start_strategy as we know it")
    assert process.wait(60) != 0
    assert "Traceback" not in process.log()


def test_messages_go_out_one_by_one(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages, on a Redis client that kombu makes."""
    url = house.broker.url_of(12)
    settings = Settings(database_url=house.url, broker_url=url)

    def sent() -> int:
        hints, publisher = CeleryHints(settings), CeleryPublisher(make_celery(settings))
        hints.publish("counted", [1])
        assert hints.start("counted", [2]) is KEPT_SOCKET.works
        if KEPT_SOCKET.works:
            hints.finish()
        else:
            hints.publish("counted", [2])
        assert publisher.publish([message(3), message(4)]) == {}
        publisher.close()
        with Redis.from_url(url) as client:
            length = client.llen("tasks_app:counted")
            client.flushdb()
        return int(length)

    shortly = sent()
    for shortcut in (KEPT_SOCKET, ONE_CLIENT):
        monkeypatch.setattr(shortcut, "works", False)

    assert (shortly, sent()) == (4, 4)


def test_a_thread_gets_its_app_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = Celery("mine", set_as_current=True), Celery("other", set_as_current=False)
    for works in (True, False):
        monkeypatch.setattr(CURRENT_APP, "works", works)
        with _current(other):
            inside = internals.current_app()
        assert (inside, internals.current_app()) == (other, mine)


class TestNeeds:
    """What is looked at: whether it is there, what it takes, and what its code uses."""

    @pytest.mark.parametrize(
        "need",
        [
            Need("celery:Task.no_such_name"),
            Need("no_such_package:Task"),
            Need("celery:Task.retry", ("self", "no_such_parameter")),
            Need("celery:Task.retry", names=("no_such_name",)),
            Need("celery:Task.name", names=("anything",)),
        ],
    )
    def test_what_is_otherwise_is_missed(self, need: Need) -> None:
        shortcut = PrivateApi(Need("celery:Task"), need, without="slower")

        assert (shortcut.works, shortcut.missing) == (False, need.path)

    def test_what_is_as_we_know_it_works(self) -> None:
        assert hasattr(Task, "retry")
        assert PrivateApi(
            Need("celery:Task.retry", ("self", "args"), ("signature_from_request",)), without=""
        ).works

    def test_all_that_we_use_is_there_today(self) -> None:
        assert {found.level for found in internals.examine()} == {Level.OK}
