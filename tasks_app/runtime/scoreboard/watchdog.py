"""The parent's watchdog: kills children past their hard limit, or whose housekeeper is silent.

No SQL, no threads: the parent reads slots and sends signals. The dead child's replacement does the
rest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard

log = quiet_logger(__name__)

SILENT_S = 60.0
STALE_S = 15.0
"""A child notes every few seconds whether it starves; an older note is ignored."""
LOOK_EVERY_S = 1.0
"""How late a child is killed at its hard limit."""
MOST_NAMED = 20
"""Tasks in a line of the log; async ones may run in thousands."""


def watch(slots: Scoreboard, show: Callable[[str], object], trouble: str = "") -> None:
    """Kill overdue children, and ``show`` probes what is wrong; empty: nothing is."""
    kill_overdue(slots)
    show(silent_housekeeper(slots) or trouble)


def silent_housekeeper(slots: Scoreboard, silent_s: float = SILENT_S) -> str:
    """Name a child that lives while its housekeeper does not; empty: there is none."""
    for view in slots.occupied():
        for_s = time.monotonic() - view.beat
        if for_s > silent_s and not view.dead:
            return f"the housekeeper of child {view.pid} is silent for {for_s:.0f} s"
    return ""


def starving(slots: Scoreboard, *, now: float | None = None) -> bool:
    """Tell whether every child was just seen idle while messages wait that nobody takes."""
    now = time.monotonic() if now is None else now
    views = slots.occupied()
    return bool(views) and all(
        now - view.hungry < STALE_S and not view.messages and not view.running for view in views
    )


def kill_overdue(slots: Scoreboard, silent_s: float = SILENT_S) -> list[int]:
    """Kill overdue and silent children; return the pids, never our own."""
    killed: list[int] = []
    now = time.monotonic()
    for view in slots.occupied():
        overdue = list(view.past(now))
        silent = now - view.beat > silent_s
        if not (overdue or silent) or view.pid == os.getpid() or view.dead:
            continue
        why = "ran past the hard limit" if overdue else "its housekeeper is silent"
        tasks = [run.task_id for run in (overdue or view.running)[:MOST_NAMED]]
        log.error("killing child %s: %s (tasks %s)", view.pid, why, tasks)
        if overdue:
            slots.note_kill(view, now)
        killed += _kill(view.pid)
    return killed


def kill_holdouts(slots: Scoreboard) -> list[int]:
    """Kill the children that did not let go of their tasks when the worker left."""
    killed: list[int] = []
    for view in slots.occupied():
        if view.running and view.pid != os.getpid() and not view.dead:
            log.error("killing child %s: it does not let go", view.pid)
            killed += _kill(view.pid)
    return killed


def _kill(pid: int) -> list[int]:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return []
    return [pid]
