"""Time limits that are raised inside a handler, and nowhere else.

A signal cannot stop a COMMIT, so the limit is disarmed before the run is settled.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration
from tasks_app.domain.errors import ConfigurationError, HandlerTimeoutError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask

log = quiet_logger(__name__)


def can_limit() -> bool:
    """Whether this thread can be interrupted: only a process's main thread can."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def time_limit(
    seconds: float | None, error: Callable[[float], BaseException] = HandlerTimeoutError
) -> Iterator[None]:
    """Raise ``error`` in the block after so many seconds; None: never. Only in the main thread.

    The process has one alarm, which handlers and libraries may take, so each block sets it again.
    """
    if seconds is None or not can_limit():
        yield
        return
    armed, ends = True, time.monotonic() + seconds

    def ring(_signal: int, _frame: FrameType | None) -> None:
        nonlocal armed
        left_s = ends - time.monotonic()
        if armed and left_s > 0:  # it was set by another thread, or by a handler beside this one
            signal.setitimer(signal.ITIMER_REAL, left_s)
        elif armed:
            armed = False
            raise error(seconds)

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        armed = False  # first: an alarm from here on is ignored
        signal.setitimer(signal.ITIMER_REAL, 0)


def check_hard_limit(
    specs: Iterable[HandlerSpec], timeout: timedelta | None, hard_timeout: timedelta
) -> None:
    """Refuse a timeout that is longer than the hard limit, which would kill the process first."""
    limits = [("TASKS_APP_TIMEOUT", timeout, hard_timeout)]
    limits += [(f"timeout of {s.name}", s.timeout, s.hard_timeout or hard_timeout) for s in specs]
    for name, soft, hard in limits:
        if soft and soft > hard:
            raise ConfigurationError(
                f"{name} is {format_duration(soft)}, longer than the hard limit, "
                f"{format_duration(hard)}, at which the process is killed. Give the handler a "
                "longer hard_timeout, or set TASKS_APP_HARD_TIMEOUT."
            )


class TimeLimits:
    """The limits of one child's runs; ``watched``: a parent kills what runs past its hard limit."""

    def __init__(self, settings: Settings, *, watched: bool) -> None:
        self._timeout = settings.timeout
        self._hard_timeout = settings.hard_timeout
        self._watched = watched
        self._warned: set[str] = set()

    def timeout_s(self, task: ClaimedTask, spec: HandlerSpec) -> float | None:
        """Return after how many seconds ``timeout`` is raised in the handler; None: never."""
        if task.timeout_ms is not None:
            return task.timeout_ms / 1000
        return self.limit_s(spec)

    def limit_s(self, spec: HandlerSpec) -> float | None:
        """Return the timeout of tasks that have none of their own."""
        limit = spec.timeout or self._timeout
        return None if limit is None else limit.total_seconds()

    def hard_timeout_s(self, task: ClaimedTask, spec: HandlerSpec) -> float:
        """Return after how many seconds the process is killed."""
        if task.hard_timeout_ms is not None:
            return task.hard_timeout_ms / 1000
        return self.hard_limit_s(spec)

    def hard_limit_s(self, spec: HandlerSpec) -> float:
        return (spec.hard_timeout or self._hard_timeout).total_seconds()

    def warn_if_unenforced(self, task: ClaimedTask, spec: HandlerSpec) -> None:
        """Warn once per name that a task's own limit does nothing here."""
        if task.timeout_ms is None and task.hard_timeout_ms is None:
            return
        keeps = spec.is_async or spec.keeps_timeout or can_limit()
        unenforced = [
            *["timeout"] * (task.timeout_ms is not None and not keeps),
            *["hard_timeout"] * (task.hard_timeout_ms is not None and not self._watched),
        ]
        if unenforced and task.name not in self._warned:
            self._warned.add(task.name)
            log.warning(
                "task %s (%s) has its own %s, which this pool cannot enforce; use prefork",
                task.task_id,
                task.name,
                " and ".join(unenforced),
            )
