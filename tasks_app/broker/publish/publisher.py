"""Publishing messages on a connection of its own, bounded in time by socket timeouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery import Celery

from tasks_app.broker.guard.other_pools import own_name
from tasks_app.broker.publish.blocked import BlockedError, try_to_send
from tasks_app.broker.publish.connection import BrokerConnection
from tasks_app.broker.messages import Envelope
from tasks_app.broker.sending import send
from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.runtime.publisher import Message

PATIENCE_S = 2.0


class CeleryPublisher:
    """Publishes ids only. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._envelope = Envelope(app, own_name())
        self._broker = BrokerConnection(app)

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        """Send messages together; return the errors by the place of each. Raises nothing.

        Queues are made by the workers that serve them, never here.
        """
        left = dict(enumerate(messages))
        try:
            return self._broker.do(
                lambda _channel: send(self._broker.connection, self._envelope, left)
            )
        except Exception as error:
            return dict.fromkeys(left, _away(error))

    def close(self) -> None:
        """Drop the connection at once."""
        self._broker.drop()

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in each queue; 0 where the broker has no such queue.

        Raises:
            PublishError: the broker does not answer.
        """
        try:
            return {queue: self._broker.depth(queue) or 0 for queue in queues}
        except Exception as error:
            raise _away(error) from error

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
            raise _away(error) from error


def _away(error: Exception) -> PublishError:
    if isinstance(error, BlockedError):
        return RefusedError(
            "The broker refuses messages: it has an alarm of memory or disk (connection.blocked). "
            "The tasks are safe in the database; see rabbitmqctl status."
        )
    return PublishError(
        f"The broker did not take a message ({_reason(error)}). "
        "The tasks are safe in the database; check that the broker runs."
    )


def _reason(error: BaseException) -> str:
    """Name the operating system's error; the libraries' names around it say less."""
    said = [type(each).__name__ for each in _chain(error) if isinstance(each, OSError)]
    return said[-1] if said else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__
