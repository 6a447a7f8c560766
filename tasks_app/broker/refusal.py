"""On our queues only our own messages are read; every other task name is refused there.

Whoever can write to the broker could otherwise start any Celery task that happens to be registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.worker.strategy import default

from tasks_app.broker.defaults import EXECUTE, MAINTAIN, SCAN
from tasks_app.domain.logs import quiet_logger

log = quiet_logger(__name__)

OURS = (EXECUTE, SCAN, MAINTAIN)


def guard_queues(app: Celery, ours: frozenset[str]) -> None:
    """Make the worker refuse tasks that are not ours when they come over one of our queues.

    Which queue it was the message tells, and a forged one may lie. It gains nothing: a worker that
    also serves queues of others reads any task there, and one that does not refuses them all.
    """

    def came_over_ours(message: Any) -> bool:
        if ours >= app.amqp.queues.consume_from.keys():
            return True
        return (message.delivery_info or {}).get("routing_key") in ours

    def guarded(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
        run = default(task, app, consumer)

        def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
            if not came_over_ours(message):
                return run(message, body, ack, reject, callbacks)
            log.error("refused task %s on a queue of tasks_app", task.name)
            message.reject_log_error(log, consumer.connection_errors)
            return None

        return handle

    for name, task in app.tasks.items():
        if name not in OURS:
            task.start_strategy = lambda app, consumer, task=task, **_: guarded(task, app, consumer)
