"""A queue between threads whose items come out when they are due."""

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
        """Add an item that may come out from the instant ``at`` on, by ``time.monotonic``."""
        self._new.put((at, item))

    def __len__(self) -> int:
        """Nearly exact."""
        return self._new.qsize() + len(self._later)

    def get(self) -> T:
        """Wait for an item that is due, and return it."""
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
        """Return an item that is due.

        Raises:
            queue.Empty: none is.
        """
        while True:
            if self._later and self._later[0][0] <= time.monotonic():
                return heapq.heappop(self._later)[2]
            at, item = self._new.get_nowait()
            if at <= time.monotonic():
                return item
            heapq.heappush(self._later, (at, next(self._number), item))
