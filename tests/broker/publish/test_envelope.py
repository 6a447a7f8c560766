"""The envelope: made once, and yet what Celery itself would send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Queue

from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.messages import POOL_VARIABLE
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.settings import Settings
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
