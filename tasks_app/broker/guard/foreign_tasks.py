"""On our queues only our own messages are read; every other task name is refused there.

Otherwise anybody who can write to the broker could start any registered Celery task, have a worker
publish messages (callbacks, chains), make it wait for an eta, or kill its children by a time limit.
Of a message's headers only its names, its pool and its expiry are kept; of its properties, what
kombu needs to put it back into a list of Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from celery import Celery
from celery.worker.strategy import default

from tasks_app.broker.defaults import CONTROL_QUEUE
from tasks_app.broker.defaults import OURS
from tasks_app.broker.guard.body import is_name, is_ours
from tasks_app.broker.guard.other_pools import HEADER, Strangers
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.handlers.registry import HANDLERS

log = quiet_logger(__name__)

JSON = "application/json"
TO_PUT_BACK = ("body_encoding", "delivery_info", "delivery_tag")
FIRST_YEAR, LAST_YEAR = 1, 9999
"""Between them a change of zone makes no date overflow."""


def own_queues() -> frozenset[str]:
    """Return the queues whose messages are all ours."""
    return frozenset({*HANDLERS.queues, CONTROL_QUEUE})


def serves_only(app: Celery, queues: frozenset[str]) -> bool:
    """Whether the app's worker consumes no others just now."""
    return bool(queues >= app.amqp.queues.consume_from.keys())


def guard_queues(app: Celery, ours: frozenset[str]) -> None:
    """Make the worker refuse tasks that are not ours when they come over one of our queues.

    The message itself names its queue, and a forged one may lie. It gains nothing: a worker that
    also serves other queues reads any task there, and one that does not refuses them all.
    """
    strangers = Strangers()

    def came_over_ours(message: Any) -> bool:
        if serves_only(app, ours):
            return True
        return (message.delivery_info or {}).get("routing_key") in ours

    def guarded(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
        run = default(task, app, consumer)

        def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
            if task.name in OURS and strangers.refuses(message.headers):
                message.reject_log_error(log, consumer.connection_errors)
                return None
            if task.name in OURS:
                sound = body is None and _is_plain(task.name, message)
            else:
                sound = not came_over_ours(message)
            if sound:
                return run(message, body, ack, reject, callbacks)
            log.error("refused task %s on a queue of tasks_app", task.name)
            message.reject_log_error(log, consumer.connection_errors)
            return None

        return handle

    for task in app.tasks.values():
        task.start_strategy = lambda app, consumer, task=task, **_: guarded(task, app, consumer)


def _is_plain(task: str, message: Any) -> bool:
    """Say whether the message is as we publish it, and strip what we do not need."""
    name, expires = message.headers.get("id"), message.headers.get("expires")
    if message.content_type != JSON or not (is_name(name) and _is_moment(expires)):
        return False  # ``accept_content`` may allow formats that run code when read
    if not is_ours(task, message.payload):
        return False
    kept = {HEADER: message.headers[HEADER]} if HEADER in message.headers else {}
    message.headers = {"task": task, "id": name, "root_id": name, "expires": expires, **kept}
    message.properties = {k: v for k, v in message.properties.items() if k in TO_PUT_BACK}
    # A message marked as redelivered would be looked up in the result store.
    message.delivery_info = {**(message.delivery_info or {}), "redelivered": False}
    return True


def _is_moment(value: Any) -> bool:
    """Say whether this is None, or an instant that can be written in any zone."""
    try:
        return value is None or FIRST_YEAR < datetime.fromisoformat(value).year < LAST_YEAR
    except (TypeError, ValueError):
        return False
