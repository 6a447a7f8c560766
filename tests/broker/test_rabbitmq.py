"""What is particular to RabbitMQ: queues that may be missing, confirms, and whose queue it is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue

from tasks_app.broker.app import register
from tasks_app.broker.defaults import CONTROL_QUEUE, celery_defaults
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.domain.errors import NoQueueError
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import STATES, House, begin_life, effects_of
from tests.broker.test_publisher import message

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(120, method="thread"),
    pytest.mark.parametrize("house", ["rabbitmq"], indirect=True, scope="module"),
]


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    return house.worker()


@pytest.fixture(scope="module", autouse=True)
def _beat(house: House, worker: CeleryProcess) -> CeleryProcess:
    return house.beat()


@pytest.fixture(scope="module")
def app(house: House) -> Iterator[Celery]:
    app = Celery("publishes", set_as_current=False)
    app.conf.update(celery_defaults(house.broker.url, 1.0))
    register(app)
    yield app
    app.close()


@pytest.fixture(scope="module")
def connection(house: House) -> Iterator[Connection]:
    with Connection(house.broker.url) as connection:
        yield connection


def test_a_life_goes_its_way(house: House) -> None:
    ids = begin_life(house, "default")
    assert house.over(ids) == STATES
    assert effects_of(house, ids) == (13, 13)


def test_remote_control_reaches_a_worker_and_its_answer_comes_back(
    app: Celery, worker: CeleryProcess
) -> None:
    answers = app.control.ping(timeout=10, limit=1)
    assert [name.partition("@")[0] for answer in answers for name in answer] == [worker.name]


def test_our_queues_are_quorum_queues_and_none_are_there_for_delays(connection: Connection) -> None:
    with connection.channel() as channel:
        for name in ("default", CONTROL_QUEUE):
            arguments = {"x-queue-type": "quorum"}
            Queue(name, queue_arguments=arguments).queue_declare(channel=channel)  # else 406
    with connection.channel() as channel, pytest.raises(channel.connection.channel_errors):
        channel.queue_declare("celery_delayed_0", passive=True)


def test_a_message_for_a_queue_that_is_not_there_is_not_taken_for_sent(app: Celery) -> None:
    publisher = CeleryPublisher(app)
    there, missing = message(2**62, "default"), message(2**62, "nobody_made_it")
    for _ in range(3):  # an answer that comes late must not confirm the next message
        wrong = publisher.publish([there, missing, there])
        assert list(wrong) == [1]
        assert isinstance(wrong[1], NoQueueError)
        assert "no queue nobody_made_it now" in str(wrong[1])
        assert publisher.publish([there]) == {}
    publisher.close()


def test_a_queue_that_is_deleted_under_a_worker_is_made_again(
    house: House, connection: Connection, worker: CeleryProcess
) -> None:
    ids = house.create("ok", 300)
    with connection.channel() as channel:
        for _ in range(3):
            channel.queue_delete("default")
            ids += house.create("ok", 100)
    began = time.monotonic()
    states = house.over(ids, 60)
    assert states == {"SUCCEEDED": 600}
    assert house.effects() == (600, 600)
    assert time.monotonic() - began < 30
    assert worker.alive


def test_tasks_of_others_are_refused_whatever_way_they_come_into_our_queue(
    house: House, app: Celery, connection: Connection, worker: CeleryProcess
) -> None:
    """A binding of a stranger's own gives the message a routing key that we do not know."""
    exchange = Exchange("strangers", "direct", durable=False)
    with connection.channel() as channel:
        bound = Queue("default", exchange, "way_in", queue_arguments={"x-queue-type": "quorum"})
        bound(channel).declare()
        app.send_task(
            "celery.backend_cleanup", exchange="strangers", routing_key="way_in",
            exchange_type="direct", declare=[],
        )  # fmt: skip
    worker.says("refused task celery.backend_cleanup on a queue of tasks_app")
    assert house.over(house.create("ok")) == {"SUCCEEDED": 1}


def test_a_queue_of_another_kind_under_our_name_is_said(
    house: House, connection: Connection
) -> None:
    with connection.channel() as channel:
        channel.queue_declare("classic", durable=True, auto_delete=False)
    other = house.worker("-Q", "classic", ready=False)
    assert other.wait() != 0
    assert "A queue of ours exists with other arguments" in other.log()
    assert "Traceback" not in other.log()


def test_a_worker_that_is_asked_ends_with_status_0(house: House, worker: CeleryProcess) -> None:
    """The last of this module."""
    assert worker.stop() == 0
