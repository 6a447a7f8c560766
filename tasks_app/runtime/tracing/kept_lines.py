"""Log lines of a run: the last ones, of whichever logger, are kept beside its outcome.

A middleware says in a context variable whose lines they are; a handler of Python's logging takes
them from there. What a line holds, or how long it is, is no task's failure.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from tasks_app.domain.tasks.error_text import clean
from tasks_app.pool.tasks.log_lines import LinesOfRun
from tasks_app.runtime.handlers.context import TaskContext

LONGEST = 2_000
"""Characters of a line."""
_UNREADABLE = "(a line that cannot be formatted)"
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
        self._lock = threading.Lock()
        """A thread that the handler left behind may still log while the run ends."""

    def add(self, record: logging.LogRecord) -> None:
        text = clean(_text_of(record).removeprefix(self._prefix).lstrip(":, "), LONGEST)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        size = len(text.encode())
        with self._lock:
            self._lines.append(((at, clean(record.levelname, 20), text), size))
            self._bytes += size
            while len(self._lines) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._lines.popleft()[1]
                self.cut += 1

    def of(self, task_id: int, attempt: int) -> LinesOfRun | None:
        """Return what is to be kept; None: there was no line."""
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
        """Say nothing: those who print the line say so."""


_TAKER = _Taker()


def take_lines() -> None:
    """Listen to all loggers, those included that keep their lines from the root."""
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


def _text_of(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
    except Exception:
        return _UNREADABLE
    return text
