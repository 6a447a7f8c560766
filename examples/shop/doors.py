"""What people open in a browser: our dashboard, and Flower."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from shop.processes import Processes
from tasks_app.embedded.process import HOST, choose_port


class Door:
    """A server of pages, announced once it answers."""

    def __init__(self, title: str, port: int, start: Callable[[int], None]) -> None:
        self.title = title
        self._port, self._start = port, start
        self._since: float | None = None
        self._answers = False

    @property
    def url(self) -> str:
        """Its address; it holds from ``open`` on."""
        return f"http://{HOST}:{self._port}/"

    def open(self) -> None:
        """Start it, once, on its own port or another that is free."""
        if self._since is None:
            self._port, self._since = choose_port(self._port), time.monotonic()
            self._start(self._port)

    def began_to_answer(self) -> float | None:
        """Return after how many seconds it answered, the first time that it does."""
        if self._since is None or self._answers or not _answers(self._port):
            return None
        self._answers = True
        return time.monotonic() - self._since


def dashboard(processes: Processes) -> Door:
    """Our own: on this machine alone, where whoever asks is an admin."""

    def start(port: int) -> None:
        processes.start("dashboard", "tasks_app", "dashboard", f"--host={HOST}", f"--port={port}")

    return Door("dashboard", 5580, start)


def flower(processes: Processes) -> Door:
    """Flower, in which nothing can be changed."""

    def start(port: int) -> None:
        given = (f"--address={HOST}", f"--port={port}", "--read_only=true")
        processes.start_celery("flower", *given)

    return Door("Flower", 5555, start)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.05)
        return probe.connect_ex((HOST, port)) == 0
