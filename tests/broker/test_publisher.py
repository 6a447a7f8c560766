"""What the dispatcher asks a broker, on each of them; no worker is needed for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import Queue

from tasks_app.broker.defaults import celery_defaults
from tasks_app.broker.publisher import CeleryPublisher
from tasks_app.broker.tasks import register
from tasks_app.domain.errors import PublishError
from tests.broker.conftest import House

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
