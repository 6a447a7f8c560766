"""The scoreboard: what each child runs, in a file that outlives it, so that a death has a cause.

One record per child *incarnation* in a file that all processes of a worker map. Writing it costs
nothing, so every task is announced before its payload is touched; the database is not asked.
"""

from __future__ import annotations

import fcntl
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks_app.runtime.scoreboard import layout
from tasks_app.runtime.scoreboard.layout import SLOTS, SlotView
from tasks_app.runtime.scoreboard.process_birth import own_birth
from tasks_app.runtime.scoreboard import Slot
from tasks_app.runtime.scoreboard import Stage


class Scoreboard:
    """The file with all slots of one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() < layout.FILE_SIZE:
                file.truncate(layout.FILE_SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), layout.FILE_SIZE)
        self._view = memoryview(self._map)
        self._mutex = threading.Lock()

    def occupied(self) -> list[SlotView]:
        views = map(self.read, layout.occupied(self._view))
        return [view for view in views if view is not None]

    @property
    def stage(self) -> Stage:
        """How far the worker is in its shutdown."""
        return Stage(self._map[layout.STAGE_AT])

    @property
    def runs(self) -> bool:
        """Whether the worker is not stopping. Asked before each task."""
        return self._map[layout.STAGE_AT] == 0

    def drain(self) -> None:
        """Tell the children to start nothing more. One byte, so that a signal handler may do it."""
        self._map[layout.STAGE_AT] = max(Stage.DRAINS, self.stage)

    def leave(self) -> None:
        """Tell the children to let go of what they run, and to end."""
        self._map[layout.STAGE_AT] = Stage.LEAVES

    @property
    def reporting(self) -> bool:
        """Whether somebody wants to hear of single tasks now."""
        return self._map[layout.REPORTING_AT] != 0

    def report(self, wanted: bool) -> None:  # noqa: FBT001  a switch
        """Tell the children whether to write events."""
        self._map[layout.REPORTING_AT] = wanted

    @property
    def tidy_at(self) -> float:
        """When one of the children is to tidy the pool, for all of them."""
        return layout.read_tidy_at(self._view)

    @tidy_at.setter
    def tidy_at(self, instant: float) -> None:
        self.write(layout.TIDY_AT, layout.tidy_at(instant))

    def take(self, owner: str) -> Slot:
        """Take a free record for this process.

        Raises:
            RuntimeError: all are in use.
        """
        born = own_birth()
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
            self.write(layout.head_at(view.index), layout.NO_HEAD)
            return True

    def note_kill(self, view: SlotView, instant: float) -> None:
        """Say why the child is killed: the runs that are past their hard limits then."""
        self.write(layout.kill_at(view.index), layout.kill(view.pid, instant))

    def write(self, at: int, record: bytes) -> None:
        self._map[at : at + len(record)] = record

    def read(self, index: int) -> SlotView | None:
        return layout.read(self._view, index)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude the other processes (flock) and our own other threads."""
        with self._mutex, self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
