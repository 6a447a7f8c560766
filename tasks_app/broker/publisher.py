"""Publishing hints: with an app and a connection of our own, so that the producer's stay untouched.

The process may be a web server, or a worker of another Celery app: the app here is never the
current one, listens to no signals and knows no tasks. Queues are made by workers, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from celery import Celery

from tasks_app.broker.config import configuration
from tasks_app.broker.guard.other_pools import own_name
from tasks_app.broker.internals import KEPT_SOCKET
from tasks_app.broker.publish.connection import BrokerConnection
from tasks_app.broker.messages import Envelope
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.hints import HINTS


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


class CeleryHints:
    """Publishes hints, for one thread at a time. It connects when first used."""

    def __init__(self, settings: Settings) -> None:
        app = Celery("tasks_app", set_as_current=False, fixups=[])
        app.conf.update(configuration(settings), task_always_eager=False)
        self.broker = BrokerConnection(app)
        self.envelope = Envelope(app, HINTS.pool or own_name())
        self._kept: HintSocket | None = None

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one hint."""
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
        """Read the reply."""
        assert self._kept is not None  # noqa: S101  start() returned True
        self._kept.socket.read_response()

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has made it yet."""
        self._give_back()
        return self.broker.depth(queue)

    def _put(self, channel: Any, queue: str, ids: Sequence[int]) -> None:
        if self.broker.connection.transport.driver_type == "redis" and KEPT_SOCKET.works:
            self._push(channel, queue, self.envelope.text(queue, None, ids))
        else:
            self.envelope.put(channel, queue, None, ids)

    def _push(self, channel: Any, queue: str, text: str) -> None:
        """Push a text into a list of Redis by one command, past kombu.

        The socket is kept for the next one, because getting one costs as much as all the rest.
        """
        pool = channel.client.connection_pool
        if self._kept is None or self._kept.pool is not pool:
            try:
                socket = pool.get_connection()
            except TypeError:  # redis-py before 5.3 asks for a name, of which later ones warn
                socket = pool.get_connection("LPUSH")
            self._kept = HintSocket(channel, pool, socket)
        self._kept.write(queue, text)
        self._kept.socket.read_response()

    def _give_back(self) -> None:
        """Return the socket to its pool, which would open another to look at a queue."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            kept.pool.release(kept.socket)
