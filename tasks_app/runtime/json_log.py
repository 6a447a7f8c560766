"""Log lines as JSON, one object a line, for those who collect them.

What a line may hold is listed here: other fields of a record, which may have payloads, are left
out. The text is the one that a person would read, and as careful with secrets.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import UTC, datetime

_OF_A_RUN = {
    "task_id": "task_id",
    "task_name": "name",
    "attempt": "attempt",
    "queue": "queue",
    "biz_key": "biz_key",
}
"""Our fields of a record, and what they are called in the line."""
_names: dict[int, str] = {}


def name_worker(owner: str) -> None:
    """Let the lines of this process say so; a child that is forked from it has another pid."""
    _names[os.getpid()] = owner


class JsonLines(logging.Formatter):
    """Writes time, level, logger, worker, message, and of a run which task and attempt it is."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname,
            "logger": record.name,
            "worker": _names.get(os.getpid()) or f"{socket.gethostname()}:{os.getpid()}",
            "message": record.getMessage(),
        }
        for field, name in _OF_A_RUN.items():
            value = getattr(record, field, None)
            if isinstance(value, str | int):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
