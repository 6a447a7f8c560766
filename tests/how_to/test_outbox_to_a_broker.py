"""The guide to events, against a RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import get_task
from tasks_app.embedded.process import choose_port
from tasks_app.testing import crash_next, created, drain, travel
from tests.broker.rabbitmq import NO_RABBITMQ, virtual_host, why_not
from tests.docs.reading import blocks
from tests.how_to.conftest import Load
from tests.how_to.pages import page
from tests.tiers import starts_processes


@pytest.fixture(scope="module")
def events(load: Load) -> Any:
    return load("outbox-to-a-broker/events.py")


class Consumer:
    """Another service."""

    def __init__(self, connection: kombu.Connection, exchange: kombu.Exchange) -> None:
        queue = kombu.Queue("orders", exchange, routing_key="order.*", queue_arguments={})
        self._queue = connection.SimpleQueue(queue)

    def received(self) -> list[tuple[Any, str]]:
        """What came: the numbers of events, and their ids."""
        found = []
        while True:
            try:
                message = self._queue.get(block=False)
            except self._queue.Empty:
                return found
            message.ack()
            found.append((message.payload["data"]["number"], message.properties["message_id"]))


@pytest.fixture(scope="module")
@starts_processes
def url() -> Iterator[str]:
    if reason := why_not():
        pytest.skip(f"{NO_RABBITMQ}: {reason}")
    with virtual_host() as rabbit:
        yield rabbit.url


@pytest.fixture
def consumer(events: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    monkeypatch.setenv("EVENTS_URL", url)
    with kombu.Connection(url) as connection:
        consumer = Consumer(connection, events.EXCHANGE)
        consumer.received()
        yield consumer


def test_a_copy_comes_before_the_next_event(
    events: Any, session: Session, consumer: Consumer
) -> None:
    for number in (1, 2):
        events.emit(session, "order.paid", "order:7", number=number)
    crash_next("event.publish")
    drain(session).assert_succeeded()
    (one, first), (again, copy), (two, second) = consumer.received()
    assert (one, again, two) == (1, 1, 2)
    assert first == copy != second


@pytest.mark.test_all
def test_an_event_waits_for_the_broker_and_the_next_one_behind_it(
    events: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS_URL", f"amqp://127.0.0.1:{choose_port(None)}")
    for number in (1, 2):
        events.emit(session, "order.paid", "order:7", number=number)
    for _ in range(6):  # more often than `retry` allows
        drained = drain(session)
        assert len(drained.waiting) == 1
        travel("10m", session)
    first, second = created(session)
    assert get_task(session, first.id).failures == 0
    assert get_task(session, second.id).attempt == 0


def test_nothing_is_told_of_what_is_rolled_back(events: Any, session: Session) -> None:
    with session.begin_nested() as inner:
        events.emit(session, "order.paid", "order:7", number=1)
        inner.rollback()
    assert created(session) == []


def test_a_consumer_knows_what_it_has_seen(session: Session) -> None:
    session.execute(text("CREATE TABLE seen_event (id text PRIMARY KEY)"))
    (insert,) = blocks(page("outbox-to-a-broker"), "sql")
    assert session.scalar(text(insert), {"message_id": "a"}) == "a"
    assert session.scalar(text(insert), {"message_id": "a"}) is None
