"""The tasks of a buffer between the threads that create them and the one that writes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tasks_app.domain.errors import TaskBufferFullError, TasksError
from tasks_app.domain.tasks.records import TaskRow


@dataclass(slots=True)
class BufferCounts:
    """What became of the tasks of a buffer, in this process."""

    waiting: int = 0
    """Those that are being written included."""
    written: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """How many tasks a buffer writes together and holds, and how long it waits."""

    size: int
    every_s: float
    capacity: int
    block_s: float


class BufferQueue:
    """Any thread puts; one thread takes batches and settles each."""

    def __init__(self, limits: BufferLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self.changed: threading.Condition = threading.Condition()
        self._waiting: deque[TaskRow] = deque()
        self._since = 0.0
        """Since when the first of them has waited, or a batch was taken."""
        self._taken = self._flush_to = 0
        self._counts = BufferCounts()
        self.closed: bool = False
        self._given_up = False

    def put(self, row: TaskRow) -> None:
        """Add a row; waits for room.

        Raises:
            TasksError: the queue is closed.
            TaskBufferFullError: there was no room for as long as it may block.
        """
        with self.changed:
            if not self._has_room():
                self.changed.wait_for(self._has_room, self._limits.block_s)
            if self.closed:
                raise TasksError("The buffer is closed. Create tasks before its with block ends.")
            if not self._has_room():
                raise TaskBufferFullError(self._limits.capacity)
            self._waiting.append(row)
            self._taken += 1
            if len(self._waiting) == 1:
                self._since = self._clock()
            if len(self._waiting) in (1, self._limits.size):
                self.changed.notify_all()

    def flush(self, timeout_s: float | None) -> bool:
        """Have all rows written that were put so far; False: one is late, or was lost."""
        with self.changed:
            target, lost = self._taken, self._counts.lost
            self._flush_to = target
            self.changed.notify_all()
            settled = self.changed.wait_for(lambda: self._settled >= target, timeout_s)
            return settled and self._counts.lost == lost

    def close(self) -> None:
        """Refuse further rows; what waits is still taken."""
        with self.changed:
            self.closed = True

    def give_up(self) -> list[TaskRow]:
        """Return the rows that were not taken yet; nothing is tried again from now on."""
        with self.changed:
            self._given_up = True
            rest = list(self._waiting)
            self._waiting.clear()
            self.changed.notify_all()
            return rest

    def counts(self) -> BufferCounts:
        with self.changed:
            return replace(self._counts, waiting=self._taken - self._settled)

    def take(self) -> list[TaskRow]:
        """Wait for a batch that is full, old enough or flushed; empty: the queue has ended."""
        with self.changed:
            while not self._is_ripe():
                if self.closed and not self._waiting:
                    return []
                left_s = self._due_at - self._clock() if self._waiting else None
                self.changed.wait(left_s)
            size = min(self._limits.size, len(self._waiting))
            self._since = self._clock()
            return [self._waiting.popleft() for _ in range(size)]

    def settle(self, number: int, *, written: int) -> None:
        """Note what became of ``number`` rows; those that were not written are lost."""
        with self.changed:
            self._counts.written += written
            self._counts.lost += number - written
            self.changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait before the next try; False: there is to be none."""
        with self.changed:
            return not self.changed.wait_for(lambda: self._given_up, seconds)

    @property
    def _settled(self) -> int:
        return self._counts.written + self._counts.lost

    @property
    def _due_at(self) -> float:
        return self._since + self._limits.every_s

    def _has_room(self) -> bool:
        return self._taken - self._settled < self._limits.capacity or self.closed

    def _is_ripe(self) -> bool:
        waiting = len(self._waiting)
        return waiting >= self._limits.size or (
            waiting > 0 and (self._settled < self._flush_to or self._clock() >= self._due_at)
        )
