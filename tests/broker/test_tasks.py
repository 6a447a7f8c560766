"""Messages that a worker takes, and the private names of Celery that it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, Task
from redis import Redis

from tasks_app.broker import internals
from tasks_app.broker.app import make_celery, register
from tasks_app.broker.celery_tasks import _current
from tasks_app.broker.consumer import PatientConsumer
from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.internals import CURRENT_APP, KEPT_SOCKET, ONE_CLIENT, PrivateApi, Used
from tasks_app.broker.publisher import CeleryHints, CeleryPublisher
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Level
from tasks_app.pool.dispatch.notifications import install_trigger, remove_trigger
from tests.broker.conftest import House
from tests.broker.test_publisher import message
from tests.clock import until
from tests.environment import NEWEST_CELERY, in_all_processes
from tests.runtime.notify.conftest import LISTENERS

LARGEST = 2**63 - 1


@pytest.fixture
def carried_out() -> list[Any]:
    return []


@pytest.fixture
def execute(carried_out: list[Any]) -> Any:
    return registered(lambda ids, *, wake, queue: carried_out.append((wake, queue, ids)))


def registered(execute: Callable[..., None]) -> Any:
    app = Celery("tasks_app.test", set_as_current=False)
    register(app, SimpleNamespace(child=lambda: SimpleNamespace(execute=execute)))
    return app.tasks[EXECUTE]


@pytest.mark.parametrize(
    "body", [(None, [1]), (1, [1, 2]), (LARGEST, [LARGEST]), (7, list(range(1, 501)))]
)
def test_ids_reach_the_child(execute: Any, carried_out: list[Any], body: Any) -> None:
    execute(*body)
    wake, ids = body
    assert carried_out == [(wake is not None, None, ids)]


@pytest.mark.parametrize(
    "body",
    [
        (), (1,), (0, [1]), (-1, [1]), (True, [1]), ("1", [1]), (1.0, [1]), (LARGEST + 1, [1]),
        (None, []), (None, [0]), (None, [-1]), (None, [True]), (None, ["1"]), (None, [1.0]),
        (None, [None]), (None, [[1]]), (None, [LARGEST + 1]), (None, list(range(1, 502))),
        (None, (1, 2)), (None, {"ids": 1}), (None, "12"), (None, [1], 3), (None, [1, "2"]),
    ],
)  # fmt: skip
def test_anything_else_does_not(execute: Any, carried_out: list[Any], body: Any) -> None:
    execute(*body)
    assert carried_out == []


def test_nor_does_a_body_with_more_names(execute: Any, carried_out: list[Any]) -> None:
    execute(wake=None, ids=[1], os="system")
    assert carried_out == []


def test_what_breaks_while_a_message_is_carried_out_is_said_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A MemoryError that reached Celery would end the worker."""

    def break_off(*_: Any, **__: Any) -> None:
        raise MemoryError("secret\npayload")

    registered(break_off)(5, [1])
    assert [record.getMessage() for record in caplog.records] == [
        "a message ended early; the scan finds its tasks again: MemoryError: secret"
    ]


@pytest.fixture
def consumer() -> PatientConsumer:
    """One that has just lost its connection; nothing else of it is needed."""
    consumer = PatientConsumer.__new__(PatientConsumer)
    consumer.connection = Mock(connection_errors=(OSError,), channel_errors=())
    return consumer


@pytest.mark.skipif(not NEWEST_CELERY, reason="it closes no connection here")
def test_a_connection_that_cannot_be_closed_does_not_end_the_worker(
    consumer: PatientConsumer,
) -> None:
    consumer.connection.close.side_effect = AttributeError("'NoneType' object has no attribute")
    consumer.on_connection_error_after_connected(OSError("lost"))
    assert consumer.connection is None


@pytest.mark.skipif(not NEWEST_CELERY, reason="it closes no connection here")
def test_what_goes_wrong_before_it_is_let_go_is_not_hidden(
    consumer: PatientConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Mock(side_effect=RuntimeError)
    monkeypatch.setattr("celery.worker.consumer.consumer.bound_open_broker_sockets", broken)
    with pytest.raises(RuntimeError):
        consumer.on_connection_error_after_connected(OSError("lost"))


SCANS = {"TASKS_APP_SCAN_INTERVAL": "60s"}
SOON_S = 20.0


@pytest.fixture
def trigger(house: House) -> Iterator[None]:
    with house.engine.begin() as connection:
        install_trigger(connection)
    yield
    with house.engine.begin() as connection:
        remove_trigger(connection)


@pytest.mark.usefixtures("trigger")
def test_tasks_of_sql_are_published_long_before_the_next_scan(house: House) -> None:
    house.worker(children=1, **SCANS)
    beat = house.beat(**SCANS)
    until(lambda: house.sql(LISTENERS) == 1, 30, "LISTEN")
    for _ in range(3):
        task_id = house.sql("SELECT task_create('plain')")
        assert house.over([task_id], SOON_S) == {"SUCCEEDED": 1}
    assert beat.stop() == 0
    assert house.sql(LISTENERS) == 0


def test_without_hints_beat_does_not_listen(house: House) -> None:
    beat = house.beat(TASKS_APP_HINTS="off")
    beat.says("this beat leads")
    assert house.sql(LISTENERS) == 0


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
            Used("celery:Task.no_such_name"),
            Used("no_such_package:Task"),
            Used("celery:Task.retry", ("self", "no_such_parameter")),
            Used("celery:Task.retry", names=("no_such_name",)),
            Used("celery:Task.name", names=("anything",)),
        ],
    )
    def test_what_is_otherwise_is_missed(self, need: Used) -> None:
        shortcut = PrivateApi(Used("celery:Task"), need, without="slower")
        assert (shortcut.works, shortcut.missing) == (False, need.path)

    def test_what_is_as_we_know_it_works(self) -> None:
        assert hasattr(Task, "retry")
        assert PrivateApi(
            Used("celery:Task.retry", ("self", "args"), ("signature_from_request",)), without=""
        ).works

    def test_all_that_we_use_is_there_today(self) -> None:
        assert {found.level for found in internals.examine()} == {Level.OK}
