"""A real ``celery -A tasks_app …`` process, with its log, in a folder and session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.clock import until
from tests.environment import python_path

HOUSE = Path(__file__).parent / "house"
LOGS: dict[str, Path] = {}
"""Of the processes that have not been ended: tests/conftest.py shows them when a test fails."""


class CeleryProcess:
    def __init__(
        self, folder: Path, environment: dict[str, str], *arguments: str, app: str = "tasks_app"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = folder.name
        self._log = folder / "log.txt"
        self._title = f"{arguments[0]} {self._log}"
        LOGS[self._title] = self._log
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "CELERY_"))}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("celery"), "-A", app, *arguments],
                cwd=folder,
                # Two streams share the log: unbuffered, their lines stand in their order.
                env={
                    **kept,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": python_path(HOUSE),
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, words: str, timeout_s: float = 30.0) -> None:
        with suppress(AssertionError):
            until(lambda: words in self.log() or not self.alive, timeout_s)
        assert words in self.log(), self.log()[-3000:]

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def signal_all(self, number: signal.Signals) -> None:
        """Signal the command and all its processes at once."""
        os.killpg(self.pid, number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for the end; return the exit status."""
        return self._process.wait(timeout_s)

    def ask(self) -> None:
        if self.alive:
            self._process.terminate()

    def stop(self) -> int:
        """Ask it to end in good order; return the exit status."""
        self.ask()
        return self.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        with suppress(ProcessLookupError):
            self.signal_all(signal.SIGCONT)
            self.signal_all(signal.SIGKILL)
        self._process.wait()
        LOGS.pop(self._title, None)
