"""The processes of the demo: real ones, as in production, with logs and an end in good order."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks_app.embedded.folder import EmbeddedError, Started, Urls, read_state
from tasks_app.embedded.process import Companion, exit_reason
from tasks_app.embedded.stack import Stack, up

PATIENCE_S = 8.0


class StoppedError(Exception):
    """Somebody pressed Ctrl-C or sent a signal."""


class DiedError(Exception):
    """A process ended that should not have."""


class Bell:
    """Ctrl-C, SIGTERM and SIGHUP ring it. They interrupt nothing, least of all the stopping."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._rung.set())

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            StoppedError: the bell rang, now or before.
        """
        if self._rung.wait(seconds):
            raise StoppedError


class Servers:
    """PostgreSQL and Valkey: ours, or those that ``tasks-app up`` runs in this folder.

    With a ``database_url`` only Valkey is ours.
    """

    def __init__(self, folder: Path, *, keep: bool, database_url: str | None = None) -> None:
        self._folder = folder
        self._keep = keep
        self._database_url = database_url
        self._stack: Stack | None = None

    def up(self, on_ready: Callable[[Started], None]) -> Urls:
        """Start both unless they run; with ``keep`` they stay up when we end.

        Raises:
            EmbeddedError: a server does not start, or one runs here that the URL would hide.
        """
        if self._keep and read_state(self._folder) is None:
            up(self._folder)
        state = read_state(self._folder)
        if state is not None and state.supervised:
            if self._database_url:
                raise EmbeddedError(
                    f"Servers run in {self._folder}. Stop them: tasks-app down, or name another "
                    "--folder."
                )
            for started in state.started:
                on_ready(started)
            return state.urls
        self._stack = Stack(self._folder, database_url=self._database_url)
        return self._stack.up(on_ready)

    @property
    def stay(self) -> bool:
        """Whether they run on without us."""
        return self._stack is None

    def look(self) -> None:
        """Pass if both are alive.

        Raises:
            DiedError: one has ended.
        """
        for server in self._stack.servers if self._stack else ():
            if not server.running:
                raise DiedError(f"{server.title} ended. Read {server.log}")

    def down(self) -> None:
        """Stop them if they are ours."""
        if self._stack is not None:
            with suppress(EmbeddedError):
                self._stack.down()


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    process: Companion
    log: Path


class Processes:
    """Started one by one, watched and stopped together. They die with us, even if we are killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[_Running] = []

    def start_celery(self, name: str, *arguments: str) -> None:
        """Start ``celery -A tasks_app NAME …`` with our environment and a log of its own."""
        self.start(name, "celery", "-A", "tasks_app", name, *arguments)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start ``python -m MODULE …`` with our environment and a log of its own."""
        command = (sys.executable, "-m", module, *arguments)
        log = self._folder / "log" / f"{name}.log"
        process = Companion(command, log, signal.SIGTERM, cwd=self._folder)
        self._running.append(_Running(name, process, log))

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, as the end of a machine would."""
        for running in [running for running in self._running if running.name == name]:
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.kill()
            self._running.remove(running)

    def look(self) -> None:
        """Pass if all are alive.

        Raises:
            DiedError: one has ended; the message says which log tells why.
        """
        for running in self._running:
            if running.process.poll() is not None:
                word = exit_reason(running.log)
                raise DiedError(f"{running.name} ended. Read {running.log}, its last line: {word}")

    def stop(self) -> None:
        """Ask all at once to end, wait, and kill what is left in their process groups."""
        for running in self._running:
            running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while any(r.process.poll() is None for r in self._running) and time.monotonic() < deadline:
            time.sleep(0.05)
        for running in self._running:
            running.process.kill()
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
        self._running.clear()
