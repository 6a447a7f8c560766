"""A queue between threads whose items come out when their time has come."""

from __future__ import annotations

import heapq
import time
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class DelayQueue(Generic[T]):
    """Any thread may put, and never waits; one thread gets."""

    def __init__(self) -> None:
        self._new: SimpleQueue[tuple[float, T]] = SimpleQueue()
        self._later: list[tuple[float, int, T]] = []
        self._number = count()

    def put(self, item: T, at: float = 0.0) -> None:
        """Put in what may come out from the instant ``at`` on, by the monotonic clock."""
        self._new.put((at, item))

    def __len__(self) -> int:
        """Return how many are in it, nearly exactly."""
        return self._new.qsize() + len(self._later)

    def get(self) -> T:
        """Return what may come out; wait for it."""
        while True:
            left_s = self._later[0][0] - time.monotonic() if self._later else None
            if left_s is not None and left_s <= 0:
                return heapq.heappop(self._later)[2]
            with suppress(Empty):
                at, item = self._new.get(timeout=left_s)
                if at <= time.monotonic():
                    return item
                heapq.heappush(self._later, (at, next(self._number), item))

    def get_due(self) -> T:
        """Return what may come out now.

        Raises:
            queue.Empty: nothing may.
        """
        while True:
            if self._later and self._later[0][0] <= time.monotonic():
                return heapq.heappop(self._later)[2]
            at, item = self._new.get_nowait()
            if at <= time.monotonic():
                return item
            heapq.heappush(self._later, (at, next(self._number), item))
