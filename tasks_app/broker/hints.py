"""Hints out: an app and a connection of their own, so that nothing of the producer's is touched.

The process may be a web server, or a worker of somebody else's Celery: the app here is nobody's
current app, listens to no signals and knows no tasks. It makes no queues either: workers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.exceptions import ChannelError

from tasks_app.broker.configuration import configuration
from tasks_app.broker.depth import depth_of
from tasks_app.broker.envelope import Envelope
from tasks_app.broker.line import Line
from tasks_app.domain.settings import Settings

NO_SUCH_QUEUE = "404"


class CeleryHints:
    """Publishes hints for one thread of one process. It connects when it is first used."""

    def __init__(self, settings: Settings) -> None:
        app = Celery("tasks_app", set_as_current=False, fixups=[])
        app.conf.update(configuration(settings), task_always_eager=False)
        self._line = Line(app)
        self._envelope = Envelope(app)
        self._kept: tuple[Any, Any] | None = None

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message that no ledger knows."""
        self._line.do(lambda channel: self._put(channel, queue, ids))

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue, or None: no worker has made it yet."""
        return self._line.do(lambda channel: self._depth(channel, queue))

    def _put(self, channel: Any, queue: str, ids: Sequence[int]) -> None:
        if self._line.connection.transport.driver_type == "redis":
            self._push(channel, queue, self._envelope.text(queue, None, ids))
        else:
            self._envelope.put(channel, queue, None, ids)

    def _push(self, channel: Any, queue: str, text: str) -> None:
        """Put a text into a list of Redis: one command, without what goes around it for all others.

        The socket is kept from one to the next; to get one costs as much as all the rest.
        """
        command = ["LPUSH", channel._q_for_pri(queue, 0), text]  # noqa: SLF001
        if channel.global_keyprefix:
            command = channel.client._prefix_args(command)  # noqa: SLF001  as kombu does for BRPOP
        pool = channel.client.connection_pool
        if self._kept is None or self._kept[0] is not pool:
            self._kept = pool, pool.get_connection()
        _, socket = self._kept
        socket.send_command(*command)
        socket.read_response()

    def _give_back(self) -> None:
        """Let the pool have the socket again: for a look at a queue it would open another."""
        if self._kept is not None:
            pool, socket = self._kept
            self._kept = None
            pool.release(socket)

    def _depth(self, channel: Any, queue: str) -> int | None:
        self._give_back()
        try:
            return depth_of(self._line.connection, channel, queue)
        except ChannelError as error:
            if str(error.reply_code) != NO_SUCH_QUEUE:
                raise
            self._line.drop()  # RabbitMQ closes the channel with its answer
            return None
