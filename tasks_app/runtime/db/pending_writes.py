"""Pending writes: what must reach the database, however often it is tried; each can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

PendingWrite = Callable[[Connection], object]


class PendingWrites:
    """Any thread adds; the housekeeper takes all, and puts back what failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[PendingWrite] = []
        self._out = False

    def add(self, pending_write: PendingWrite) -> None:
        with self._lock:
            self._waiting.append(pending_write)

    def take(self) -> list[PendingWrite]:
        """Take all; call :meth:`leave` with those that failed."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._out = bool(taken)
            return taken

    def leave(self, pending_writes: Sequence[PendingWrite]) -> None:
        """Put back what failed, behind what was added meanwhile."""
        with self._lock:
            self._waiting += pending_writes
            self._out = False

    @property
    def open(self) -> bool:
        """Whether any waits, or was taken and may still fail."""
        with self._lock:
            return bool(self._waiting) or self._out
