"""PostgreSQL and Valkey together, owned by this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, locate, open_home
from tasks_app.embedded.lock import Lock
from tasks_app.embedded.postgres import Postgres
from tasks_app.embedded.state import LOCK, State, Urls, remove_state, write_state
from tasks_app.embedded.valkey import Valkey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from tasks_app.embedded.server import Server
    from tasks_app.embedded.started import Started


class Stack:
    """Both servers in one folder, as long as this object is up.

    ``supervised`` tells ``down`` in another process that it may end this process. With a
    ``database_url`` PostgreSQL is somebody else's: then Valkey is the only server.
    """

    def __init__(
        self,
        folder: Path | str = DEFAULT_FOLDER,
        *,
        persist: bool = True,
        supervised: bool = False,
        database_url: str | None = None,
    ) -> None:
        self.folder = locate(folder)
        self.postgres = Postgres(self.folder)
        self.valkey = Valkey(self.folder, persist=persist)
        self._supervised = supervised
        self._database_url = database_url
        self._lock = Lock(self.folder / LOCK)

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that are ours, in the order in which they start."""
        return (self.valkey,) if self._database_url else (self.postgres, self.valkey)

    @property
    def running(self) -> bool:
        """Whether our servers are alive."""
        return all(server.running for server in self.servers)

    @property
    def urls(self) -> Urls:
        """Where both are; they may change when one comes up again on another port."""
        return Urls(self._database_url or self.postgres.url, self.valkey.url)

    @property
    def started(self) -> tuple[Started, ...]:
        """How both came up the last time."""
        return tuple(server.started for server in self.servers if server.started is not None)

    def up(self, on_ready: Callable[[Started], None] | None = None) -> Urls:
        """Start both and publish their URLs; ``on_ready`` hears of each as it answers.

        Raises:
            AlreadyOwnedError: the folder has an owner, in this process or another.
            EmbeddedError: a server does not start; then neither is left running.
        """
        open_home(self.folder)
        self._lock.acquire()
        try:
            remove_state(self.folder)
            for server in self.servers:
                started = server.start()
                if on_ready is not None:
                    on_ready(started)
            self._publish()
        except BaseException:
            self.down()
            raise
        return self.urls

    def heal(self) -> tuple[Started, ...]:
        """Start what has died and return it."""
        if not self._lock.is_mine:
            raise EmbeddedError("This stack is not up. Call up() first.")
        healed = tuple(server.start() for server in self.servers if not server.running)
        if healed:
            self._publish()
        return healed

    def down(self) -> None:
        """Stop both, the broker first; harmless when they are down."""
        if self._lock.is_mine:
            remove_state(self.folder)
        for server in reversed(self.servers):
            server.stop()
        self._lock.release()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def _publish(self) -> None:
        state = State(os.getpid(), self._supervised, self.urls, self.started)
        write_state(self.folder, state)
