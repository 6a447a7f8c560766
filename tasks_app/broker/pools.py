"""Which of Celery's pools can keep our promises."""

from __future__ import annotations

from typing import Any

from celery.concurrency import get_implementation

from tasks_app.domain.errors import ConfigurationError


def check_pool(pool: Any) -> None:
    """Pass if the pool, a class or Celery's name of it, gives other threads a turn.

    Raises:
        ConfigurationError: it is one of green threads.
    """
    if get_implementation(pool).is_green:
        raise ConfigurationError(
            "The pools gevent and eventlet are refused: a handler that does not yield stops the "
            "clerk, which renews the leases, and its tasks would run twice. "
            "Take -P prefork, or -P threads for handlers that mostly wait."
        )
