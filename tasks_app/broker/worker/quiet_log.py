"""Celery's own log of our messages goes to DEBUG: a message carries tasks and is none.

How tasks ended is in the attempt log. Celery logs each message at INFO as received and succeeded,
even one all of whose tasks failed.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from tasks_app.broker.defaults import OURS
from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)

PLANNED = "exitcode 0 "
"""How a child ends that gave its tasks back: a signal or its worker asked it to."""
_OF_MESSAGES = ("celery.worker.strategy", "celery.app.trace")
_OF_DEATHS = "celery.worker.request"


class MessageRequest(Request):
    """Celery's request for a message of ours."""

    def on_failure(self, exc_info: Any, *given: Any, return_ok: bool = False, **named: Any) -> Any:
        """Log no error where a child left as planned; it says itself what it let go of."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard may wrap it
        planned = isinstance(error, WorkerLostError) and PLANNED in str(error)
        if planned:
            log.info("a child left as planned, and with it message %s", self.id)
        return super().on_failure(exc_info, *given, return_ok=return_ok or planned, **named)


def quieten_messages() -> None:
    """Lower the level of lines about our messages; lines about other tasks stay as they are."""
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
    """Drop the traceback of a child's death: it shows where Celery noticed, not what ran."""
    args = record.args
    if isinstance(args, tuple) and args and isinstance(args[0], WorkerLostError):
        record.exc_info = record.exc_text = None
    return True
