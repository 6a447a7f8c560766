"""The process guard: what a handler did to the process that others use after it.

It looks when the handler's function ends, before anything of ours runs. What can be put back is put
back. What cannot be ends the process: one task is charged then, and no neighbour's SQL goes
into a foreign socket.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import resource
import signal
import sys
import tempfile
import threading
from contextlib import suppress

from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)

BROKEN_STATUS = 70
_KILLS = signal.SIG_DFL
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
        self._cpu_limit = resource.getrlimit(resource.RLIMIT_CPU)
        timers = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        self._timers = [each for each in timers if not any(signal.getitimer(each))]
        """Which nobody used when the process began: a profiler keeps its own."""
        if threading.get_ident() == self._main and signal.getsignal(signal.SIGALRM) == _KILLS:
            signal.signal(signal.SIGALRM, lambda *_: None)  # a thread's may ring; see below
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
            signal.setitimer(signal.ITIMER_REAL, 0)  # a thread's may not: it could be our limit
        for timer in self._timers:
            signal.setitimer(timer, 0)  # else it hits the next task, as all of these
        faulthandler.cancel_dump_traceback_later()
        if resource.getrlimit(resource.RLIMIT_CPU) != self._cpu_limit:
            self._put_back_cpu_limit()
        if sys.getrecursionlimit() < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        self._count_descriptors()

    def _put_back_cpu_limit(self) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, self._cpu_limit)
        except ValueError:  # the hard one was lowered, for ever
            log.critical("a handler limited the CPU time of this process, which should end")
            self.unfit = self._replaceable

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
