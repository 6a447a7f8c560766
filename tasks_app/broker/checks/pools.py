"""Which of Celery's pools can keep our promises, and which time limits each can enforce.

A limit that silently does nothing is worse than none: somebody relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from celery.concurrency import ALIASES, get_implementation
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadsPool

from tasks_app.broker.config.time_limits import NO_LIMITS, CeleryLimits
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handlers.spec import HandlerSpec


def check_pool(pool: Any) -> None:
    """Pass if the pool, a class or Celery's name for it, lets other threads run.

    Raises:
        ConfigurationError: it runs green threads.
    """
    if get_implementation(pool).is_green:
        raise ConfigurationError(
            "The pools gevent and eventlet are refused: a handler that does not yield stops the "
            "housekeeper, which renews the leases, and its tasks would run twice. "
            "Take -P prefork, or -P threads for handlers that mostly wait."
        )


def check_limits(
    pool: Any,
    specs: Iterable[HandlerSpec],
    queues: Collection[str],
    default: CeleryLimits = NO_LIMITS,
) -> None:
    """Pass if the pool can enforce the limits of these queues' handlers, or the ``default`` ones.

    Raises:
        ConfigurationError: it cannot; names the handlers.
    """
    kind = get_implementation(pool)
    if issubclass(kind, PreforkPool):
        return
    here = [spec for spec in specs if spec.queue in queues]
    soft = [s for s in here if s.timeout or default.soft]
    timed = [f"{s.name} (timeout)" for s in soft if not _can_raise(kind, s)]
    hard = [f"{s.name} (hard_timeout)" for s in here if s.hard_timeout or default.hard]
    if not timed and not hard:
        return
    why = [
        *["nothing can be raised in a running thread"] * bool(timed),
        *["no process can be killed for one task alone"] * bool(hard),
    ]
    raise ConfigurationError(
        f"The {_name_of(kind)} pool cannot enforce the limits of {', '.join(timed + hard)}: "
        f"in it {' and '.join(why)}. Serve their queues with --pool=prefork, or declare no limit."
    )


def _can_raise(kind: type, spec: HandlerSpec) -> bool:
    """Solo runs in the main thread, where an alarm can raise; an event loop cancels in any."""
    anywhere = spec.is_async or spec.keeps_timeout
    return issubclass(kind, SoloPool) or (issubclass(kind, ThreadsPool) and anywhere)


def _name_of(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((alias for alias, known in ALIASES.items() if known == path), path)
