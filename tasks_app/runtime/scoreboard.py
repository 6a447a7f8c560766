"""A child's slot in the scoreboard."""

from __future__ import annotations

import os
import threading
import time
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.scoreboard import layout
from tasks_app.runtime.scoreboard.layout import MOST_RUNS

if TYPE_CHECKING:
    from tasks_app.runtime.scoreboard.scoreboard import Scoreboard


class Stage(IntEnum):
    """How far a worker is in its shutdown. It only rises."""

    RUNS = 0
    DRAINS = 1
    """Nothing more starts; what runs may end."""
    LEAVES = 2
    """What still runs is let go."""


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
        self._untold: set[Run] = set()
        self._lock = threading.Lock()
        self._left = False

    @property
    def stage(self) -> Stage:
        return self._file.stage

    @property
    def runs(self) -> bool:
        return self._file.runs

    @property
    def tidy_at(self) -> float:
        """When one of the worker's children is to tidy the pool, for all of them."""
        return self._file.tidy_at

    @tidy_at.setter
    def tidy_at(self, instant: float) -> None:
        self._file.tidy_at = instant

    @property
    def others_run(self) -> bool:
        """Whether a sibling that lives has a task in hand."""
        others = (view for view in self._file.occupied() if view.index != self._index)
        return any((view.running or view.untold) and not view.dead for view in others)

    def message(self, *, in_hand: bool) -> None:
        """Say that a message comes into this thread's hands, or is over."""
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
                self._untold.add(run)
                self._write()
                return
            self._places[run] = place
            entry = layout.a_run(run, started, started + hard_limit_s)
            self._file.write(layout.run_at(self._index, place), entry)
            if place == self._places_used:
                self._places_used += 1
                self._write()

    def follow(self, before: Run, run: Run, since: float, kill_at: float) -> None:
        """Announce a task in the place of the one before it, which is over; in one write.

        Both instants are of ``time.monotonic``.
        """
        with self._lock:
            place = self._places.pop(before, None)
            if place is not None:
                self._places[run] = place
                if not self._left:
                    at = layout.run_at(self._index, place)
                    self._file.write(at, layout.a_run(run, since, kill_at))
                return
        self.finish(before)
        self.start(run, kill_at - since)

    def finish(self, run: Run) -> None:
        """Take the task off: its outcome is collected, or its settle was answered."""
        with self._lock:
            place = self._places.pop(run, None)
            if place is not None:
                heappush(self._free, place)
                if not self._left:
                    self._file.write(layout.run_at(self._index, place), layout.NO_RUN)
            elif run in self._untold:
                self._untold.remove(run)
                self._write()

    def beat(self) -> None:
        with self._lock:
            self._beat = time.monotonic()
            self._write()

    def hunger(self, hungry: bool) -> None:  # noqa: FBT001  a state, not an option
        """Show whether we are idle although tasks are due that nobody takes."""
        with self._lock:
            self._hungry = time.monotonic() if hungry else 0.0
            self._write()

    def free(self) -> None:
        """Free the record. From now on nothing is written to it: it may be another child's."""
        with self._lock:
            if not self._left:
                self._left = True
                self._file.write(layout.head_at(self._index), layout.NO_HEAD)

    def _write(self) -> None:
        if self._left:
            return
        record = layout.head(
            pid=self._pid,
            born=self._born,
            owner=self.owner,
            beat=self._beat,
            hungry=self._hungry,
            places=self._places_used,
            untold=len(self._untold),
            messages=self._messages,
        )
        self._file.write(layout.head_at(self._index), record)
