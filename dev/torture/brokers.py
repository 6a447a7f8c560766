"""Faults of a broker and of the messages in it: the protocol, and Valkey."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import redis

from tasks_app.broker.defaults import transport_settings
from tasks_app.embedded.servers import Valkey

QUEUE = "default"
SOME = 20
"""How many waiting messages are looked at."""


class Broker(Protocol):
    """Changes messages in the tasks' queue, past the proxy."""

    @property
    def url(self) -> str:
        """Where clients connect."""

    def kill(self) -> None:
        """SIGKILL it."""

    def wipe(self) -> None:
        """Delete its files; it must be down."""

    def start(self) -> object:
        """Start it again at its address."""

    def forget(self) -> None:
        """Delete everything in it while it runs."""

    def waiting(self) -> list[Any]:
        """Return copies of some messages that wait."""

    def deliver(self, messages: Iterable[Any]) -> None:
        """Put what :meth:`waiting` returned into the queue."""

    def lose_half(self) -> None:
        """Let half of what waits vanish."""

    def forge(self, bodies: Iterable[bytes]) -> None:
        """Put bytes into the queue as they are."""

    def full(self) -> AbstractContextManager[None]:
        """Let it refuse to take anything, for the block."""


class ValkeyBroker:
    """A queue is a list, whose key is its name behind a prefix of ours."""

    def __init__(self, server: Valkey) -> None:
        self._server = server
        options = transport_settings("redis://")["broker_transport_options"]
        self._key = f"{options['global_keyprefix']}{QUEUE}"
        self.kill, self.start = server.kill, server.start

    @property
    def url(self) -> str:
        return self._server.url

    def wipe(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self._server.data)

    def forget(self) -> None:
        """Flush it."""
        with self._client() as client:
            client.flushall()

    def waiting(self) -> list[Any]:
        """Read the list's end that was filled last."""
        with self._client() as client:
            return list(client.lrange(self._key, 0, SOME))

    def deliver(self, messages: Iterable[Any]) -> None:
        """Push them as they were."""
        with self._client() as client:
            for message in messages:
                client.lpush(self._key, message)

    def lose_half(self) -> None:
        """Trim the list."""
        with self._client() as client:
            client.ltrim(self._key, 0, int(client.llen(self._key)) // 2)

    forge = deliver

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave it one byte of memory."""
        with self._client() as client:
            client.config_set("maxmemory", "1")
            yield
            client.config_set("maxmemory", "0")

    def _client(self) -> Any:
        return redis.Redis.from_url(self.url)
