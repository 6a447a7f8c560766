"""The parent of ``tasks-app work``: starts children, replaces the dead, kills them when due.

Each child is a process of its own so that a poison task takes only that one: its siblings, or the
replacement, read the slot and charge exactly that task. Children whose parent is gone end by
themselves, after what they run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.health_files import WORKER, Liveness
from tasks_app.runtime.health_folders import remove_abandoned
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE, new_slot_path, remove_slots
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard import Stage
from tasks_app.runtime.scoreboard.watchdog import LOOK_EVERY_S, watch
from tasks_app.runtime.worker.signals import heed_signals

log = quiet_logger(__name__)

LONGEST_PAUSE_S = 5.0
LEAVE_PATIENCE_S = 5.0
"""How long a child may take to let go. One that takes longer never lets its other threads run."""
_DRAINS = "nothing more starts; what runs may end, and a second signal lets go of it"
_LEAVES = "letting go of what runs: it goes back"
POLL_S = 0.05
"""Between two looks whether a child has ended."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker's processes have ended."""

    status: int
    """The worst of theirs."""
    stopped_by: str | None
    """The signal that asked them to stop; None: they ended by themselves."""


class Place:
    """One of the children, and those that replace it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], *, stays: bool) -> None:
        """``stays``: one that ends by itself, and well, is replaced as well."""
        self._command = command
        self._environment = environment
        self._stays = stays
        self._pause_s = 0.0
        self._start()
        self.status: int | None = None
        """Of the last one, once it needs no replacement."""

    def _start(self) -> None:
        self._started_at = time.monotonic()
        self._start_at: float | None = None
        self._child = subprocess.Popen(self._command, env=self._environment)  # noqa: S603

    def look(self, slots: Scoreboard) -> bool:
        """Replace the child if it has died before its time; tell whether one lives or will."""
        if self.status is not None:
            return False
        if self._start_at is not None:
            if slots.stage is not Stage.RUNS:
                self.status = 0
            elif time.monotonic() >= self._start_at:
                self._start()
        elif (status := self._child.poll()) is not None:
            self._over(status, slots)
        return self.status is None

    def _over(self, status: int, slots: Scoreboard) -> None:
        in_order = status >= 0 and all(view.pid != self._child.pid for view in slots.occupied())
        if slots.stage is not Stage.RUNS or (in_order and (status or not self._stays)):
            self.status = max(status, 0)
            return
        if not in_order:
            log.error("the child ended with status %s; starting another", status)
        lived_s = time.monotonic() - self._started_at
        self._pause_s = 0.0 if lived_s > LONGEST_PAUSE_S else self._pause_s * 2 + 0.1
        self._start_at = time.monotonic() + min(self._pause_s, LONGEST_PAUSE_S)

    def kill(self) -> None:
        self._child.kill()


def supervise(
    command: Sequence[str], children: int = 1, healthy_for_s: float = 30.0, *, stay: bool = True
) -> WorkerEnd:
    """Run ``command`` as this many children until they end by themselves or we are asked to stop.

    One that was killed, or left without clearing its slot, is replaced; with ``stay`` also one that
    ended well. One that ends with an error would do so again, and so would the others: they are
    drained.
    """
    path = new_slot_path()
    slots = Scoreboard(path)
    liveness = Liveness(WORKER, f"work@{socket.gethostname()}", good_for_s=healthy_for_s)
    remove_abandoned()
    environment = {**os.environ, SLOTS_VARIABLE: str(path)}
    asked, told = heed_signals(slots), 0
    try:
        places = [Place(command, environment, stays=stay) for _ in range(children)]
        look_at, leaves_at = 0.0, float("inf")
        while sum(place.look(slots) for place in places):  # each has to look
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_EVERY_S
                watch(slots, liveness.beat)
            told = _tell(asked, told, slots.stage)
            if stay and any(place.status for place in places):
                slots.drain()
            if slots.stage is Stage.LEAVES:
                leaves_at = min(leaves_at, now + LEAVE_PATIENCE_S)
                if now > leaves_at:
                    for place in places:
                        place.kill()
            time.sleep(POLL_S)
        stopped_by = signal.Signals(asked[0]).name if asked else None
        return WorkerEnd(max(place.status or 0 for place in places), stopped_by)
    finally:
        remove_slots(path)
        liveness.end()


def _tell(asked: Sequence[int], told: int, stage: Stage) -> int:
    """Say what a new signal leads to; return how many have come."""
    if len(asked) > told:
        said = _LEAVES if stage is Stage.LEAVES else _DRAINS
        log.warning("%s: %s", signal.Signals(asked[-1]).name, said)
    return len(asked)


def work_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tasks_app", *arguments]
