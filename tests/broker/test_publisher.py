"""What the dispatcher asks a broker, on each of them; no worker is needed for that."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import Queue

from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.broker.tasks import register
from tasks_app.domain.errors import PublishError
from tests.broker.conftest import House

KEEPALIVE = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)

pytestmark = pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")


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
    unknown = publisher.depth("counted")
    with app.connection_for_write() as connection:
        arguments = {"x-queue-type": "quorum"}
        queue = Queue("counted", queue_arguments=arguments)(connection.default_channel)
        queue.queue_declare()
        for number in (1, 2):
            publisher.publish("counted", number, [number])

        assert (unknown, publisher.depth("counted")) == (0, 2)
        queue.purge()
        assert publisher.depth("counted") == 0


def test_a_broker_that_is_away_is_not_taken_for_an_empty_one(house: House) -> None:
    kind = house.broker.url_of(11).partition("://")[0]
    publisher = CeleryPublisher(an_app(f"{kind}://guest:guest@127.0.0.1:1//"))

    assert publisher.depth("counted") is None
    with pytest.raises(PublishError) as refusal:
        publisher.publish("counted", 1, [1])
    assert refusal.value.certain
    with pytest.raises(PublishError):
        publisher.probe()


def test_a_dead_peer_is_noticed_by_who_only_waits(house: House, app: Celery) -> None:
    """Redis: TCP keepalive within half a minute. RabbitMQ: heartbeats, which a worker asks for."""
    with app.connection_for_read(heartbeat=app.conf.broker_heartbeat) as connection:
        if connection.transport.driver_type == "amqp":
            connection.connect()
            assert connection.get_heartbeat_interval() == 10
            return
        client = connection.default_channel.client
        client.ping()
        waiting = client.connection_pool.get_connection()
        options = [waiting._sock.getsockopt(socket.IPPROTO_TCP, name) for name in KEEPALIVE]
        client.connection_pool.release(waiting)

    assert options == [10, 5, 3]
