"""Loggers that never raise: a log that breaks must not break a worker.

Python's own handlers raise when the stream to which they report trouble is closed; those of others
raise what they like.
"""

from __future__ import annotations

import logging
from contextlib import suppress


class _QuietLogger(logging.Logger):
    def handle(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            super().handle(record)


def quiet_logger(name: str) -> logging.Logger:
    """Return the logger of this name, made quiet."""
    logger = logging.getLogger(name)
    logger.__class__ = _QuietLogger
    return logger
