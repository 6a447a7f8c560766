"""The processes of a system under measurement: started, watched, ended with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

FAREWELL_S = 15


class Service:
    """One command and whatever it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = command
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def tree(self) -> list[psutil.Process]:
        """Return the process and its descendants, as far as they live."""
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def check(self) -> None:
        """Raise if it has ended.

        Raises:
            RuntimeError: with its last words.
        """
        if self._process.poll() is not None:
            words = self._log.read_text(errors="replace")[-800:]
            raise RuntimeError(f"it ended with status {self._process.returncode}: {words}")

    def end(self) -> None:
        """SIGTERM for the parent, as an operator would, then SIGKILL for what is left."""
        members = self.tree()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self._process.wait()


def left_over(variable: str) -> list[int]:
    """Return the processes that a killed run left behind: they have this variable."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if variable in process.environ():
                found.append(process.pid)
    return found


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Sum the CPU time of these processes and of the children that they have reaped."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def wait_for(condition: Callable[[], bool], patience_s: float, services: Sequence[Service]) -> None:
    """Poll until ``condition()`` is true while the services live.

    Raises:
        TimeoutError: it did not become true.
    """
    until = time.monotonic() + patience_s
    while not condition():
        for service in services:
            service.check()
        if time.monotonic() > until:
            raise TimeoutError(f"not done after {patience_s:.0f} s")
        time.sleep(0.005)
