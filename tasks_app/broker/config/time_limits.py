"""Celery's time limits are for a message; ours carries up to 500 tasks, so they bound each task.

``task_soft_time_limit`` and ``task_time_limit``, or the worker's options of these names, become
``TASKS_APP_TIMEOUT`` and ``TASKS_APP_HARD_TIMEOUT`` of this worker: the defaults for tasks whose
handler and queue set none.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, NamedTuple

from tasks_app.broker.defaults import OURS
from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration
from tasks_app.domain.safe_logging import quiet_logger

log = quiet_logger(__name__)


class CeleryLimits(NamedTuple):
    """Limits that somebody set; None: no limit."""

    soft: timedelta | None
    hard: timedelta | None

    def within(self, settings: Settings) -> CeleryLimits:
        """Return the shorter limit where both Celery and our settings have one."""
        given = settings.hard_timeout if "hard_timeout" in settings.model_fields_set else None
        return CeleryLimits(_shorter(self.soft, settings.timeout), _shorter(self.hard, given))


NO_LIMITS = CeleryLimits(None, None)


def limits_of(soft: Any, hard: Any) -> CeleryLimits:
    """Return Celery's seconds as spans; 0 is no limit, as in Celery."""
    return CeleryLimits(_span(soft), _span(hard))


def take_limits(worker: Any, settings: Settings) -> CeleryLimits:
    """Take the limits away from a worker that has not made its pool yet, and return them.

    Other Celery tasks, one message each, keep them. The returned hard limit leaves out
    ``TASKS_APP_HARD_TIMEOUT``, which only prefork has ever enforced.
    """
    soft, hard = worker.soft_time_limit, worker.time_limit
    worker.soft_time_limit = worker.time_limit = None
    for task in worker.app.tasks.values():
        if task.name not in OURS:
            task.soft_time_limit = task.soft_time_limit or soft
            task.time_limit = task.time_limit or hard
    asked = limits_of(soft, hard)
    held = asked.within(settings)
    for name, span in (("TIMEOUT", held.soft), ("HARD_TIMEOUT", held.hard)):
        if span is not None:
            os.environ[f"{PREFIX}{name}"] = format_duration(span)
    if any(asked):
        log.info("Celery's time limits bound each task, not a message: %s", said(held))
    return CeleryLimits(held.soft, asked.hard)


def said(limits: CeleryLimits) -> str:
    """Return the limits by our names, for people."""
    named = (("timeout", limits.soft), ("hard_timeout", limits.hard))
    return ", ".join(f"{name} {format_duration(span)}" for name, span in named if span)


def _span(seconds: Any) -> timedelta | None:
    return timedelta(seconds=float(seconds)) if seconds else None


def _shorter(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((span for span in (one, other) if span), default=None)
