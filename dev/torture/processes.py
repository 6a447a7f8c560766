"""Workers and beats as process groups, started as the README says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil


class Service:
    """One `celery -A tasks_app …` or `tasks-app work` with all its children."""

    def __init__(
        self, name: str, module: list[str], environment: dict[str, str], log: Path
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", *module]
        self._environment = {**os.environ, **environment}
        self._log = log / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.revivals = 0

    def start(self) -> None:
        """Start it, in a process group of its own."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def revive(self) -> None:
        """Start it again if it ended by itself, as a service manager does.

        Celery, for instance, ends a worker if one of its first children is killed before it is
        ready.
        """
        if self._process is not None and self._process.poll() is not None:
            self.revivals += 1
            self.start()

    def kill(self) -> None:
        """SIGKILL for the whole group: the machine is gone."""
        self._signal_group(signal.SIGKILL)
        self._wait()

    def kill_parent(self) -> None:
        """SIGKILL for the parent alone."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def kill_child(self, choose: int) -> bool:
        """SIGKILL for one child; False: there was none."""
        children = self.children()
        if not children:
            return False
        try:
            children[choose % len(children)].kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def stop(self) -> None:
        """SIGSTOP for the whole group: swapped out, or its host is paused."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM for the parent; return at once."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """SIGTERM, then SIGKILL for what is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children() if self._process else []
        except psutil.NoSuchProcess:
            return []

    def refusals(self) -> int:
        """Count the log's lines about writes that the fence refused."""
        text = self._log.read_text(errors="replace")
        return text.count("the lease was lost")

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait(10)
