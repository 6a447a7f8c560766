"""PostgreSQL and Valkey together, owned by this process."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, PASSABLE, locate, open_home
from tasks_app.embedded.lock import FolderLock
from tasks_app.embedded.servers.postgres import Postgres
from tasks_app.embedded.servers.valkey import Valkey
from tasks_app.embedded.state import LOCK, StackState, Urls, remove_state, write_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tasks_app.embedded.servers.server import EmbeddedServer
    from tasks_app.embedded.state import Started


class Stack:
    """Both servers in one folder.

    ``supervised`` allows ``down`` in another process to end this process. With a ``database_url``
    PostgreSQL is not ours: then Valkey is the only server.
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
        self._lock = FolderLock(self.folder / LOCK)

    @property
    def servers(self) -> tuple[EmbeddedServer, ...]:
        """Our servers, in the order in which they start."""
        return (self.valkey,) if self._database_url else (self.postgres, self.valkey)

    @property
    def running(self) -> bool:
        """Whether our servers are alive."""
        return all(server.running for server in self.servers)

    @property
    def urls(self) -> Urls:
        """Where both are; a URL changes when its server comes up again on another port."""
        return Urls(self._database_url or self.postgres.url, self.valkey.url)

    @property
    def started(self) -> tuple[Started, ...]:
        """How our servers came up the last time."""
        return tuple(server.started for server in self.servers if server.started is not None)

    def up(self, on_ready: Callable[[Started], None] | None = None) -> Urls:
        """Start both and publish their URLs; ``on_ready`` is called as each answers.

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
        """Start the servers that have died, and return them."""
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

    def __exit__(self, *_: object) -> None:
        self.down()

    def _publish(self) -> None:
        state = StackState(os.getpid(), self._supervised, self.urls, self.started)
        write_state(self.folder, state)


@contextmanager
def temporary(*, persist: bool = False) -> Iterator[Stack]:
    """Yield a running stack with a new empty database; stop and remove it afterwards.

    Under root, data in pytest's ``tmp_path`` would go elsewhere, because pytest closes that folder
    to the servers' user; the folder here is open to it.
    """
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-"))
    folder.chmod(PASSABLE)
    root = open_home(folder).root
    try:
        with Stack(folder, persist=persist) as stack:
            yield stack
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
