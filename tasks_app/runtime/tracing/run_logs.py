"""The attempt log: what a worker's log says of runs.

Each failed attempt is a line; a task that ends in the error pool has its traceback. How many
succeeded is logged every half minute. No line holds a value of a payload. Of failures that look
alike the first are logged, one with its traceback, and the others counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from tasks_app.domain.explain.words import rough
from tasks_app.domain.handlers.cause_line import exception_text
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind

logger = quiet_logger("tasks_app.attempts")

EVERY_S = 30.0
IN_FULL, SPAN_S = 10, 60.0
"""Lines of a sort that are written in a span. Failures are of a sort if they fail in one way."""
MOST_SORTS = 100
"""In a span. A handler may make a class of exceptions for each task: then they are one sort."""
_MINUTE_S, _DAY_S = 60.0, 86_400.0
_COUNTED = {
    NoticeKind.FAILED: True,  # whether it is said that there were none
    NoticeKind.RETRIED: True,
    NoticeKind.RESCUED: False,
    NoticeKind.SNOOZED: False,
    NoticeKind.CANCELLED: False,
    NoticeKind.SKIPPED: False,
}
_TROUBLES = (NoticeKind.FAILED, NoticeKind.RETRIED, NoticeKind.RESCUED)


class Sort(NamedTuple):
    """Failures that look alike."""

    name: str
    kind: NoticeKind
    cause: str


_OTHERS = Sort("other tasks", NoticeKind.RETRIED, "other errors")


class AttemptLog:
    """One process's; its threads add to it, its housekeeper lets it write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._succeeded = 0
        self._ended: Counter[NoticeKind] = Counter()
        self._since: float | None = None
        self._lines: Counter[Sort] = Counter()
        self._span_ends = 0.0

    def succeeded(self, number: int) -> None:
        with self._lock:
            self._succeeded += number
            if self._since is None:
                self._since = self._clock()

    def __call__(self, notice: Notice) -> None:
        """Count a run that did not; log it if it failed."""
        if notice.kind not in _COUNTED:
            return
        if notice.max_attempts is not None:  # else it was no run of this process
            with self._lock:
                self._ended[notice.kind] += 1
                if self._since is None:
                    self._since = self._clock()
        if notice.kind in _TROUBLES:
            self._say_left_out()
            place = self._place(notice)
            if place <= IN_FULL:
                _log(notice, with_trace=place == 1)

    def tell(self, *, last: bool = False) -> None:
        """Log the summary and what was left out, if it is time; else it costs two comparisons."""
        self._say_left_out(last=last)
        now = self._clock()
        if self._since is None or not (last or now - self._since >= EVERY_S):
            return
        with self._lock:
            succeeded, ended, since = self._succeeded, self._ended, self._since
            self._succeeded, self._ended, self._since = 0, Counter(), None
        number = succeeded + ended.total()
        if number:
            said = [f"{succeeded:,} succeeded"]
            said += [f"{ended[k]:,} {k}" for k, always in _COUNTED.items() if always or ended[k]]
            tasks = "task" if number == 1 else "tasks"
            logger.info(
                "ran %s %s in %.0f s: %s", f"{number:,}", tasks, now - since, ", ".join(said)
            )

    def _place(self, notice: Notice) -> int:
        """Count it; return which one of its sort it is in this span."""
        sort = Sort(notice.name, notice.kind, notice.cause.kind if notice.cause else "")
        with self._lock:
            if not self._lines:
                self._span_ends = self._clock() + SPAN_S
            if sort not in self._lines and len(self._lines) >= MOST_SORTS:
                sort = _OTHERS
            self._lines[sort] += 1
            return self._lines[sort]

    def _say_left_out(self, *, last: bool = False) -> None:
        if not self._lines or not (last or self._clock() >= self._span_ends):
            return
        with self._lock:
            lines, self._lines = self._lines, Counter()
        for sort, number in lines.items():
            if number > IN_FULL:
                logger.warning(
                    "left out %s more lines of %s, %s with %s, of the last %.0f s: "
                    "the first %s a minute are shown",
                    *(number - IN_FULL, sort.name, sort.kind, sort.cause, SPAN_S, IN_FULL),
                )


ATTEMPTS = AttemptLog()
HOOKS.follow(ATTEMPTS)


def _log(notice: Notice, *, with_trace: bool) -> None:
    over = notice.kind is NoticeKind.FAILED
    cause = notice.cause
    trace = cause.traceback if cause and over and with_trace else None
    text = exception_text(cause, notice.payload) if cause else "of unknown cause"
    logger.log(
        logging.ERROR if over else logging.WARNING,
        "task %s (%s): attempt %s %s: %s%s",
        notice.task_id,
        notice.name,
        _attempt(notice),
        _outcome(notice),
        text,
        f"\n{trace.rstrip()}" if trace else "",
        extra={
            "task_id": notice.task_id,
            "task_name": notice.name,
            "attempt": notice.attempt,
            "queue": notice.queue,
            "biz_key": notice.biz_key,
        },
    )


def _attempt(notice: Notice) -> str:
    """Name the attempt; only charged attempts count towards the maximum."""
    if notice.max_attempts is None or notice.kind is NoticeKind.RESCUED:
        return str(notice.attempt)
    if notice.attempt == notice.failures:
        return f"{notice.attempt} of {notice.max_attempts}"
    return f"{notice.attempt} ({notice.failures} of {notice.max_attempts} charged)"


def _outcome(notice: Notice) -> str:
    if notice.kind is NoticeKind.FAILED:
        return f"failed, and it is over (tasks-app show {notice.task_id})"
    if notice.kind is NoticeKind.RESCUED:
        return "was lost, not charged, again within 5 s"
    return f"failed, again {_when(notice.wait) if notice.wait else 'at once'}"


def _when(wait: timedelta) -> str:
    """Name the instant by our clock; by the database's it may be a moment off."""
    seconds = wait.total_seconds()
    at = time.gmtime(time.time() + seconds)  # noqa: TID251  shown to people; it decides nothing
    day = "%Y-%m-%d " if seconds >= _DAY_S else ""
    span = f"{seconds:.3g} s" if seconds < 2 * _MINUTE_S else rough(wait)
    return f"in {span} ({time.strftime(f'{day}%H:%M:%SZ', at)})"
