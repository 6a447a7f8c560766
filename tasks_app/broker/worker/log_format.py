"""The form of a worker's and beat's log: Celery's own, or JSON lines."""

from __future__ import annotations

import logging
from typing import Any

from celery.signals import after_setup_logger, after_setup_task_logger

from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.json_log import JsonLines


def format_logs(settings: Settings) -> None:
    """Give what Celery sets up our form; whoever connects ``setup_logging`` decides alone."""
    if settings.log_format == "json":
        for signal in (after_setup_logger, after_setup_task_logger):
            signal.connect(_write_json, dispatch_uid="tasks_app: JSON lines")


def _write_json(logger: logging.Logger | None = None, **_: Any) -> None:
    for handler in logger.handlers if logger else ():
        handler.setFormatter(JsonLines())
