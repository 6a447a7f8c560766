"""Time limits that are raised inside a handler, and nowhere else.

A signal that falls into a COMMIT does not stop it, so the limit is disarmed before any settle.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tasks_app.domain.errors import HandlerTimeoutError


class _Alarm:
    """The process's one alarm clock."""

    armed: float | None = None
    """The seconds of the running limit, or None."""
    error: Callable[[float], BaseException] = HandlerTimeoutError


def can_limit() -> bool:
    """Whether a limit can be raised here: only in a process's main thread."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def time_limit(
    seconds: float | None, error: Callable[[float], BaseException] = HandlerTimeoutError
) -> Iterator[None]:
    """Raise ``error`` in the block after so many seconds; None: never.

    Outside the main thread nothing is raised: there the hard limit is the only one.
    """
    if seconds is None or not can_limit():
        yield
        return
    _install()
    _Alarm.error = error
    _Alarm.armed = seconds
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        _Alarm.armed = None  # first: an alarm from here on is ignored
        signal.setitimer(signal.ITIMER_REAL, 0)


def _install() -> None:
    """Take the alarm clock, each time anew: handlers and libraries may have taken it meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    if signal.getsignal(signal.SIGALRM) is not _ring:
        signal.signal(signal.SIGALRM, _ring)


def _ring(_signal: int, _frame: FrameType | None) -> None:
    seconds = _Alarm.armed
    if seconds is not None:
        _Alarm.armed = None
        raise _Alarm.error(seconds)
