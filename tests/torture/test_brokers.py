"""What the torture does to a broker reaches the messages that our workers would get."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from dev.torture.brokers import Broker, ValkeyBroker
from dev.torture.rabbit_broker import RabbitBroker
from dev.torture.rabbit_node import Node, rabbitmq_program
from tasks_app.broker.app import register
from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.embedded.servers import Valkey
from tasks_app.runtime.hint_sender import Message

MESSAGES = 4
HERE = "rabbitmq-server"


@pytest.fixture(
    params=[
        "valkey",
        pytest.param(
            "rabbitmq",
            marks=[
                pytest.mark.test_all,
                pytest.mark.skipif(
                    rabbitmq_program(HERE) is None,
                    reason="RabbitMQ is not tested: it needs rabbitmq-server installed",
                ),
            ],
        ),
    ]
)
def tortured(request: pytest.FixtureRequest, broker: Valkey) -> Iterator[Broker]:
    """Empty."""
    if request.param == "valkey":
        valkey = ValkeyBroker(broker)
        valkey.forget()
        yield valkey
        valkey.forget()
        return
    with Node() as node:
        yield RabbitBroker(node)


@pytest.fixture
def publish(tortured: Broker) -> Iterator[Callable[[], None]]:
    """Send a few messages as beat does, into a queue such as workers make."""
    app = Celery("publishes", set_as_current=False)
    app.conf.update(celery_defaults(tortured.url, 1.0))
    register(app)
    publisher = CeleryPublisher(app)

    def send() -> None:
        with app.connection_for_write() as connection:
            app.amqp.queues["default"].bind(connection.default_channel).declare()
        messages = [Message("default", (n,)) for n in range(1, MESSAGES + 1)]
        assert publisher.publish(messages) == {}

    yield send
    publisher.close()
    app.close()


def test_messages_of_ours_are_seen_repeated_lost_and_forgotten(
    tortured: Broker, publish: Callable[[], None]
) -> None:
    assert tortured.waiting() == []
    publish()

    waiting = tortured.waiting()
    tortured.deliver(waiting)

    assert len(waiting) == MESSAGES
    assert len(tortured.waiting()) == 2 * MESSAGES

    tortured.lose_half()

    assert len(tortured.waiting()) in {MESSAGES, MESSAGES + 1}

    tortured.forget()

    assert tortured.waiting() == []


def test_what_is_forged_lies_where_our_messages_lie(
    tortured: Broker, publish: Callable[[], None]
) -> None:
    publish()

    tortured.forge([b"{}", b"\x00\xff"])

    assert len(tortured.waiting()) == MESSAGES + 2
