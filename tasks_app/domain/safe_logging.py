"""Loggers that never raise: a broken log must not break a worker.

Python's own log handlers raise when stderr, to which they report trouble, is closed; others may
raise anything.
"""

from __future__ import annotations

import logging
from contextlib import suppress


class _QuietLogger(logging.Logger):
    def handle(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            super().handle(record)


def quiet_logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.__class__ = _QuietLogger
    return logger
