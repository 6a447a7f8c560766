"""Publishing messages, by a worker's leader and as hints by producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from celery import Celery

from tasks_app.broker.config import celery_configuration
from tasks_app.broker.internals import KEPT_SOCKET
from tasks_app.broker.messages import Envelope, pool_name_here
from tasks_app.broker.outage import BlockedError, causes, try_to_send
from tasks_app.broker.sending import BrokerConnection, send
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.runtime.hint_sender import Message
from tasks_app.runtime.hints import HINTS

PATIENCE_S = 2.0


class CeleryPublisher:
    """Publishes ids only. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._envelope = Envelope(app, pool_name_here())
        self._broker = BrokerConnection(app)

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        left = dict(enumerate(messages))
        try:
            return self._broker.do(
                lambda _channel: send(self._broker.connection, self._envelope, left)
            )
        except Exception as error:
            return dict.fromkeys(left, _publish_error(error))

    def close(self) -> None:
        self._broker.drop()

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in each queue; 0 if the broker has no such queue.

        Raises:
            PublishError: the broker does not answer.
        """
        try:
            return {queue: self._broker.depth(queue) or 0 for queue in queues}
        except Exception as error:
            raise _publish_error(error) from error

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
            raise _publish_error(error) from error


def _publish_error(error: Exception) -> PublishError:
    if isinstance(error, BlockedError):
        return RefusedError(
            "The broker refuses messages: it has an alarm of memory or disk (connection.blocked). "
            "The tasks are safe in the database; see rabbitmqctl status."
        )
    # The operating system's error says more than the libraries' errors around it.
    names = [type(each).__name__ for each in causes(error) if isinstance(each, OSError)]
    return PublishError(
        f"The broker did not take a message ({names[-1] if names else type(error).__name__}). "
        "The tasks are safe in the database; check that the broker runs."
    )


class CeleryHints:
    """Publishes hints, for one thread at a time. It connects when first used."""

    def __init__(self, settings: Settings) -> None:
        app = Celery("tasks_app", set_as_current=False, fixups=[])
        app.conf.update(celery_configuration(settings), task_always_eager=False)
        self.broker = BrokerConnection(app)
        self.envelope = Envelope(app, HINTS.pool or pool_name_here())
        self._kept: HintSocket | None = None

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        self.broker.do(lambda channel: self._put(channel, queue, ids))

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        """Send one over an open socket to Redis, and leave the reply to :meth:`finish`.

        False: there is none. Earlier commands were answered, so the send does not block.
        """
        if self._kept is None or self._kept.socket._sock is None:  # noqa: SLF001  it would connect
            return False
        self._kept.write(queue, self.envelope.text(queue, None, ids), check_health=False)
        return True

    def finish(self) -> None:
        assert self._kept is not None  # noqa: S101  start() returned True
        self._kept.socket.read_response()

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has created it yet."""
        if self._kept is not None:  # or the pool would open another socket
            kept, self._kept = self._kept, None
            kept.pool.release(kept.socket)
        return self.broker.depth(queue)

    def _put(self, channel: Any, queue: str, ids: Sequence[int]) -> None:
        """Send a hint; to Redis by one command, past kombu.

        The socket is kept for the next one, because getting one costs as much as all the rest.
        """
        if self.broker.connection.transport.driver_type != "redis" or not KEPT_SOCKET.works:
            self.envelope.put(channel, queue, None, ids)
            return
        text = self.envelope.text(queue, None, ids)
        pool = channel.client.connection_pool
        if self._kept is None or self._kept.pool is not pool:
            try:
                socket = pool.get_connection()
            except TypeError:  # redis-py before 5.3 asks for a name, of which later ones warn
                socket = pool.get_connection("LPUSH")
            self._kept = HintSocket(channel, pool, socket)
        self._kept.write(queue, text)
        self._kept.socket.read_response()


class HintSocket(NamedTuple):
    """An open socket to Redis, for the lists of one channel."""

    channel: Any
    pool: Any
    socket: Any

    def write(self, queue: str, text: str, *, check_health: bool = True) -> None:
        """Send the command that pushes a text into a list; the reply is left unread."""
        command = ["LPUSH", self.channel._q_for_pri(queue, 0), text]  # noqa: SLF001
        if self.channel.global_keyprefix:
            command = self.channel.client._prefix_args(command)  # noqa: SLF001  as kombu's BRPOP
        self.socket.send_command(*command, check_health=check_health)
