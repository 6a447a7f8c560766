"""What a worker logs of runs, as text or JSON, and the last lines of each run, kept with it."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, ProgrammingError

from tasks_app.domain.durations import rough_span
from tasks_app.domain.handlers.settlement import exception_text
from tasks_app.domain.tasks.error_text import first_line, quiet_logger, storable_text
from tasks_app.pool.tasks.run_records import LinesOfRun, keep_lines
from tasks_app.runtime.db.errors import PendingWrite
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind

logger = quiet_logger("tasks_app.attempts")
log = quiet_logger(__name__)
EVERY_S = 30.0
# Lines of a sort in a span that are logged. Failures are of a sort if they fail in one way.
IN_FULL, SPAN_S = 10, 60.0
# In a span. A handler may make an exception class for each task: then they are one sort.
MOST_SORTS = 100
_COUNTED = {
    NoticeKind.FAILED: True,  # whether the summary names a count of zero
    NoticeKind.RETRIED: True,
    NoticeKind.RESCUED: False,
    NoticeKind.SNOOZED: False,
    NoticeKind.CANCELLED: False,
    NoticeKind.SKIPPED: False,
}
Sort = tuple[str, NoticeKind, str]  # a task's name, and the class of its error
_OTHERS: Sort = ("other tasks", NoticeKind.RETRIED, "other errors")
_TROUBLES = (NoticeKind.FAILED, NoticeKind.RETRIED, NoticeKind.RESCUED)


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
        """Count a run that did not succeed; log it if it failed."""
        if notice.kind not in _COUNTED:
            return
        if notice.max_attempts is not None:  # otherwise it was no run of this process
            with self._lock:
                self._ended[notice.kind] += 1
                if self._since is None:
                    self._since = self._clock()
        if notice.kind in _TROUBLES:
            self._log_left_out()
            place = self._place(notice)
            if place <= IN_FULL:
                _log(notice, with_trace=place == 1)

    def tell(self, *, last: bool = False) -> None:
        """Log the summary and what was left out, if it is time; cheap while it is not."""
        self._log_left_out(last=last)
        now = self._clock()
        if self._since is None or not (last or now - self._since >= EVERY_S):
            return
        with self._lock:
            succeeded, ended, since = self._succeeded, self._ended, self._since
            self._succeeded, self._ended, self._since = 0, Counter(), None
        number = succeeded + ended.total()
        if number:
            counts = [f"{succeeded:,} succeeded"]
            counts += [f"{ended[k]:,} {k}" for k, always in _COUNTED.items() if always or ended[k]]
            ran = f"{number:,} {'task' if number == 1 else 'tasks'}"
            logger.info("ran %s in %.0f s: %s", ran, now - since, ", ".join(counts))

    def _place(self, notice: Notice) -> int:
        sort = (notice.name, notice.kind, notice.cause.kind if notice.cause else "")
        with self._lock:
            if not self._lines:
                self._span_ends = self._clock() + SPAN_S
            if sort not in self._lines and len(self._lines) >= MOST_SORTS:
                sort = _OTHERS
            self._lines[sort] += 1
            return self._lines[sort]

    def _log_left_out(self, *, last: bool = False) -> None:
        if not self._lines or not (last or self._clock() >= self._span_ends):
            return
        with self._lock:
            lines, self._lines = self._lines, Counter()
        for sort, number in lines.items():
            if number > IN_FULL:
                logger.warning(
                    "left out %s more lines of %s, %s with %s, of the last %.0f s: "
                    "the first %s a minute are shown",
                    *(number - IN_FULL, *sort, SPAN_S, IN_FULL),
                )


ATTEMPTS = AttemptLog()
HOOKS.follow(ATTEMPTS)


def _log(notice: Notice, *, with_trace: bool) -> None:
    over = notice.kind is NoticeKind.FAILED
    cause, attempt = notice.cause, str(notice.attempt)
    if notice.max_attempts is not None and notice.kind is not NoticeKind.RESCUED:
        if notice.attempt == notice.failures:
            attempt += f" of {notice.max_attempts}"
        else:  # only charged attempts count
            attempt += f" ({notice.failures} of {notice.max_attempts} charged)"
    if over:
        outcome = f"failed, and it is over (tasks-app show {notice.task_id})"
    elif notice.kind is NoticeKind.RESCUED:
        outcome = "was lost, not charged, again within 5 s"
    else:
        outcome = f"failed, again {_instant_in(notice.wait) if notice.wait else 'at once'}"
    trace = cause.traceback if cause and over and with_trace else None
    text = exception_text(cause, notice.payload) if cause else "of unknown cause"
    logger.log(
        logging.ERROR if over else logging.WARNING,
        "task %s (%s): attempt %s %s: %s%s",
        *(notice.task_id, notice.name, attempt, outcome, text),
        f"\n{trace.rstrip()}" if trace else "",
        extra={field: getattr(notice, name) for field, name in _NOTICE_FIELDS.items()},
    )


def _instant_in(wait: timedelta) -> str:
    """Return the wait, and the instant by our clock: by the database's it may be a moment off."""
    seconds = wait.total_seconds()
    at = time.gmtime(time.time() + seconds)  # noqa: TID251  shown to people; it decides nothing
    day = "%Y-%m-%d " if wait >= timedelta(days=1) else ""
    span = f"{seconds:.3g} s" if wait < timedelta(minutes=2) else rough_span(wait)
    return f"in {span} ({time.strftime(f'{day}%H:%M:%SZ', at)})"


LONGEST_KEPT_LINE = 2_000  # characters of a line
_FORMATTER = logging.Formatter()


class RunLines:
    """Those of one run; the log's handler adds one at a time."""

    def __init__(self, most: int, most_bytes: int, prefix: str) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._prefix = prefix
        self._lines: deque[tuple[tuple[str, str, str], int]] = deque()
        self._bytes = 0
        self.cut = 0
        self._lock = threading.Lock()  # a thread left behind may log while the run ends

    def add(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
        except Exception:
            text = "(a line that cannot be formatted)"
        text = storable_text(text.removeprefix(self._prefix).lstrip(":, "), LONGEST_KEPT_LINE)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        size = len(text.encode())
        with self._lock:
            self._lines.append(((at, storable_text(record.levelname, 20), text), size))
            self._bytes += size
            while len(self._lines) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._lines.popleft()[1]
                self.cut += 1

    def of(self, task_id: int, attempt: int) -> LinesOfRun | None:
        """Return the lines to keep; None: there were none."""
        with self._lock:
            lines, cut = [line for line, _ in self._lines], self.cut
        if not lines:
            return None
        return LinesOfRun(task_id, attempt, json.dumps(lines, ensure_ascii=False), cut)


_CURRENT: ContextVar[RunLines | None] = ContextVar("tasks_app_lines", default=None)


class _Taker(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines = _CURRENT.get()
        if lines is not None:
            lines.add(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  its name in logging
        """Report nothing: the handlers that print the line do."""


_TAKER = _Taker()


def take_lines() -> None:
    """Listen to all loggers, also those that do not propagate to the root."""
    known = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    for logger in (logging.root, *(logger for logger in known if not logger.propagate)):
        logger.addHandler(_TAKER)


class KeptLines:
    """A middleware that hands on the lines of each run when it is over."""

    def __init__(self, most: int, most_bytes: int, keep: Callable[[LinesOfRun], None]) -> None:
        self._limits = most, most_bytes
        self._keep = keep

    def __call__(self, context: TaskContext, call: Callable[[], Any]) -> Any:
        words = f"task {context.task_id} ({context.name}), attempt {context.attempt}"
        lines = RunLines(*self._limits, words)
        token = _CURRENT.set(lines)
        leaves_nothing = False
        try:
            value = call()
            leaves_nothing = not context.is_kept
            return value
        finally:
            _CURRENT.reset(token)
            kept = None if leaves_nothing else lines.of(context.task_id, context.attempt)
            if kept is not None:
                self._keep(kept)


LINES_AT_ONCE = 1_000  # runs whose lines wait for a database that is away; more are left out


class LineWriter:
    """One child's; its threads add to it, its housekeeper writes."""

    def __init__(self, write_later: Callable[[PendingWrite], object]) -> None:
        self._write_later = write_later
        self._lock = threading.Lock()
        self._open: list[LinesOfRun] | None = None

    def keep(self, run: LinesOfRun) -> None:
        with self._lock:
            if self._open is None:
                batch: list[LinesOfRun] = []
                self._open = batch
                self._write_later(lambda connection: self._write(connection, batch))
            if len(self._open) < LINES_AT_ONCE:
                self._open.append(run)

    def _write(self, connection: Connection, batch: list[LinesOfRun]) -> None:
        """Write a batch; it is called again while the database does not answer."""
        with self._lock:
            if self._open is batch:
                self._open = None
        try:
            keep_lines(connection, batch)
        except (DataError, ProgrammingError) as error:  # permanent: a right is missing, for example
            log.warning("log lines of %s runs are not kept: %s", len(batch), first_line(error))


# Fields of a log record: their attribute of a notice, and their name in a JSON line.
_NOTICE_FIELDS = {
    "task_id": "task_id",
    "task_name": "name",
    "attempt": "attempt",
    "queue": "queue",
    "biz_key": "biz_key",
}
_names: dict[int, str] = {}


def name_worker(owner: str) -> None:
    """Set the worker of this process's lines; a forked child has another pid."""
    _names[os.getpid()] = owner


class JsonLines(logging.Formatter):
    """Writes time, level, logger, worker and message, and for a run its task and attempt."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname,
            "logger": record.name,
            "worker": _names.get(os.getpid()) or f"{socket.gethostname()}:{os.getpid()}",
            "message": record.getMessage(),
        }
        for field, name in _NOTICE_FIELDS.items():
            value = getattr(record, field, None)
            if isinstance(value, str | int):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
