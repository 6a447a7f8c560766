"""The scoreboard: a file in which each child notes what it runs, so that a death has a cause."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from pathlib import Path

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.health_files import born_at, own_birth, process_facts

SLOTS = 256
MOST_RUNS = 10_240  # runs that one child's list has room for; of more it notes how many
# Of a child: pid, born, owner, beat, hungry, places of its list ever used, unlisted, messages,
# whether it retires.
HEAD = struct.Struct("=q d 160s d d q q q q")
RUN = struct.Struct("=q q d d")
"""Id, attempt, since, kill_at; below 0: a cancel asks for the kill, not the hard limit."""
_HEAD_SIZE = 256
_PIDS = struct.Struct("=" + f"q {_HEAD_SIZE - 8}x" * SLOTS)
"""Of all records at once: most are free, and the parent reads them often."""
_KILL = struct.Struct("=q d")  # of the killed child: pid, when; below 0: only for cancels
_KILL_AT = _HEAD_SIZE - _KILL.size  # in a head's unused end, which its child does not write
_NO_HEAD, _NO_RUN = bytes(_HEAD_SIZE), bytes(RUN.size)
_STAGE_AT, _REPORTING_AT, _STACKS_AT, _TIDY_AT, _LOOK_AT = (
    SLOTS * _HEAD_SIZE + n for n in (0, 1, 2, 8, 16)
)
_INSTANT = struct.Struct("=d")
_RUNS_AT = SLOTS * _HEAD_SIZE + 4096
_FILE_SIZE = _RUNS_AT + SLOTS * MOST_RUNS * RUN.size


def head_offset(index: int) -> int:
    return index * _HEAD_SIZE


def run_offset(index: int, place: int) -> int:
    return _RUNS_AT + (index * MOST_RUNS + place) * RUN.size


class Scoreboard:
    """The file with all slots of one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() < _FILE_SIZE:
                file.truncate(_FILE_SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FILE_SIZE)
        self._view = memoryview(self._map)
        self._mutex = threading.Lock()

    def occupied(self) -> list[SlotView]:
        taken = (index for index, pid in enumerate(_PIDS.unpack_from(self._view)) if pid)
        return [view for view in map(self.read, taken) if view is not None]

    def retiring(self) -> set[int]:
        """Return the pids of children that claim nothing more while their worker goes on."""
        taken = (index for index, pid in enumerate(_PIDS.unpack_from(self._view)) if pid)
        heads = (HEAD.unpack_from(self._view, head_offset(index)) for index in taken)
        return {pid for pid, *_, retires in heads if retires}

    @property
    def stage(self) -> Stage:
        return Stage(self._map[_STAGE_AT])

    @property
    def runs(self) -> bool:
        """Whether the worker is not stopping. Asked before each task."""
        return self._map[_STAGE_AT] == 0

    def drain(self) -> None:
        """Have the children start nothing more. One byte, so that a signal handler may do it."""
        self._map[_STAGE_AT] = max(Stage.DRAINS, self.stage)

    def leave(self) -> None:
        self._map[_STAGE_AT] = Stage.LEAVES

    @property
    def reporting(self) -> bool:
        """Whether a process wants reports of single tasks now."""
        return self._map[_REPORTING_AT] != 0

    def report(self, wanted: bool) -> None:  # noqa: FBT001  a switch
        self._map[_REPORTING_AT] = wanted

    @property
    def tidy_at(self) -> float:
        """When one of the children is to tidy the pool, for all of them."""
        return self._instant(_TIDY_AT)

    @tidy_at.setter
    def tidy_at(self, instant: float) -> None:
        self.write(_TIDY_AT, _INSTANT.pack(instant))

    @property
    def look_at(self) -> float:
        """When one of the children is to look whether somebody asks for stacks."""
        return self._instant(_LOOK_AT)

    @look_at.setter
    def look_at(self, instant: float) -> None:
        self.write(_LOOK_AT, _INSTANT.pack(instant))

    def _instant(self, at: int) -> float:
        instant: float = _INSTANT.unpack_from(self._view, at)[0]
        return instant

    @property
    def stacks_asked(self) -> int:
        """A number that changes when somebody asks for the stacks of all children."""
        return self._map[_STACKS_AT]

    def ask_stacks(self) -> None:
        """Ask for them. One byte, so that a signal handler may do it."""
        self._map[_STACKS_AT] = (self._map[_STACKS_AT] + 1) % 256

    def take(self, owner: str) -> Slot:
        """Take a free record for this process; RuntimeError: all are in use."""
        born = own_birth()
        with self._locked():
            for index in range(SLOTS):
                if self.read(index) is None:
                    slot = Slot(self, index, owner, born)
                    slot.beat()
                    return slot
        raise RuntimeError(f"All {SLOTS} slots are in use. Run more workers with fewer children.")

    def free(self, view: SlotView) -> bool:
        """Empty the record if it is still that child's; False: another process was faster."""
        with self._locked():
            now = self.read(view.index)
            if now is None or now.owner != view.owner:
                return False
            self.write(head_offset(view.index), _NO_HEAD)
            return True

    def note_kill(self, view: SlotView, instant: float) -> None:
        """Note that the child is killed: runs past their limits then are the reason."""
        signed = -instant if view.is_cancel(instant) else instant
        self.write(head_offset(view.index) + _KILL_AT, _KILL.pack(view.pid, signed))

    def write(self, at: int, record: bytes) -> None:
        self._map[at : at + len(record)] = record

    def shorten_limit(self, at: int, kill_at: float) -> None:
        task_id, attempt, since, before = RUN.unpack_from(self._view, at)
        if kill_at < abs(before):
            self.write(at, RUN.pack(task_id, attempt, since, -kill_at))

    def read(self, index: int) -> SlotView | None:
        at, first = head_offset(index), run_offset(index, 0)
        head = HEAD.unpack_from(self._view, at)
        pid, born, owner, beat, hungry, places, unlisted, messages, _ = head
        if pid == 0:
            return None
        listed = RUN.iter_unpack(self._view[first : first + places * RUN.size])
        runs = [run for run in listed if run[0]]
        killed_pid, killed = _KILL.unpack_from(self._view, at + _KILL_AT)
        return SlotView(
            index,
            pid,
            born,
            owner.rstrip(b"\0").decode(),
            messages,
            min((since for _, _, since, _ in runs if since), default=0.0),
            min((abs(kill_at) for *_, kill_at in runs if kill_at), default=0.0),
            beat,
            hungry,
            tuple(Run(task_id, attempt) for task_id, attempt, *_ in runs),
            unlisted,
            tuple((since, until) for _, _, since, until in runs),
            abs(killed) if killed_pid == pid else 0.0,
            killed_pid == pid and killed < 0,
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude the other processes (flock) and our own other threads."""
        with self._mutex, self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Stage(IntEnum):
    """How far a worker is in its shutdown. It only rises."""

    RUNS = 0
    DRAINS = 1  # nothing more starts; what runs may end
    LEAVES = 2  # what still runs is let go


class Slot:
    """This child's own record. Any of its threads may write it."""

    def __init__(self, file: Scoreboard, index: int, owner: str, born: float) -> None:
        self.owner = owner
        self._file = file
        self._index = index
        self._born = born
        self._pid = os.getpid()
        self._messages = 0
        self._beat = time.monotonic()
        self._hungry = 0.0
        self._places: dict[Run, int] = {}
        self._free: list[int] = []
        self._places_used = 0
        self._unlisted: set[Run] = set()
        self._lock = threading.Lock()
        self._left = False
        self._retires = False

    @property
    def stage(self) -> Stage:
        return self._file.stage

    @property
    def runs(self) -> bool:
        return self._file.runs

    @property
    def tidy_at(self) -> float:
        return self._file.tidy_at

    @tidy_at.setter
    def tidy_at(self, instant: float) -> None:
        self._file.tidy_at = instant

    @property
    def look_at(self) -> float:
        return self._file.look_at

    @look_at.setter
    def look_at(self, instant: float) -> None:
        self._file.look_at = instant

    @property
    def stacks_asked(self) -> int:
        return self._file.stacks_asked

    def ask_stacks(self) -> None:
        self._file.ask_stacks()

    @property
    def owners(self) -> list[str]:
        """The names of all children of this worker."""
        return [view.owner for view in self._file.occupied()]

    @property
    def others_run(self) -> bool:
        others = (view for view in self._file.occupied() if view.index != self._index)
        return any((view.running or view.unlisted) and not view.dead for view in others)

    def message(self, *, in_hand: bool) -> None:
        with self._lock:
            self._messages += 1 if in_hand else -1
            self._write()

    def start(self, run: Run, hard_limit_s: float) -> None:
        """Announce a task, before its payload is decoded."""
        started = time.monotonic()
        with self._lock:
            if self._left:
                return
            if self._free:
                place = heappop(self._free)
            elif self._places_used < MOST_RUNS:
                place = self._places_used
            else:
                self._unlisted.add(run)
                self._write()
                return
            self._places[run] = place
            self._write_run(place, run, started, started + hard_limit_s)
            if place == self._places_used:
                self._places_used += 1
                self._write()

    def follow(self, before: Run, run: Run, since: float, kill_at: float) -> None:
        """Announce a task in the place of the one before it, which is over; in one write."""
        with self._lock:
            place = self._places.pop(before, None)
            if place is not None:
                self._places[run] = place
                if not self._left:
                    self._write_run(place, run, since, kill_at)
                return
        self.finish(before)
        self.start(run, kill_at - since)

    def kill_by(self, run: Run, instant: float) -> None:
        """Have the parent kill the child if the task still runs then, or was to be killed before.

        One that the list has no room for is left to its hard limit.
        """
        with self._lock:
            place = self._places.get(run)
            if place is not None and not self._left:
                self._file.shorten_limit(run_offset(self._index, place), instant)

    def finish(self, run: Run) -> None:
        """Take the task off: its outcome is collected, or its settle was answered."""
        with self._lock:
            place = self._places.pop(run, None)
            if place is not None:
                heappush(self._free, place)
                if not self._left:
                    self._file.write(run_offset(self._index, place), _NO_RUN)
            elif run in self._unlisted:
                self._unlisted.remove(run)
                self._write()

    def beat(self) -> None:
        with self._lock:
            self._beat = time.monotonic()
            self._write()

    def hunger(self, hungry: bool) -> None:  # noqa: FBT001  a state, not an option
        """Note whether we are idle although tasks are due that no worker takes."""
        with self._lock:
            self._hungry = time.monotonic() if hungry else 0.0
            self._write()

    def retire(self) -> None:
        """Note that this child claims nothing more: its parent may start the next one."""
        with self._lock:
            self._retires = True
            self._write()

    def free(self) -> None:
        """Free the record. From now on nothing is written to it: it may be another child's."""
        with self._lock:
            if not self._left:
                self._left = True
                self._file.write(head_offset(self._index), _NO_HEAD)

    def _write_run(self, place: int, run: Run, since: float, kill_at: float) -> None:
        self._file.write(run_offset(self._index, place), RUN.pack(*run, since, kill_at))

    def _write(self) -> None:
        if self._left:
            return
        runs = self._places_used, len(self._unlisted), self._messages, self._retires
        owner = self.owner.encode()[:160]
        record = HEAD.pack(self._pid, self._born, owner, self._beat, self._hungry, *runs)
        self._file.write(head_offset(self._index), record)


@dataclass(frozen=True, slots=True)
class SlotView:
    """One record, read. Instants are of ``time.monotonic``, which all processes share."""

    index: int
    pid: int
    born: float
    owner: str
    messages: int  # how many are in hand; in a pool of threads there may be several
    since: float  # when the first of ``running`` started; 0: nothing runs
    kill_at: float  # when the parent shall kill the child; 0: never
    beat: float
    hungry: float  # when it was last idle while tasks were due that no worker took; 0: it was not
    running: tuple[Run, ...]
    unlisted: int = 0  # how many more run than the list has room for
    limits: tuple[tuple[float, float], ...] = ()
    """Of each of ``running``: since when, and until when it may run."""
    killed: float = 0.0
    """When the parent killed the child, as a run was past its limit; 0: it did not."""
    for_cancel: bool = False
    """Whether it did so only because runs were cancelled: then no other is to suffer from it."""

    def past(self, at: float) -> dict[Run, float]:
        """Return the runs that were past their limits then, with these limits in seconds."""
        runs = zip(self.running, self.limits, strict=False)
        return {run: abs(until) - since for run, (since, until) in runs if 0 < abs(until) <= at}

    def is_cancel(self, at: float) -> bool:
        """Whether all that were past their limits then had been cancelled."""
        past = [until for _, until in self.limits if 0 < abs(until) <= at]
        return bool(past) and max(past) < 0

    @property
    def dead(self) -> bool:
        """Whether the process is gone. A zombie is, and so is a pid that was given out anew."""
        return process_facts(self.pid) != (self.born, False)


SLOTS_VARIABLE = "TASKS_APP_SLOTS"  # in which children find the path of their parent's slot file


def new_slot_path() -> Path:
    base = _base()
    for folder in base.iterdir():  # those of dead processes go
        pid, _, rest = folder.name.partition("-")
        with suppress(ValueError):
            if born_at(int(pid)) != float(rest.rpartition("-")[0]):
                shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{own_birth()}-", dir=base))
    return folder / "slots"


def remove_slots(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def slot_file() -> Scoreboard:
    """Open the slot file that the parent made, or one of our own if there is no parent."""
    given = os.environ.get(SLOTS_VARIABLE)
    return Scoreboard(Path(given) if given else new_slot_path())


def parent_of(slots: Scoreboard) -> int | None:
    """Return the pid of the parent that watches this process; None: there is none."""
    pid, _, _ = slots.path.parent.name.partition("-")
    return int(pid) if pid.isdigit() and int(pid) != os.getpid() else None


def temporary_folder() -> str:
    """Return a folder that can be written to; ConfigurationError: there is none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise ConfigurationError(
            "No folder for temporary files can be written to, and the processes of a worker share "
            "one. Mount a volume at /tmp, or set TMPDIR to a folder that this user may write to."
        ) from None


def _namespace() -> str:
    """Name the processes that this one sees: containers that share /tmp do not know each other."""
    try:
        return f"-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return ""


def _base() -> Path:
    base = Path(temporary_folder()) / f"tasks_app-slots-{os.getuid()}{_namespace()}"
    with suppress(FileExistsError):
        base.mkdir(0o700)
    if base.is_symlink() or base.stat().st_uid != os.getuid():  # another user made it first
        return Path(tempfile.mkdtemp(prefix="tasks_app-slots-"))
    return base
