"""PostgreSQL and Valkey together, owned by this process or by one in the background."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tasks_app.embedded.folder import (
    DEFAULT_FOLDER,
    AlreadyOwnedError,
    EmbeddedError,
    FolderLock,
    StackState,
    Started,
    Urls,
    absolute,
    lives,
    opened,
    read_state,
)
from tasks_app.embedded.servers import Postgres, Server, Valkey

CHECK_EVERY_S, LONGEST_PAUSE_S = 0.2, 10.0
UP_PATIENCE_S, DOWN_PATIENCE_S = 150, 60

logger = logging.getLogger(__name__)


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
        self.folder = absolute(folder)
        self.postgres = Postgres(self.folder)
        self.valkey = Valkey(self.folder, persist=persist)
        self._supervised = supervised
        self._database_url = database_url
        self._lock = FolderLock(self.folder)

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.valkey,) if self._database_url else (self.postgres, self.valkey)

    @property
    def running(self) -> bool:
        return all(server.running for server in self.servers)

    @property
    def urls(self) -> Urls:
        """Of both; a URL changes when its server starts again on another port."""
        return Urls(self._database_url or self.postgres.url, self.valkey.url)

    @property
    def started(self) -> tuple[Started, ...]:
        return tuple(server.started for server in self.servers if server.started is not None)

    def up(self, on_ready: Callable[[Started], None] = lambda _: None) -> Urls:
        """Start both and publish their URLs; ``on_ready`` is called as each answers.

        If one does not start, neither is left running.
        """
        with opened(self.folder):
            self._lock.acquire()
            try:
                self.start_missing(on_ready)
            except BaseException:
                self.down()
                raise
        return self.urls

    def start_missing(self, on_ready: Callable[[Started], None]) -> None:
        """Start the servers that do not run, and publish the URLs."""
        for server in self.servers:
            if not server.running:
                on_ready(server.start([self._lock.descriptor]))
        self._lock.publish(StackState(os.getpid(), self._supervised, self.urls, self.started))

    def down(self) -> None:
        """Stop both, the broker first; harmless when they are down."""
        for server in reversed(self.servers):
            server.stop()
        self._lock.release()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


@contextmanager
def temporary(*, persist: bool = False) -> Iterator[Stack]:
    """Yield a running stack with a new empty database; stop and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-"))
    folder.chmod(0o711)  # for the user that root's servers run as
    stack = Stack(folder, persist=persist)
    try:
        with stack:
            yield stack
    finally:
        for leftover in (stack.postgres.data, stack.valkey.data, folder):
            shutil.rmtree(leftover, ignore_errors=True)


def supervise(folder: Path | str, on_up: Callable[[Stack], None]) -> None:
    """Run both servers until SIGTERM, SIGINT or SIGHUP, and restart those that die."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    with Stack(folder, supervised=True) as stack:
        on_up(stack)
        pause_s = CHECK_EVERY_S
        while not stop.wait(pause_s) and stack._lock.is_current:  # noqa: SLF001
            try:
                if not stack.running:
                    stack.start_missing(lambda it: logger.warning("restarted %s: it died", it.name))
                pause_s = CHECK_EVERY_S
            except (EmbeddedError, OSError) as error:  # such as a full disk
                logger.error("%s", error)  # noqa: TRY400  the message is enough
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def up(folder: Path | str = DEFAULT_FOLDER) -> Urls:
    """Run ``tasks-app up`` in the background, and return when both servers answer."""
    path = absolute(folder)
    log = path / "log" / "supervisor.log"
    command = [sys.executable, "-m", "tasks_app", "up", "--folder", str(path)]
    with opened(path):
        started = subprocess.run(  # noqa: S603  a user's input is an argument
            ["/bin/sh", "-c", '"$@" >>"$0" 2>&1 & echo $!', str(log), *command],
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
        )
    owner, deadline = int(started.stdout), time.monotonic() + UP_PATIENCE_S
    while lives(owner) and time.monotonic() < deadline:
        state = read_state(path)
        if state is not None and state.owner == owner:
            return state.urls
        time.sleep(0.05)
    lines = log.read_text(encoding="utf-8").splitlines() or ["The servers did not start."]
    raise EmbeddedError(lines[-1])


def down(folder: Path | str = DEFAULT_FOLDER) -> bool:
    """Stop the supervisor of a folder; return whether it had one."""
    path = absolute(folder)
    if not path.exists():
        return False
    lock, stopped, deadline = FolderLock(path), False, time.monotonic() + DOWN_PATIENCE_S
    while time.monotonic() < deadline:
        state = read_state(path)
        if state is not None and not state.supervised:
            raise EmbeddedError(
                f"The servers in {path} run inside process {state.owner}, which is not "
                "`tasks-app up`. Stop that process."
            )
        with suppress(AlreadyOwnedError, ProcessLookupError):  # it comes up, or goes down
            if state is not None:
                stopped = True
                os.kill(state.owner, signal.SIGTERM)
            lock.acquire()
            lock.release()
            return stopped
        time.sleep(0.05)
    raise EmbeddedError(
        f"The owner of {path} does not end. Kill it with `kill -9` and run `tasks-app down` again."
    )
