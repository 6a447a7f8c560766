"""The life of one server: start, stop, kill, restart, wipe; subclasses say which server it is."""

from __future__ import annotations

import shutil
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER, Home, locate, open_home
from tasks_app.embedded.lock import FolderLock
from tasks_app.embedded.memory import Memory, recall, remember
from tasks_app.embedded.servers.orphans import stop_orphans
from tasks_app.embedded.servers.ports import choose_port
from tasks_app.embedded.servers.process import Recipe, ServerProcess
from tasks_app.embedded.state import Started

if TYPE_CHECKING:
    from pathlib import Path

START_PATIENCE_S = 60  # recovery after a crash replays the log first
POLL_S = 0.01
PORT_TRIES = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says it is: it may be Redis where Valkey was asked for."""

    name: str
    version: str


class EmbeddedServer(ABC):
    """A server in a folder that this object owns from ``start`` to ``stop``.

    ``kill`` keeps the ownership, so that nobody else starts the server in between.
    """

    title: ClassVar[str]
    key: ClassVar[str]  # names its data folder, its lock, its memory and its log
    process_names: ClassVar[tuple[str, ...]]
    farewell: ClassVar[signal.Signals]
    stop_patience_s: ClassVar[float]

    def __init__(self, folder: Path | str = DEFAULT_FOLDER) -> None:
        self.folder = locate(folder)
        self.started: Started | None = None
        self._lock = FolderLock(self.folder / f"{self.key}.lock")
        self._process: ServerProcess | None = None
        self._memory = Memory()

    @property
    def running(self) -> bool:
        """Whether the server that this object started is alive."""
        return self._process is not None and self._process.is_alive

    @property
    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def port(self) -> int:
        """The port of the last start.

        Raises:
            EmbeddedError: there was none.
        """
        if self.started is None:
            raise EmbeddedError(f"{self.title} was not started yet. Call start() first.")
        return self.started.port

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it, password included; kept while the server is down."""

    def start(self) -> Started:
        """Start the server, on its last port if that is free, and wait until it answers.

        Servers that a killed owner left are stopped first; their data is kept.

        Raises:
            AlreadyOwnedError: another object or process owns this folder's server.
            EmbeddedError: it does not start; the message has its last log line.
        """
        if self.started is not None and self.running:
            return self.started
        begin = time.monotonic()
        home = open_home(self.folder)
        self._lock.acquire()
        try:
            answer = self._start(home)
        except BaseException:
            self.stop()
            raise
        span = time.monotonic() - begin
        port, pid = self._memory.port or 0, self.pid or 0
        data = str(home.root / self.key)
        self.started = Started(answer.name, answer.version, span, port, pid, data)
        return self.started

    def stop(self) -> None:
        """Stop the server in good order and give up the folder; harmless when it is down."""
        if self._process is not None:
            self._process.stop(self.stop_patience_s)
            self._process = None
        self._lock.release()

    def kill(self) -> None:
        """SIGKILL the server and its children, as a crash would."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> Started:
        """Stop in good order and start again."""
        if self._process is not None:
            self._process.stop(self.stop_patience_s)
        return self.start()

    def wipe(self) -> None:
        """Delete all data; port and password stay, and so does the URL.

        Raises:
            EmbeddedError: the server is running.
        """
        if self.running:
            raise EmbeddedError(f"{self.title} is running. Call stop() or kill() first.")
        self.clear()
        shutil.rmtree(open_home(self.folder).root / self.key, ignore_errors=True)

    def clear(self) -> int:
        """Stop what a killed owner left running; return the number of processes.

        Raises:
            AlreadyOwnedError: the owner lives.
        """
        owned = self._lock.is_mine
        home = open_home(self.folder)
        self._lock.acquire()
        try:
            return stop_orphans(home, self.process_names, self.farewell)
        finally:
            if not owned:
                self._lock.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _prepare(self, home: Home) -> None:
        """Make the data folder ready before the first port is chosen."""

    @abstractmethod
    def _recipe(self, home: Home, port: int) -> Recipe:
        """Say how to start the server on ``port``."""

    @abstractmethod
    def _probe(self, port: int) -> Answer | None:
        """Return what the server says it is, None while none answers."""

    def _start(self, home: Home) -> Answer:
        stop_orphans(home, self.process_names, self.farewell)
        path = home.root / f"{self.key}.json"
        self._memory = recall(path)
        remember(path, self._memory)
        self._prepare(home)
        for _ in range(PORT_TRIES):
            self._memory = replace(self._memory, port=choose_port(self._memory.port))
            remember(path, self._memory)
            recipe = self._recipe(home, self._memory.port or 0)
            self._process = ServerProcess(recipe, home.account)
            answer = self._wait(self._process, self._memory.port or 0)
            if answer is not None:
                return answer
            if "in use" not in self._process.said():
                break
        word = "it said nothing" if self._process is None else self._process.last_word()
        log = home.log / f"{self.key}.log"
        raise EmbeddedError(
            f"{self.title} did not start: {word}. Read {log}, mend the cause, start it again."
        )

    def _wait(self, process: ServerProcess, port: int) -> Answer | None:
        deadline = time.monotonic() + START_PATIENCE_S
        while process.is_alive and time.monotonic() < deadline:
            answer = self._probe(port)
            if answer is not None and process.is_alive:
                return answer
            time.sleep(POLL_S)
        return None
