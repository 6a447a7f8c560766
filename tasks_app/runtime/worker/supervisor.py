"""The parent of ``tasks-app work``: starts children, replaces dead ones, kills overdue ones."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from types import FrameType

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.health_files import (
    ROLES,
    WORKER,
    Liveness,
    is_ours,
    project_folder,
    read_sign,
    run_folder,
)
from tasks_app.runtime.scoreboard import (
    SLOTS_VARIABLE,
    Scoreboard,
    Stage,
    new_slot_path,
    remove_slots,
)
from tasks_app.runtime.worker.places import OrphanReaper, Place

log = quiet_logger(__name__)
LEAVE_PATIENCE_S = 5.0
"""How long a child may take to let go. One that takes longer never lets its other threads run."""
_DRAINS = "nothing more starts; what runs may end, and a second signal lets go of it"
_LEAVES = "letting go of what runs: it goes back"
POLL_S = 0.05  # between two looks whether a child has ended


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    status: int  # the worst of theirs
    stopped_by: str | None  # the signal that asked them to stop; None: they ended by themselves


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
    asked, logged = heed_signals(slots), 0
    try:
        places = [Place(command, environment, stays=stay) for _ in range(children)]
        look_at, leaves_at, orphans = 0.0, float("inf"), OrphanReaper()
        while sum([place.replace_if_dead(slots) for place in places]):
            now = time.monotonic()
            if slots.runs and (retiring := slots.retiring()):
                for place in places:
                    place.succeed(retiring)
            if now >= look_at:
                look_at = now + LOOK_EVERY_S
                watch_children(slots, liveness.beat)
                orphans.reap([each.pid for place in places for each in place.processes])
            logged = _log_signal(asked, logged, slots.stage)
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


def _log_signal(asked: Sequence[int], logged: int, stage: Stage) -> int:
    if len(asked) > logged:
        news = _LEAVES if stage is Stage.LEAVES else _DRAINS
        log.warning("%s: %s", signal.Signals(asked[-1]).name, news)
    return len(asked)


def work_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tasks_app", *arguments]


def heed_signals(slots: Scoreboard) -> list[int]:
    """SIGTERM, SIGINT and SIGHUP drain; a second one, or SIGQUIT, lets go of what runs.

    SIGUSR1 asks for stacks.

    Returns the signals that have come, a list that grows.

    The stage in the slot file is all that is written: a signal handler must take no lock.
    """
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if number == signal.SIGQUIT or len(asked) > 1:
            slots.leave()
        else:
            slots.drain()

    _on_each(stop)
    signal.signal(signal.SIGUSR1, lambda *_: slots.ask_stacks())
    return asked


def heed_signals_of_child(inflight: InFlight) -> None:
    """A signal to this child asks it alone to end; one to its group also reaches the parent.

    SIGUSR1 writes its stacks, even while it lets no thread run.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        if inflight.stop_requested_at is None:
            inflight.stop_requested_at = time.monotonic()

    _on_each(stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.stderr is not None:  # it may be closed
        faulthandler.register(signal.SIGUSR1)


def _on_each(stop: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)


def heed_early_signals() -> None:
    """As process 1, whom no signal ends that it does not handle: let these end its start."""
    if os.getpid() == 1:
        _on_each(lambda *_: sys.exit(0))


SILENT_S = 60.0
STALE_S = 15.0  # A child notes every few seconds whether it starves; an older note is ignored
LOOK_EVERY_S = 1.0  # how late a child is killed at its hard limit
MOST_NAMED = 20  # tasks in a line of the log; async ones may run in thousands


def watch_children(slots: Scoreboard, show: Callable[[str], object], trouble: str = "") -> None:
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
        if view.is_cancel(now):
            why = "was cancelled, and its grace is over"
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


LONG_AGO_S = 3600.0
"""Until then `healthz` says that a process is gone. Living ones write every few seconds."""
_NAME = "[0-9a-f]" * 8
_TAKEN = "taken-"


def remove_abandoned(now: float | None = None) -> None:
    """Remove this user's folders of other projects whose processes have all ended.

    Of two that do so at once one gets the folder. A process that starts in it just now makes it
    anew with its next sign of life.
    """
    base, own = Path(run_folder()), Path(project_folder())
    if now is None:
        now = time.time()  # noqa: TID251  as files are dated
    before = now - LONG_AGO_S
    with suppress(OSError):
        if not is_ours(str(base)):
            return
        for left in base.glob(f"{_TAKEN}*"):  # by one that was killed over it
            shutil.rmtree(left, ignore_errors=True)
        for folder in base.glob(_NAME):
            with suppress(OSError):  # another one was faster
                if folder != own and _is_abandoned(folder, before):
                    _remove(folder)


def _is_abandoned(folder: Path, before: float) -> bool:
    of_it = folder.lstat()
    if not S_ISDIR(of_it.st_mode) or of_it.st_uid != os.getuid() or of_it.st_mtime > before:
        return False
    signs = [read_sign(str(file)) for file in folder.iterdir() if file.name not in ROLES]
    return not any(sign and sign[0] for sign in signs)


def _remove(folder: Path) -> None:
    """Take it before anything in it goes: who writes to it meanwhile makes a new one."""
    taken = folder.with_name(f"{_TAKEN}{os.getpid()}-{folder.name}")
    folder.rename(taken)
    shutil.rmtree(taken, ignore_errors=True)
