"""Publishing messages on a connection of its own, bounded in time by socket timeouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery import Celery

from tasks_app.broker.guard.other_pools import own_name
from tasks_app.broker.publish.blocked import BlockedError, try_to_send
from tasks_app.broker.publish.connection import depth_of
from tasks_app.broker.publish.envelope import Envelope
from tasks_app.broker.publish.sending import send
from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.pool.dispatch.ledger import Dispatch

PATIENCE_S = 2.0
TRIES = 2
"""An idle connection may have died; the second one is fresh."""


class CeleryPublisher:
    """Publishes ids only. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._envelope = Envelope(app, own_name())
        self._connection: Any = None

    def publish(self, messages: Sequence[Dispatch]) -> dict[int, PublishError]:
        """Send messages together; return the errors by dispatch id. Raises nothing.

        Queues are made by the workers that serve them, never here.
        """
        left = {message.id: message for message in messages}
        wrong: dict[int, PublishError] = {}
        certain = True
        for _ in range(TRIES):
            try:
                if self._connection is None:
                    self._connection = self._app.connection_for_write()
                wrong |= send(self._connection, self._envelope, left)
            except Exception as error:
                self.close()
                certain = certain and _was_refused(error)
                trouble = _away(error, certain=certain)
                if isinstance(error, BlockedError):
                    break
            if not left:
                return wrong
        return wrong | dict.fromkeys(left, trouble)

    def close(self) -> None:
        """Drop the connection at once: a late reply would be taken for that of the next message."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue, 0 if it does not exist; None: unknown."""
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
        """Pass if the broker answers and takes messages.

        Raises:
            PublishError: it does not.
        """
        connection = self._app.connection_for_write()
        try:
            connection.ensure_connection(max_retries=1, timeout=PATIENCE_S)
            try_to_send(connection, PATIENCE_S)
            connection.release()
        except Exception as error:
            connection.collect()
            raise _away(error, certain=_was_refused(error)) from error


def _away(error: Exception, *, certain: bool) -> PublishError:
    if isinstance(error, BlockedError):
        return RefusedError(
            "The broker refuses messages: it has an alarm of memory or disk (connection.blocked). "
            "The tasks are safe in the database; see rabbitmqctl status."
        )
    return PublishError(
        f"The broker did not take a message ({_reason(error)}). "
        "The tasks are safe in the database; check that the broker runs.",
        certain=certain,
    )


def _was_refused(error: BaseException) -> bool:
    """Say whether nobody listened at all: then nothing was sent."""
    return any(isinstance(each, ConnectionRefusedError) for each in _chain(error))


def _reason(error: BaseException) -> str:
    """Name the operating system's error; the libraries' names around it say less."""
    said = [type(each).__name__ for each in _chain(error) if isinstance(each, OSError)]
    return said[-1] if said else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__
