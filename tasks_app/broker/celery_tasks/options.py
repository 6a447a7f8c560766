"""Options of ``apply_async`` and of signatures as options of ours.

An option that a message could carry and a row cannot is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from celery import Celery

from tasks_app.broker.celery_tasks.values import moment
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.options import TaskOptions

OF_THE_MESSAGE = (
    *("add_to_parent", "compression", "connection", "delivery_mode", "ignore_result"),
    *("parent_id", "producer", "publisher", "retries", "retry", "retry_policy", "root_id"),
    *("reply_to", "shadow"),
)
"""Options about sending or showing a message; a row needs none of them."""
SINGLE_TASKS = "single tasks; a task may create the next one"
ZERO_IS_FIRST = ("redis", "rediss", "sentinel")
"""Brokers on which Celery's priority 0 is first, as here; on others 9 is."""


def options_of(app: Celery, given: Mapping[str, Any]) -> TaskOptions:
    """Return Celery's options as ours.

    Raises:
        InvalidTaskError: one that a row cannot keep.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in OF_THE_MESSAGE or (name, value) == ("serializer", "json"):
            continue
        if name not in _OURS:
            raise InvalidTaskError(f"options.{name}", *_refusal(name))
        ours, in_our_words = _OURS[name]
        options[ours] = in_our_words(app, value)
    if "delay" in options:
        options.pop("run_at", None)  # in Celery countdown wins, too
    return options  # type: ignore[return-value]  # checked on creation, as all options are


def _as_it_is(_app: Celery, value: Any) -> Any:
    return value


def _delay(_app: Celery, value: Any) -> Any:
    return max(0, value)


def _expiry(app: Celery, value: Any) -> Any:
    """Seconds count from now by this machine's clock, as in Celery."""
    if isinstance(value, int | float):
        return app.now() + timedelta(seconds=max(0, value))
    return moment(app, value)


def _priority(app: Celery, value: Any) -> Any:
    """Keep the order of the app's own broker, which may be the opposite of ours."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value  # refused on creation
    broker = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
    return min(9, max(0, value if broker in ZERO_IS_FIRST else 9 - value))


def _queue(_app: Celery, value: Any) -> Any:
    return getattr(value, "name", value)


_OURS: dict[str, tuple[str, Callable[[Celery, Any], Any]]] = {
    "countdown": ("delay", _delay),
    "eta": ("run_at", moment),
    "expires": ("expires_at", _expiry),
    "priority": ("priority", _priority),
    "queue": ("queue", _queue),
    "time_limit": ("hard_timeout", _as_it_is),
    "soft_time_limit": ("timeout", _as_it_is),
    "headers": ("headers", _as_it_is),
}


def _refusal(name: str) -> tuple[str, str]:
    match name:
        case "link" | "link_error" | "chain" | "chord" | "group_id" | "group_index":
            return "belongs to callbacks, chains, groups or chords", SINGLE_TASKS
        case "task_id":
            return "is given", "none: the database gives the ids"
        case "exchange" | "routing_key":
            return "is no part of the pool", "queue="
        case _:
            return "is unknown to the pool", ", ".join(_OURS)
