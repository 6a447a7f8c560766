"""Slots: what each child runs, in a file that outlives it. It says whose fault a death was.

One record per child *incarnation* in a file that all processes of a worker map. Writing it costs
nothing, so every task is announced before its payload is touched; the database is not asked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import psutil

from tasks_app.domain.task import Run

SLOTS = 256
MOST_RUNS = 64
"""Tasks, and messages, that one child may have in hand at a time; of more it tells the first."""
_RECORD = struct.Struct(f"=q d 160s d d d d q q {3 * MOST_RUNS}q")
_SIZE = 1792
_EMPTY = bytes(_SIZE)
MOST_STRANDED = 256
_STRANDED = struct.Struct(f"={MOST_STRANDED}q")
_STAGE, _REPORTING, _STRANDED_AT = (SLOTS * _SIZE + n for n in range(3))
"""Behind the records: what the parent tells all children."""
_FILE_SIZE = _STRANDED_AT + _STRANDED.size


class Stage(IntEnum):
    """How far a worker is on its way out. It only rises."""

    RUNS = 0
    DRAINS = 1
    """Nothing more starts; what runs may end."""
    LEAVES = 2
    """What still runs is let go."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One record, read. Instants are of ``time.monotonic``, which all processes share."""

    index: int
    pid: int
    born: float
    owner: str
    messages: tuple[int, ...]
    """The dispatch ids of the messages in hand; in a pool of threads there are several."""
    since: float
    """When the first of ``running`` started; 0: nothing runs."""
    kill_at: float
    """When the parent shall kill the child; 0: never."""
    beat: float
    hungry: float
    """When it was last seen idle while messages that nobody takes waited for it; 0: it was not."""
    running: tuple[Run, ...]

    @property
    def dead(self) -> bool:
        """Whether the process is gone. A zombie is, and so is a pid that was given out anew."""
        try:
            process = psutil.Process(self.pid)
            return process.status() == psutil.STATUS_ZOMBIE or born_at(process) != self.born
        except psutil.NoSuchProcess:
            return True


def born_at(process: psutil.Process) -> float:
    """Return when a process started, on a clock that nobody sets; tells apart users of one pid.

    Linux counts from the boot, and psutil adds when that was, by a clock that may be set: without
    taking it off again every live child would look dead after a correction of the time.
    """
    if psutil.LINUX:
        return float(round(process.create_time() - psutil.boot_time(), 2))
    return process.create_time()


class SlotFile:
    """The file with all slots of one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() < _FILE_SIZE:
                file.truncate(_FILE_SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FILE_SIZE)
        self._mutex = threading.Lock()

    def occupied(self) -> list[SlotView]:
        """Read the records in use."""
        views = (self.read(index) for index in range(SLOTS))
        return [view for view in views if view is not None]

    @property
    def stage(self) -> Stage:
        """How far the worker is on its way out."""
        return Stage(self._map[_STAGE])

    def drain(self) -> None:
        """Tell the children to start nothing more. One byte, so that a signal handler may."""
        self._map[_STAGE] = max(Stage.DRAINS, self.stage)

    def leave(self) -> None:
        """Tell the children to let go of what they run, and to end."""
        self._map[_STAGE] = Stage.LEAVES

    @property
    def stranded(self) -> tuple[int, ...]:
        """Messages that reached the worker, and that none of its children will take any more."""
        numbers = _STRANDED.unpack_from(self._map, _STRANDED_AT)
        return tuple(number for number in numbers if number)

    def strand(self, dispatch_ids: Sequence[int]) -> None:
        """Name such messages, so that a child's clerk finishes them: the parent knows no SQL."""
        numbers = [*dispatch_ids[:MOST_STRANDED], *[0] * (MOST_STRANDED - len(dispatch_ids))]
        _STRANDED.pack_into(self._map, _STRANDED_AT, *numbers)

    @property
    def reporting(self) -> bool:
        """Whether somebody wants to hear of single tasks now."""
        return self._map[_REPORTING] != 0

    def report(self, wanted: bool) -> None:  # noqa: FBT001  a switch
        """Tell the children whether to write events."""
        self._map[_REPORTING] = wanted

    def take(self, owner: str) -> Slot:
        """Take a free record for this process.

        Raises:
            RuntimeError: all are in use.
        """
        born = born_at(psutil.Process())
        with self._locked():
            for index in range(SLOTS):
                if self.read(index) is None:
                    slot = Slot(self, index, owner, born)
                    slot.beat()
                    return slot
        raise RuntimeError(f"All {SLOTS} slots are in use. Run more workers with fewer children.")

    def free(self, view: SlotView) -> bool:
        """Empty the record if it is still that child's; False: somebody else was faster."""
        with self._locked():
            now = self.read(view.index)
            if now is None or now.owner != view.owner:
                return False
            self.write(view.index, _EMPTY)
            return True

    def write(self, index: int, record: bytes) -> None:
        """Store one record."""
        self._map[index * _SIZE : index * _SIZE + len(record)] = record

    def read(self, index: int) -> SlotView | None:
        """Read one record; None: it is free."""
        values = _RECORD.unpack_from(self._map, index * _SIZE)
        pid, born, owner, since, kill_at, beat, hungry, runs, in_hand = values[:9]
        if pid == 0:
            return None
        name = owner.rstrip(b"\0").decode()
        numbers, messages = values[9 : 9 + 2 * runs], values[9 + 2 * MOST_RUNS :][:in_hand]
        running = tuple(map(Run, numbers[::2], numbers[1::2]))
        return SlotView(index, pid, born, name, messages, since, kill_at, beat, hungry, running)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude the other processes (flock) and our own other threads."""
        with self._mutex, self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Slot:
    """This child's own record. Any of its threads may write it."""

    def __init__(self, file: SlotFile, index: int, owner: str, born: float) -> None:
        self.owner = owner
        self._file = file
        self._index = index
        self._born = born
        self._pid = os.getpid()
        self._messages: dict[int, int] = {}
        self._beat = time.monotonic()
        self._hungry = 0.0
        self._running: dict[Run, tuple[float, float]] = {}
        self._lock = threading.Lock()
        self._left = False

    @property
    def stage(self) -> Stage:
        """How far this child's worker is on its way out."""
        return self._file.stage

    @property
    def stranded(self) -> tuple[int, ...]:
        """The worker's messages that nobody will take any more."""
        return self._file.stranded

    def message(self, dispatch_id: int) -> None:
        """Say which message is in this thread's hands; 0: none."""
        with self._lock:
            if dispatch_id:
                self._messages[threading.get_ident()] = dispatch_id
            else:
                self._messages.pop(threading.get_ident(), None)
            self._write()

    def start(self, run: Run, hard_limit_s: float) -> None:
        """Announce a task, before its payload is decoded."""
        with self._lock:
            started = time.monotonic()
            self._running[run] = (started, started + hard_limit_s)
            self._write()

    def finish(self, run: Run) -> None:
        """Take the task off: its outcome is collected, or its settle was answered."""
        with self._lock:
            self._running.pop(run, None)
            self._write()

    def beat(self) -> None:
        """Show that the clerk lives."""
        with self._lock:
            self._beat = time.monotonic()
            self._write()

    def hunger(self, hungry: bool) -> None:  # noqa: FBT001  a state, not an option
        """Say whether we are idle although messages wait that nobody takes."""
        with self._lock:
            self._hungry = time.monotonic() if hungry else 0.0
            self._write()

    def free(self) -> None:
        """Leave in an orderly way. From now on nothing is written: the record is others'."""
        with self._lock:
            if not self._left:
                self._left = True
                self._file.write(self._index, _EMPTY)

    def _write(self) -> None:
        if self._left:
            return
        runs = list(self._running)[:MOST_RUNS]
        messages = list(self._messages.values())[:MOST_RUNS]
        times = self._running.values()
        record = _RECORD.pack(
            self._pid,
            self._born,
            self.owner.encode()[:160],
            min((start for start, _ in times), default=0.0),
            min((kill_at for _, kill_at in times), default=0.0),
            self._beat,
            self._hungry,
            len(runs),
            len(messages),
            *(number for run in runs for number in run),
            *[0] * (2 * (MOST_RUNS - len(runs))),
            *messages,
            *[0] * (MOST_RUNS - len(messages)),
        )
        self._file.write(self._index, record)
