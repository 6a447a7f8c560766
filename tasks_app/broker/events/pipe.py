"""The pipe from the children to the worker's parent: events of tasks, line by line.

A child writes and goes on: it never waits, and when the pipe is full the line is lost. A written
line outlives a child that is killed the next moment, and keeps its order among all children of the
worker. Only the parent talks to the broker.
"""

from __future__ import annotations

import fcntl
import os
import select
from contextlib import suppress
from pathlib import Path

LONGEST_LINE = select.PIPE_BUF
"""Up to this length a write is atomic among all writers."""
ROOM = 1024 * 1024
"""Bytes that may wait for the parent: some thousand events, about a second of a busy worker."""
_PIECE = 64 * 1024


class EventPipe:
    """One worker's pipe, a FIFO in its slot folder; each process opens its own end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: int | None = None
        self._writing: int | None = None
        self._rest = b""
        self.lost = 0
        """Lines that this process could not write."""

    @classmethod
    def beside(cls, slots: Path) -> EventPipe:
        """Return the pipe of the worker with these slots."""
        return cls(slots.with_name("events"))

    def open(self) -> None:
        """Make the pipe and hold its reading end, for the parent.

        Opened for both directions, or it would be at its end when no child is there.
        """
        with suppress(FileExistsError):
            os.mkfifo(self._path, 0o600)
        self._reading = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(self._reading, fcntl.F_SETPIPE_SZ, ROOM)

    def write(self, line: bytes) -> None:
        """Write one line, or lose it."""
        if len(line) >= LONGEST_LINE:
            self.lost += 1
            return
        try:
            if self._writing is None:
                self._writing = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(self._writing, line + b"\n")
        except OSError:  # full, or the parent is not there
            self.lost += 1

    def read(self) -> list[bytes]:
        """Return some of the waiting lines; none: the pipe is empty."""
        if self._reading is None:
            return []
        try:
            piece = os.read(self._reading, _PIECE)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return lines

    def drain(self) -> None:
        """Discard the waiting lines."""
        while self.read():
            pass
