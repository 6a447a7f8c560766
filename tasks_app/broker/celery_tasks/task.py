"""A Celery task as a handler: its name, its limits and its retries as options of ours."""

from __future__ import annotations

from datetime import timedelta

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task

from tasks_app.broker.celery_tasks import CeleryRun
from tasks_app.broker.celery_tasks import attempts_of
from tasks_app.broker.celery_tasks.values import to_json
from tasks_app.domain.handlers.outcomes import Reaction
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.call_payload import CALL
from tasks_app.domain.tasks.names import check_name
from tasks_app.domain.tasks.retry_policy import Fixed
from tasks_app.runtime.handlers.registry import HANDLERS


def spec_of(task: Task) -> HandlerSpec:
    """Return the task's declaration as that of a handler.

    Its code decides what is retried, as in Celery: any other exception fails at once. The policy's
    wait applies after the death of a process.

    Raises:
        InvalidTaskError: its name does not fit into the pool.
    """
    known = HANDLERS.get(task.name)
    if known is not None and known.payload_type is CALL:
        return known
    return HandlerSpec(
        name=check_name(task.name),
        function=CeleryRun(task),
        queue=_queue_of(task),
        retry=Fixed(timedelta(seconds=task.default_retry_delay or 0)),
        max_attempts=attempts_of(task),
        timeout=_span(task.soft_time_limit),
        hard_timeout=_span(task.time_limit),
        on_error={BaseException: Reaction.FAIL},
        payload_type=CALL,
        to_json=to_json,
        timeout_error=lambda _seconds: SoftTimeLimitExceeded(),
    )


def _queue_of(task: Task) -> str:
    """Return the queue to which Celery would route it, if our handlers have it."""
    if len(HANDLERS.queues) > 1:
        route = task.app.amqp.router.route({"queue": getattr(task, "queue", None)}, task.name)
        name = getattr(route.get("queue"), "name", None)
        if name in HANDLERS.queues:
            return str(name)
    return "default"


def _span(seconds: float | None) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None
