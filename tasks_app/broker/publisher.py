"""Messages out: through Celery, bounded in time by the defaults' socket timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqp.exceptions import ChannelError
from celery import Celery

from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.depth import depth_of
from tasks_app.domain.errors import NoQueueError, PublishError

PATIENCE_S = 2.0
NO_ROUTE = 312


class CeleryPublisher:
    """Publishes ids, and nothing but ids."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, queue: str, dispatch_id: int, ids: Sequence[int]) -> None:
        """Send one message. Queues are made by the workers that serve them, never here.

        Raises:
            NoQueueError: nobody has made that queue, or somebody deleted it.
            PublishError: the message was perhaps not sent.
        """
        try:
            with self._app.producer_or_acquire() as producer:
                self._send(producer, queue, dispatch_id, ids)
        except Exception as error:
            if isinstance(error, ChannelError) and error.reply_code == NO_ROUTE:
                raise NoQueueError(queue) from error
            raise _away(error) from error

    def _send(self, producer: Any, queue: str, dispatch_id: int, ids: Sequence[int]) -> None:
        try:
            self._app.tasks[EXECUTE].apply_async(
                args=(dispatch_id, list(ids)),
                queue=queue,
                ignore_result=True,
                argsrepr="(ids)",
                producer=producer,
                declare=[],
                mandatory=True,  # RabbitMQ says when no queue took it
            )
        except Exception:
            # A late answer to this message would be taken for the next one's.
            producer.connection.collect()
            raise

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue, 0 if it is not there; None: nobody knows."""
        try:
            with self._app.connection_or_acquire() as connection:
                try:
                    with connection.channel() as channel:
                        return depth_of(connection, channel, queue)
                except connection.channel_errors:
                    return 0
        except Exception:
            return None

    def probe(self) -> None:
        """Pass if the broker answers.

        Raises:
            PublishError: it does not.
        """
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=PATIENCE_S)
        except Exception as error:
            raise _away(error) from error


def _away(error: Exception) -> PublishError:
    return PublishError(
        f"The broker did not take a message ({type(error).__name__}). "
        "The tasks are safe in the database; check that the broker runs.",
        certain=_was_refused(error),
    )


def _was_refused(error: BaseException | None) -> bool:
    """Tell whether nobody listened at all: then nothing was sent."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False
