"""How a cancel is raised inside a running handler, and nowhere else.

In a process's main thread by a signal, which also ends what blocks; in another thread at its next
bytecode; in a coroutine at its next await.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from types import FrameType
from typing import Protocol

from tasks_app.domain.errors import TaskCancelledError

SIGNAL = signal.SIGURG
"""Whoever does not handle it is not harmed by it. The alarm belongs to limits and to handlers."""
_due: list[PlainCall] = []  # for the main thread
_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_exception.restype = ctypes.c_int
_NOTHING = ctypes.py_object()


class HandlerCall(Protocol):
    """One call of a run's handler, as the housekeeper sees it."""

    def interrupt(self) -> bool:
        """Raise TaskCancelledError in the handler, once; False: it is not called just now."""


def heed_interrupts() -> None:
    """Let calls in this process's main thread, which is the caller's, be interrupted at once."""
    signal.signal(SIGNAL, _raise_due)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})


def _raise_due(_signal: int, _frame: FrameType | None) -> None:
    while _due:
        if _due.pop().is_open:  # else its handler has returned, and another may have begun
            raise TaskCancelledError


class PlainCall:
    """A block around a plain handler. It costs each run a fraction of a microsecond."""

    __slots__ = ("_lock", "_thread", "_was_set", "is_open")

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread  # that calls the handler
        self._lock = threading.Lock()
        self._was_set = False
        self.is_open = True

    def __enter__(self) -> None:
        """Begin the handler."""

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.is_open = False
        if self._was_set:  # and may not be raised yet: it would hit our COMMIT, or the next run
            _set_exception(threading.get_ident(), _NOTHING)

    def interrupt(self) -> bool:
        with self._lock:  # the handler is not left meanwhile
            if not self.is_open:
                return False
            thread = self._thread
            by_signal = thread is threading.main_thread() and signal.getsignal(SIGNAL) is _raise_due
            if by_signal:
                _due.append(self)
                signal.pthread_kill(thread.ident or 0, SIGNAL)
            else:
                self._was_set = True
                _set_exception(thread.ident or 0, TaskCancelledError)
            return True


class AsyncCall:
    """Of a coroutine, in a task of its own, whose CancelledError is ours once this asked for it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = task
        self.asked = False

    def interrupt(self) -> bool:
        if self._task.done():
            return False
        self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        self.asked = self._task.cancel()
