"""What a handler writes down: the task's index and when its run began and ended.

One file per process, mapped into memory, so that a mark costs under a microsecond, the same for
every system, and survives a kill. All processes of a machine share the monotonic clock. Marks are
appended, not put at the index: a task that ran twice has two.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

RECORD = Struct("=qqq")  # index + 1, started, ended; nanoseconds
SPARE = 2
"""Room for this many times the tasks, should they run more than once."""

now = time.monotonic_ns
_opening = threading.Lock()
_writers: dict[int, Callable[[int, int], None]] = {}


def mark(index: int, started: int) -> None:
    """Note that the run of task ``index`` began at ``started`` and ends now."""
    write = _writers.get(os.getpid()) or _writer()
    write(index, started)


def gather(name: str) -> None:
    """Wait until all of a system's processes are here, so that none starts while another works."""
    folder, parties = Path(os.environ["BENCH_MARKS"]), int(os.environ.get("BENCH_PARTIES", "1"))
    (folder / f"{name}.{os.getpid()}.here").touch()
    until = time.monotonic() + 20
    while len(list(folder.glob(f"{name}.*.here"))) < parties and time.monotonic() < until:
        time.sleep(0.002)


def _writer() -> Callable[[int, int], None]:
    with _opening:
        if os.getpid() not in _writers:
            _writers[os.getpid()] = _open(Path(os.environ["BENCH_MARKS"]))
        return _writers[os.getpid()]


def _open(folder: Path) -> Callable[[int, int], None]:
    tasks = int(os.environ["BENCH_N"])
    with (folder / f"{os.getpid()}.marks").open("wb+") as file:
        file.truncate(RECORD.size * (tasks * SPARE + 1))
        memory = mmap.mmap(file.fileno(), 0)
    places = itertools.count()  # next() is atomic, so threads share it
    write = RECORD.pack_into

    def put(index: int, started: int) -> None:
        write(memory, next(places) * RECORD.size, index + 1, started, now())

    return put


class Marks:
    """All marks of a run, as its watcher reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}

    def count(self) -> int:
        """Return how many there are, at the cost of the new ones."""
        for path in self.folder.glob("*.marks"):
            with path.open("rb") as file:
                place = self._read.get(path, 0)
                file.seek(place * RECORD.size)
                while chunk := file.read(RECORD.size * 4096):
                    new = sum(1 for index in _numbers(chunk)[0::3] if index)
                    place += new
                    if new < 4096:
                        break
                self._read[path] = place
        return sum(self._read.values())

    def all(self) -> Iterator[tuple[int, int, int]]:
        """Yield index, start and end of every run."""
        for path in self.folder.glob("*.marks"):
            numbers = _numbers(path.read_bytes())
            for index, started, ended in zip(
                numbers[0::3], numbers[1::3], numbers[2::3], strict=True
            ):
                if index:
                    yield index - 1, started, ended


def _numbers(data: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(data[: len(data) // RECORD.size * RECORD.size])
    return numbers
