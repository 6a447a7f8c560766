"""Processes that hold a slot and can be killed: forks of the test, which do nothing else."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tasks_app.domain.tasks.run import Run
from tasks_app.runtime.scoreboard import Scoreboard


class Mortal:
    """A process that took a slot and says that it runs these."""

    def __init__(
        self,
        slots: Scoreboard,
        owner: str,
        running: Sequence[Run] = (),
        *,
        messages: int = 0,
        hard_limit_s: float = 3600.0,
    ) -> None:
        told, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child calls us only
            self.pid = os.fork()
        if self.pid == 0:
            try:
                slot = slots.take(owner)
                for _ in range(messages):
                    slot.message(in_hand=True)
                for run in running:
                    slot.start(run, hard_limit_s)
                os.write(tell, b"!")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(tell)
        assert os.read(told, 1) == b"!"
        os.close(told)
        self._reaped = False

    def kill(self, *, reap: bool = True) -> int:
        """Kill it, and return its pid; without ``reap`` it stays a zombie."""
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)
            if reap:
                self.reap()
        return self.pid

    def reap(self) -> int:
        """Wait for its end; return the signal that ended it."""
        _, status = os.waitpid(self.pid, 0)
        self._reaped = True
        return os.WTERMSIG(status)


class Forked:
    """A fork of the test that does its work until it is killed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._reaped = False

    def kill(self) -> None:
        """Kill and reap it, once."""
        if not self._reaped:
            self._reaped = True
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[Forked]:
    """Let another process work; it is killed at the latest at the end of the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    process = Forked(pid)
    try:
        yield process
    finally:
        process.kill()
