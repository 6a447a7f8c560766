"""Sending: many messages in a few round trips, in the way of each kind of broker.

What the broker has answered for is taken out of what is ``left``, so that whoever loses the
connection knows of the others that nobody knows whether they were sent.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import Any

from tasks_app.broker.internals import ONE_CLIENT
from tasks_app.broker.publish.blocked import heed_alarms
from tasks_app.broker.publish.envelope import Envelope
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.pool.dispatch.ledger import Dispatch

CONFIRMED_WITHIN_S = 5.0


def send(connection: Any, envelope: Envelope, left: dict[int, Dispatch]) -> dict[int, PublishError]:
    """Send what is left; return what the broker refused, by dispatch id.

    Raises:
        Exception: the connection's; what is still left then was perhaps sent.
    """
    kind = connection.transport.driver_type
    if kind == "redis" and ONE_CLIENT.works:
        return _pipelined(connection, envelope, left)
    way = _confirmed if kind == "amqp" else _one_by_one
    return way(connection, envelope, left)


def _pipelined(
    connection: Any, envelope: Envelope, left: dict[int, Dispatch]
) -> dict[int, PublishError]:
    """Redis: one pipeline, of which each command is answered for itself."""
    channel = connection.default_channel
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
        own = channel.conn_or_acquire
        channel.conn_or_acquire = lambda _client=None: nullcontext(pipeline)
        try:
            for message in left.values():
                envelope.put(channel, message.queue, message.id, message.ids)
        finally:
            channel.conn_or_acquire = own
        answers = pipeline.execute(raise_on_error=False)
    refused = {
        message.id: PublishError(
            f"The broker refused a message ({type(answer).__name__}). "
            "The tasks are safe in the database; check the broker's memory and rights.",
            certain=True,
        )
        for message, answer in zip(left.values(), answers, strict=True)
        if isinstance(answer, Exception)
    }
    left.clear()
    return refused


def _confirmed(
    connection: Any, envelope: Envelope, left: dict[int, Dispatch]
) -> dict[int, PublishError]:
    """RabbitMQ: all on one channel, then their confirms; what no queue takes comes back before."""
    refused: dict[int, PublishError] = {}
    missing: set[str] = set()
    waiting = dict(enumerate(left.values(), 1))  # a new channel counts from one

    def answered(tag: int, multiple: bool, *, taken: bool) -> None:  # noqa: FBT001  AMQP's
        for number in [n for n in waiting if n == tag or (multiple and n < tag)]:
            message = waiting.pop(number)
            del left[message.id]
            if message.queue in missing:
                refused[message.id] = NoQueueError(message.queue)
            elif not taken:
                refused[message.id] = PublishError("The broker did not keep a message.")

    heed_alarms(connection)
    channel = connection.channel()
    channel.events["basic_return"].add(lambda _error, _to, queue, _message: missing.add(queue))
    channel.events["basic_ack"].add(lambda *answer: answered(*answer, taken=True))
    channel.events["basic_nack"].add(lambda *answer: answered(*answer, taken=False))
    channel.confirm_select()
    channel.basic_publish = partial(type(channel).basic_publish, channel)  # or it waits each time
    for message in list(left.values()):
        envelope.put(channel, message.queue, message.id, message.ids, mandatory=True)
    ends = time.monotonic() + CONFIRMED_WITHIN_S
    while waiting:
        channel.connection.drain_events(timeout=max(0.001, ends - time.monotonic()))
    channel.close()  # not after an error: a broker that is deaf does not answer to that, either
    return refused


def _one_by_one(
    connection: Any, envelope: Envelope, left: dict[int, Dispatch]
) -> dict[int, PublishError]:
    for message in list(left.values()):
        envelope.put(connection.default_channel, message.queue, message.id, message.ids)
        del left[message.id]
    return {}
