"""The children of ``tasks-app work`` as their parent sees them: started, replaced and reaped."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.runtime.health_files import process_facts
from tasks_app.runtime.scoreboard import Scoreboard, Stage

log = quiet_logger(__name__)
LONGEST_PAUSE_S = 5.0
RECYCLED = 155
"""The status of a child that has passed a limit: Celery's children end with the same."""


class Place:
    """One of the children, and those that replace it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], *, stays: bool) -> None:
        """``stays``: one that ends by itself, and well, is replaced as well."""
        self._command = command
        self._environment = environment
        self._stays = stays
        self._pause_s = 0.0
        self._retired: list[subprocess.Popen[bytes]] = []  # their successor has started
        self._start()
        self.status: int | None = None  # of the last one, once it needs no replacement

    def _start(self) -> None:
        self._started_at = time.monotonic()
        self._start_at: float | None = None
        self._child = subprocess.Popen(self._command, env=self._environment)  # noqa: S603

    def replace_if_dead(self, slots: Scoreboard) -> bool:
        """Replace the child if it has died before its time; tell whether one lives or will."""
        self._retired = [child for child in self._retired if child.poll() is None]
        if self.status is None and self._start_at is not None:
            if slots.stage is not Stage.RUNS:
                self.status = 0
            elif time.monotonic() >= self._start_at:
                self._start()
        elif self.status is None and (status := self._child.poll()) is not None:
            self._over(status, slots)
        return self.status is None or bool(self._retired)

    def _over(self, status: int, slots: Scoreboard) -> None:
        in_order = status >= 0 and all(view.pid != self._child.pid for view in slots.occupied())
        recycled = in_order and status == RECYCLED
        ends = in_order and not recycled and (status or not self._stays)
        if ends or slots.stage is not Stage.RUNS:
            self.status = 0 if recycled else max(status, 0)
            return
        if recycled:
            self._start()
            return
        if not in_order:
            log.error("the child ended with status %s; starting another", status)
        lived_s = time.monotonic() - self._started_at
        self._pause_s = 0.0 if lived_s > LONGEST_PAUSE_S else self._pause_s * 2 + 0.1
        self._start_at = time.monotonic() + min(self._pause_s, LONGEST_PAUSE_S)

    def succeed(self, retiring: Collection[int]) -> None:
        """Start the successor of a child that claims nothing more; its last tasks may take long."""
        if self.status is None and self._start_at is None and self._child.pid in retiring:
            self._retired.append(self._child)
            self._start()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [self._child, *self._retired]

    def kill(self) -> None:
        for child in self.processes:
            child.kill()


class OrphanReaper:
    """As process 1, which gets the processes that handlers left: takes their statuses."""

    def __init__(self) -> None:
        self._zombies: set[int] = set()

    def reap(self, ours: Collection[int]) -> None:
        """Reap those that have ended since before the last look, but ``ours``.

        Whoever waits for a process of this one, such as `subprocess`, has taken it by then.
        """
        if os.getpid() != 1:
            return
        found = {pid for pid in _children() if pid not in ours and _is_zombie(pid)}
        for pid in found & self._zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._zombies = found


def _children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for each in lists for pid in each.read_text().split()]


def _is_zombie(pid: int) -> bool:
    facts = process_facts(pid)
    return facts is not None and facts[1]
