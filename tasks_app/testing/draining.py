"""Drain: run what is due, in this process, on what is committed or in the test's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.db.connections import (
    Async,
    Raw,
    Sync,
    checked_async,
    shown,
    unwrapped,
)
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.middleware import Middleware, load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.worker.assembly import run_work
from tasks_app.testing.collecting import collected
from tasks_app.testing.faults import layer, rescue
from tasks_app.testing.in_transaction import TransactionDrain
from tasks_app.testing.results import Drained
from tasks_app.testing.sessions import joined


@overload
def drain(
    session: Sync | Raw,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained: ...
@overload
def drain(
    settings: Settings | None = None,
    /,
    *,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained: ...
@overload
def drain(
    *,
    settings: Settings | None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained: ...
def drain(
    session: Any = None,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained:
    """Run due tasks until none is left, and return what became of each.

    With the ``session`` of the test (what ``create_task`` takes): in its transaction, which may be
    rolled back at its end. Each run is a savepoint, which its error undoes. Time limits are not
    enforced, and one task runs at a time.

    Without: what is committed, by a worker on connections of its own, which commits. Settings come
    from the environment unless given.

    It does not wait for later retries: :func:`travel` brings them due.

    >>> drained = drain(session)
    >>> [run.name for run in drained.succeeded]
    ['mail.send']

    Raises:
        ConfigurationError: a setting is wrong, or ``session`` is neither Settings nor a session.
        InvalidConnectionError: the connection is in autocommit, so it has no transaction; or it is
            of another driver than psycopg.
    """
    if isinstance(session, Settings | None):
        return _committed(session or settings or load_settings(), registry, queues)
    whole = unwrapped(session)
    if hasattr(whole, "execute") and not hasattr(whole, "run_sync"):
        return _drained(whole, settings, registry, queues)
    advice = "Pass Settings(database_url=…), a session, or nothing"
    if hasattr(whole, "run_sync"):
        advice = "Use: await adrain(session)"
    raise ConfigurationError(f"{shown(whole)} is no Settings or session. {advice}.")


async def adrain(
    session: Async,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    queues: Sequence[str] = (),
) -> Drained:
    """Do as :func:`drain` in the transaction of an async test.

    Plain handlers run in it, too: they hold up the event loop.
    """
    whole: Any = checked_async(session)
    drained: Drained = await whole.run_sync(_drained, settings, registry, queues)
    return drained


def _committed(settings: Settings, registry: Registry, queues: Sequence[str]) -> Drained:
    database = Database(settings.database, prepare=settings.prepare)
    faulty = layer(lambda context: rescue(database, context.fence, settings.max_crashes))
    layers = (faulty, *load_middleware(settings.layers))
    try:
        with collected() as collector:
            run_work(settings, registry=registry, queues=queues, middleware=layers, drain=True)
        return collector.drained()
    finally:
        database.dispose()


def _drained(
    given: Any,
    settings: Settings | None,
    registry: Registry,
    queues: Sequence[str],
) -> Drained:
    settings = settings or load_settings()
    layers: tuple[Middleware, ...] = load_middleware(settings.layers)
    with joined(given) as connection:
        return TransactionDrain(connection, settings, registry, queues, layers).run()
