"""The parent of ``tasks-app work``: starts one child, replaces it when it dies, kills it when due.

The child is a process of its own so that a poison task takes only itself: the replacement reads
the slot and charges exactly that task.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from tasks_app.domain.logs import quiet_logger
from tasks_app.runtime.pulse import WORKER, Pulse
from tasks_app.runtime.signals import heed_signals
from tasks_app.runtime.slot import SlotFile, Stage
from tasks_app.runtime.slot_folder import SLOTS_VARIABLE, new_slot_path, remove_slots
from tasks_app.runtime.watch import LOOK_EVERY_S, kill_overdue, silent_clerk

log = quiet_logger(__name__)

LONGEST_PAUSE_S = 5.0
LEAVE_PATIENCE_S = 5.0
"""How long a child may take to let go. Who takes longer never lets its other threads run."""


def supervise(command: Sequence[str], healthy_for_s: float = 30.0) -> int:
    """Run ``command`` as a child until it ends by itself or we are asked to stop.

    Returns:
        The child's exit status; one that was killed, or left without clearing its slot, is
        replaced.
    """
    path = new_slot_path()
    slots = SlotFile(path)
    pulse = Pulse(WORKER, f"work@{socket.gethostname()}", good_for_s=healthy_for_s)
    environment = {**os.environ, SLOTS_VARIABLE: str(path)}
    heed_signals(slots)
    pause_s = 0.0
    try:
        while True:
            started = time.monotonic()
            child = subprocess.Popen(command, env=environment)  # noqa: S603
            status = _watch(child, slots, pulse)
            in_order = all(view.pid != child.pid for view in slots.occupied())
            if slots.stage is not Stage.RUNS or (status >= 0 and in_order):
                return max(status, 0)
            log.error("the child ended with status %s; starting another", status)
            pause_s = 0.0 if time.monotonic() - started > LONGEST_PAUSE_S else pause_s * 2 + 0.1
            time.sleep(min(pause_s, LONGEST_PAUSE_S))
    finally:
        remove_slots(path)
        pulse.end()


def _watch(child: subprocess.Popen[bytes], slots: SlotFile, pulse: Pulse) -> int:
    """Wait for the child's end. It reads in the slot file what we are asked to do."""
    leaves_at: float | None = None
    while True:
        pulse.beat(silent_clerk(slots))
        try:
            return child.wait(LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            kill_overdue(slots)
        if slots.stage is Stage.LEAVES:
            leaves_at = leaves_at or time.monotonic()
            if time.monotonic() - leaves_at > LEAVE_PATIENCE_S:
                child.kill()


def work_command(*arguments: str) -> list[str]:
    """Return the command line of a child."""
    return [sys.executable, "-m", "tasks_app", *arguments]
