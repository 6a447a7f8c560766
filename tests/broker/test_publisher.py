"""Messages: what they hold, and how they are published."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from kombu import Queue

from dev.torture.fault_proxy import FaultProxy
from tasks_app.broker.app import register
from tasks_app.broker.defaults import EXECUTE, celery_defaults
from tasks_app.broker.messages import POOL_VARIABLE, WAKE
from tasks_app.broker.publisher import CeleryHints, CeleryPublisher
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import PublishError
from tasks_app.runtime.hint_sender import Message
from tasks_app.runtime.hints import HINTS
from tests.broker.conftest import House

pytestmark = pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")


@pytest.fixture
def hints(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[CeleryHints]:
    monkeypatch.setattr(HINTS, "pool", None)  # Celery's own message names none
    monkeypatch.delenv(POOL_VARIABLE, raising=False)
    hints = CeleryHints(Settings(broker_url=house.broker.url_of(12)))
    yield hints
    hints.broker.drop()


@pytest.fixture
def queue(hints: CeleryHints) -> Iterator[Queue]:
    with hints.broker.app.connection_for_write() as connection:
        name = "letters"
        queue = Queue(name, queue_arguments={"x-queue-type": "quorum"})(connection.default_channel)
        queue.queue_declare()
        yield queue
        queue.delete()


def received(queue: Queue) -> dict[str, Any]:
    """The next message, without what is another in each, and without where nobody answers."""
    message = queue.get(no_ack=True)
    headers = dict(message.headers)
    names = {headers.pop("id"), headers.pop("root_id"), message.properties["correlation_id"]}
    return {
        "one name": len(names) == 1 and len(names.pop()) == 36,
        "headers": headers,
        "body": message.decode(),
        "content": (message.content_type, message.content_encoding),
        "persistent": message.properties["delivery_mode"],
        "route": message.delivery_info["routing_key"],
        "exchange": message.delivery_info["exchange"],
    }


def test_it_is_what_celery_sends(hints: CeleryHints, queue: Queue) -> None:
    hints.publish(queue.name, [3, 4])
    hints.broker.app.send_task(
        EXECUTE, (None, [3, 4]), queue=queue, ignore_result=True, argsrepr="(ids)"
    )
    ours, theirs = received(queue), received(queue)
    assert ours == theirs
    assert ours["body"][0] == [None, [3, 4]]
    assert ours["one name"]


def test_no_two_have_one_name(hints: CeleryHints, queue: Queue) -> None:
    for _ in range(2):
        hints.publish(queue.name, [1])
    first, second = (queue.get(no_ack=True).headers["id"] for _ in range(2))
    assert first != second


def test_for_redis_it_is_the_text_that_kombu_would_write(hints: CeleryHints, house: House) -> None:
    if not house.broker.url_of(12).startswith("redis"):
        pytest.skip("for Valkey alone: RabbitMQ carries no such texts")
    envelope, texts = hints.envelope, []
    with hints.broker.app.connection_for_write() as connection:
        channel = connection.default_channel
        channel._put = lambda queue, message, **_: texts.append(json.dumps(message))
        envelope.put(channel, 'qu"eue', 7, [1, 2])
    texts.append(envelope.text('qu"eue', 7, [1, 2]))
    theirs, ours = (json.loads(_without_names(text)) for text in texts)
    assert ours == theirs


def _without_names(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "a name", text)


def test_hints_to_redis_use_one_socket(hints: CeleryHints, queue: Queue) -> None:
    if hints.broker.app.connection_for_write().transport.driver_type != "redis":
        pytest.skip("for Valkey alone: RabbitMQ has one channel")
    for _ in range(3):
        hints.publish(queue.name, [1])
        assert hints.depth(queue.name) is not None
    assert hints.broker.channel.client.connection_pool._created_connections == 1


KEEPALIVE = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


@pytest.fixture
def app(house: House) -> Iterator[Celery]:
    app = an_app(house.broker.url_of(11))
    yield app
    app.close()


def an_app(url: str) -> Celery:
    app = Celery("publishes", set_as_current=False)
    app.conf.update(celery_defaults(url, 1.0))
    register(app)
    return app


def test_it_tells_how_many_messages_wait(app: Celery) -> None:
    publisher = CeleryPublisher(app)
    unknown = publisher.depths(["counted"])
    with app.connection_for_write() as connection:
        arguments = {"x-queue-type": "quorum"}
        queue = Queue("counted", queue_arguments=arguments)(connection.default_channel)
        queue.queue_declare()
        for number in (1, 2):
            assert publisher.publish([message(number)]) == {}

        assert unknown == {"counted": 0}
        assert publisher.depths(["nobody's", "counted"]) == {"nobody's": 0, "counted": 2}
        queue.purge()
        assert publisher.depths(["counted"]) == {"counted": 0}
    publisher.close()


def test_a_broker_that_is_away_is_not_taken_for_an_empty_one(house: House) -> None:
    kind = house.broker.url_of(11).partition("://")[0]
    publisher = CeleryPublisher(an_app(f"{kind}://guest:guest@127.0.0.1:1//"))
    with pytest.raises(PublishError):
        publisher.depths(["counted"])
    assert list(publisher.publish([message(1), message(2)])) == [0, 1]
    with pytest.raises(PublishError):
        publisher.probe()


class TestManyAtOnce:
    """A pass publishes all of its messages in a few round trips, and each is judged alone."""

    @pytest.fixture
    def road(self, house: House) -> Iterator[FaultProxy]:
        parts = urlsplit(house.broker.url_of(11))
        with FaultProxy((parts.hostname or "", parts.port or 5672)) as proxy:
            yield proxy

    @pytest.fixture
    def publisher(self, house: House, road: FaultProxy) -> Iterator[CeleryPublisher]:
        parts = urlsplit(house.broker.url_of(11))
        netloc = parts.netloc.rpartition("@")
        netloc = f"{netloc[0]}{netloc[1]}127.0.0.1:{road.port}"
        publisher = CeleryPublisher(an_app(parts._replace(netloc=netloc).geturl()))
        yield publisher
        publisher.close()

    @pytest.fixture
    def queue(self, app: Celery) -> Iterator[Queue]:
        with app.connection_for_write() as connection:
            arguments = {"x-queue-type": "quorum"}
            queue = Queue("many", queue_arguments=arguments)(connection.default_channel)
            queue.queue_declare()
            queue.purge()
            yield queue
            queue.purge()

    def test_they_arrive_in_order_and_as_a_worker_reads_them(
        self, publisher: CeleryPublisher, queue: Queue
    ) -> None:
        sent = [message(n, "many", tuple(range(n, n + 400))) for n in range(1, 31)]
        assert publisher.publish(sent) == {}
        got = [queue.get(no_ack=True) for _ in sent]
        assert [g.payload[0] for g in got] == [[WAKE, list(m.ids)] for m in sent]
        assert {g.headers["task"] for g in got} == {EXECUTE}
        assert len({g.headers["id"] for g in got}) == 30
        assert queue.get() is None

    def test_an_idle_connection_that_died_is_nobodys_trouble(
        self, publisher: CeleryPublisher, queue: Queue, road: FaultProxy
    ) -> None:
        publisher.publish([message(1, "many")])
        road.cut()
        assert publisher.publish([message(2, "many"), message(3, "many")]) == {}
        assert [queue.get(no_ack=True).payload[0][1] for _ in range(3)] == [[1], [2], [3]]

    def test_the_depth_is_asked_on_the_same_connection(
        self, publisher: CeleryPublisher, queue: Queue, road: FaultProxy
    ) -> None:
        """A leader asks ten times a second; to connect each time took 7 ms."""
        publisher.publish([message(1, "many")])
        road.stop_listening()
        assert [publisher.depths(["many"]) for _ in range(3)] == [{"many": 1}] * 3

    def test_what_was_perhaps_sent_is_not_taken_for_sent(
        self, publisher: CeleryPublisher, queue: Queue, road: FaultProxy
    ) -> None:
        """The broker has them, its reply is lost, and then nobody listens any more."""
        publisher.publish([message(1, "many")])
        road.lose_reply_to(b"many")
        road.stop_listening()
        wrong = publisher.publish([message(2, "many"), message(3, "many")])
        assert list(wrong) == [0, 1]
        assert queue.get(no_ack=True).payload[0][1] == [1]
        assert queue.get(no_ack=True).payload[0][1] == [2]

    @pytest.mark.test_all
    def test_a_broker_that_swallows_everything_is_given_up_in_time(
        self, publisher: CeleryPublisher, queue: Queue, road: FaultProxy
    ) -> None:
        publisher.publish([message(1, "many")])
        road.black_out()
        began = time.monotonic()
        wrong = publisher.publish([message(n, "many") for n in range(2, 20)])
        road.let_through()
        assert len(wrong) == 18
        assert time.monotonic() - began < 20


def test_a_dead_peer_is_noticed_by_who_only_waits(house: House, app: Celery) -> None:
    """Redis: TCP keepalive within half a minute. RabbitMQ: heartbeats, which a worker asks for."""
    with app.connection_for_read(heartbeat=app.conf.broker_heartbeat) as connection:
        if connection.transport.driver_type == "amqp":
            connection.connect()
            assert connection.get_heartbeat_interval() == 10
            return
        client = connection.default_channel.client
        client.ping()
        waiting = client.connection_pool.make_connection()
        waiting.connect()
        options = [waiting._sock.getsockopt(socket.IPPROTO_TCP, name) for name in KEEPALIVE]
        waiting.disconnect()

    assert options == [10, 5, 3]


def message(number: int, queue: str = "counted", ids: tuple[int, ...] = ()) -> Message:
    return Message(queue, ids or (number,))
