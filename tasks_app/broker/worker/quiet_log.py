"""Celery's own log of our messages: at DEBUG, for a message is a carrier and no task.

What became of tasks is in the attempt log. Of messages Celery says at INFO that each was received
and has succeeded, also those all of whose tasks failed.
"""

from __future__ import annotations

import logging

from celery.exceptions import WorkerLostError

from tasks_app.broker.config.defaults import OURS

_OF_MESSAGES = ("celery.worker.strategy", "celery.app.trace")
_OF_DEATHS = "celery.worker.request"


def quieten_messages() -> None:
    """Lower the level of what is said of our messages; other tasks' lines stay as they are."""
    for name in _OF_MESSAGES:
        logging.getLogger(name).addFilter(_lowered)
    logging.getLogger(_OF_DEATHS).addFilter(_without_traceback)


def _lowered(record: logging.LogRecord) -> bool:
    data = getattr(record, "data", None)
    if record.levelno == logging.INFO and isinstance(data, dict) and data.get("name") in OURS:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
    return True


def _without_traceback(record: logging.LogRecord) -> bool:
    """Of a child that died it would show where Celery noticed; our reaper says what ran."""
    args = record.args
    if isinstance(args, tuple) and args and isinstance(args[0], WorkerLostError):
        record.exc_info = record.exc_text = None
    return True
