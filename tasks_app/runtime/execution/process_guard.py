"""The process guard: what a handler did to the process that others use after it.

It looks when the handler's function ends, before anything of ours runs. What can be put back is put
back. What cannot be ends the process: one task is charged then, and no neighbour's SQL goes
into a foreign socket.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
from contextlib import suppress

from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)

BROKEN_STATUS = 70
_POSITION = 0x7A5C5A9B
"""The position in an empty file of ours, which shows that its number is still its own. It is read
after each task, so that must be cheap: ``fstat`` took four times as long."""


class ProcessGuard:
    """A block around each handler; one object serves all threads of a process."""

    def __init__(self, *, replaceable: bool) -> None:
        self._replaceable = replaceable
        self._pid = os.getpid()
        self._main = threading.main_thread().ident
        self._recursion_limit = sys.getrecursionlimit()
        with tempfile.TemporaryFile() as file:
            self._guard_file = os.dup(file.fileno())
        os.lseek(self._guard_file, _POSITION, os.SEEK_SET)
        self.unfit = False
        """Whether this process should make room for another: it has no descriptors left."""

    def __enter__(self) -> None:
        """Begin the handler."""

    def __exit__(self, *_: object) -> None:
        """See what it left."""
        if os.getpid() != self._pid:
            os._exit(0)  # forked by the handler: fence, pipes and slot are not its own
        if threading.get_ident() == self._main:
            signal.setitimer(signal.ITIMER_REAL, 0)  # else its alarm hits the next task
        if sys.getrecursionlimit() < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        self._count_descriptors()

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._guard_file)

    def _count_descriptors(self) -> None:
        try:
            if os.lseek(self._guard_file, 0, os.SEEK_CUR) != _POSITION:
                self._end()  # another file has its number now
            os.close(os.dup(self._guard_file))
        except OSError as error:
            if error.errno in {errno.EBADF, errno.ESPIPE}:
                self._end()
            log.critical("a handler left no file descriptors; this process should end")
            self.unfit = self._replaceable

    def _end(self) -> None:
        log.critical("a handler closed descriptors that are not its own; this process ends")
        os._exit(BROKEN_STATUS)
