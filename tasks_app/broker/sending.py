"""Sending many messages in a few round trips, for each kind of broker.

A message that the broker has answered for is removed from ``left``. After a lost connection the
others may or may not have been sent.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import Any

from tasks_app.broker.internals import ONE_CLIENT
from tasks_app.broker.messages import WAKE
from tasks_app.broker.messages import Envelope
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.runtime.publisher import Message

CONFIRMED_WITHIN_S = 5.0


def send(connection: Any, envelope: Envelope, left: dict[int, Message]) -> dict[int, PublishError]:
    """Send what is left; return what the broker refused, by place.

    Raises:
        Exception: the connection's; the messages still in ``left`` may have been sent.
    """
    kind = connection.transport.driver_type
    if kind == "redis" and ONE_CLIENT.works:
        return _pipelined(connection, envelope, left)
    way = _confirmed if kind == "amqp" else _one_by_one
    return way(connection, envelope, left)


def _pipelined(
    connection: Any, envelope: Envelope, left: dict[int, Message]
) -> dict[int, PublishError]:
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


def _confirmed(
    connection: Any, envelope: Envelope, left: dict[int, Message]
) -> dict[int, PublishError]:
    """RabbitMQ: all on one channel, then the confirms; an unroutable message is returned first."""
    refused: dict[int, PublishError] = {}
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
    ends = time.monotonic() + CONFIRMED_WITHIN_S
    while waiting:
        channel.connection.drain_events(timeout=max(0.001, ends - time.monotonic()))
    channel.close()  # not after an error: a silent broker would not answer this either
    return refused


def _one_by_one(
    connection: Any, envelope: Envelope, left: dict[int, Message]
) -> dict[int, PublishError]:
    for place, message in list(left.items()):
        envelope.put(connection.default_channel, message.queue, WAKE, message.ids)
        del left[place]
    return {}
