"""Sending many messages in a few round trips, on one connection for each thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from celery import Celery

from tasks_app.broker.internals import ONE_CLIENT
from tasks_app.broker.messages import WAKE, Envelope
from tasks_app.broker.outage import BlockedError, watch_alarms
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.runtime.hint_sender import Message

Refused = dict[int, PublishError]


def send(connection: Any, envelope: Envelope, left: dict[int, Message]) -> Refused:
    """Send what is left; return what the broker refused, by place.

    Raises:
        Exception: the connection's; the messages still in ``left`` may have been sent.
    """
    kind = connection.transport.driver_type
    if kind == "redis" and ONE_CLIENT.works:
        return _pipelined(connection, envelope, left)
    if kind == "amqp":
        return _confirmed(connection, envelope, left)
    for place, message in list(left.items()):
        envelope.put(connection.default_channel, message.queue, WAKE, message.ids)
        del left[place]
    return {}


def _pipelined(connection: Any, envelope: Envelope, left: dict[int, Message]) -> Refused:
    """Redis: one pipeline, in which each command has its own reply."""
    channel = connection.default_channel
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
        own = channel.conn_or_acquire
        channel.conn_or_acquire = lambda _client=None: nullcontext(pipeline)
        try:
            for message in left.values():
                envelope.put(channel, message.queue, WAKE, message.ids)
        finally:
            channel.conn_or_acquire = own
        answers = pipeline.execute(raise_on_error=False)
    refused = {
        place: PublishError(
            f"The broker refused a message ({type(answer).__name__}). "
            "The tasks are safe in the database; check the broker's memory and rights."
        )
        for place, answer in zip(left, answers, strict=True)
        if isinstance(answer, Exception)
    }
    left.clear()
    return refused


def _confirmed(connection: Any, envelope: Envelope, left: dict[int, Message]) -> Refused:
    """RabbitMQ: all on one channel, then the confirms; an unroutable message is returned first."""
    refused: Refused = {}
    missing: set[str] = set()
    waiting = dict(enumerate(left, 1))  # a new channel counts from one

    def answered(tag: int, multiple: bool, *, taken: bool) -> None:  # noqa: FBT001  AMQP's
        for number in [n for n in waiting if n == tag or (multiple and n < tag)]:
            place = waiting.pop(number)
            queue = left.pop(place).queue
            if queue in missing:
                refused[place] = NoQueueError(queue)
            elif not taken:
                refused[place] = PublishError("The broker did not keep a message.")

    channel = connection.channel()
    channel.events["basic_return"].add(lambda _error, _to, queue, _message: missing.add(queue))
    channel.events["basic_ack"].add(lambda *answer: answered(*answer, taken=True))
    channel.events["basic_nack"].add(lambda *answer: answered(*answer, taken=False))
    channel.confirm_select()
    channel.basic_publish = partial(type(channel).basic_publish, channel)  # without waiting
    for message in list(left.values()):
        envelope.put(channel, message.queue, WAKE, message.ids, mandatory=True)
    ends = time.monotonic() + 5.0
    while waiting:
        channel.connection.drain_events(timeout=max(0.001, ends - time.monotonic()))
    channel.close()  # not after an error: a silent broker would not answer this either
    return refused


T = TypeVar("T")


class BrokerConnection:
    """A connection and its channel, replaced after they died."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.connection: Any = None
        self.channel: Any = None

    def do(self, act: Callable[[Any], T]) -> T:
        """Call ``act`` with the channel, if necessary twice: an idle connection may have died.

        Raises:
            Exception: what it raised on a fresh connection, which is then dropped.
        """
        if self.connection is not None:
            try:
                return act(self.channel)
            except BlockedError:  # a fresh one would be refused, too
                self.drop()
                raise
            except Exception:
                self.drop()
        try:
            self.connection = self.app.connection_for_write()
            self.channel = _one_client(self.connection.default_channel)
            watch_alarms(self.connection)
            return act(self.channel)
        except Exception:
            self.drop()
            raise

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait, without declaring the queue.

        None: no worker has created it yet.

        Raises:
            Exception: the broker does not answer.
        """

        def count(channel: Any) -> int | None:
            # Redis declares nothing in any case, and a passive declare looks there for an empty
            # list, without our key prefix.
            if self.connection.transport.driver_type != "amqp":
                return int(channel.queue_declare(queue).message_count)
            own = self.connection.channel()  # a queue that is missing closes it
            try:
                number = int(own.queue_declare(queue, passive=True).message_count)
            except self.connection.channel_errors:
                return None
            own.close()  # not after a time-out: a silent broker would not answer this either
            return number

        return self.do(count)

    def drop(self) -> None:
        """Drop the connection without a goodbye, which the broker may not answer.

        A late reply would be taken for the next message's.
        """
        connection, channel = self.connection, self.channel
        self.connection = self.channel = None
        if hasattr(getattr(channel, "connection", None), "collect"):  # AMQP would say goodbye
            channel.connection.collect()
        if connection is not None:
            connection.collect()


def _one_client(channel: Any) -> Any:
    """Let a channel to Redis keep its client; kombu makes one for each message, at twice the cost.

    This is safe because one thread uses the channel, and consumes nothing.
    """
    if hasattr(channel, "conn_or_acquire") and ONE_CLIENT.works:
        channel.conn_or_acquire = lambda client=None: nullcontext(client or channel.client)
    return channel
