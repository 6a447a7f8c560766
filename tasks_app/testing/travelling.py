"""Travel: let time pass for the pool, so that what waits for it becomes due."""

from __future__ import annotations

from typing import Any

from sqlalchemy.util import greenlet_spawn

from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.pool.testing.shift import next_instant, shift, shift_fired
from tasks_app.runtime.db.connections import Async, Raw, Sync, checked_async
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.schedules.declared import bring_in_schedules
from tasks_app.runtime.schedules.scheduler import Scheduler
from tasks_app.testing.transaction import joined


def travel(
    span: Duration,
    session: Sync | Raw | None = None,
    *,
    settings: Settings | None = None,
    registry: Registry = HANDLERS,
    most_instants: int = 10_000,
) -> None:
    """Let ``span`` pass for all tasks: retries, delays, expiries and leases come due.

    With ``session`` in the transaction of the test, else committed. It runs nothing: :func:`drain`
    does. The rows' instants are moved into the past, so ``due_at`` and ``created_at`` are earlier
    afterwards. Schedules fire for each instant in between, as if a leader had always been there;
    create them before the first travel. Periods of unique keys, pauses, breakers and rates pass,
    too. Windows of queues, retention and the clock of your own code do not notice.

    >>> task_id = create_task(session, send_mail, {"to": "b@example.org"}, delay="1h")
    >>> travel("1h", session)
    >>> drain(session).of(task_id).assert_succeeded().counts
    {'SUCCEEDED': 1}

    Raises:
        ValueError: ``span`` is no duration, or a schedule has too many instants in it.
    """
    if session is not None:
        _passes(session, span, registry, most_instants)
        return
    database = Database((settings or load_settings()).database)
    try:
        with database.begin() as connection:
            _passes(connection, span, registry, most_instants)
    finally:
        database.dispose()


async def atravel(
    span: Duration,
    session: Async,
    *,
    registry: Registry = HANDLERS,
    most_instants: int = 10_000,
) -> None:
    """Do as :func:`travel` in the transaction of an async test."""
    await greenlet_spawn(_passes, checked_async(session), span, registry, most_instants)


def _passes(session: Any, span: Duration, registry: Registry, most: int) -> None:
    passes = named_duration("span", span)
    with joined(session) as database:
        bring_in_schedules(database, registry)
        connection, scheduler = database.connection, Scheduler(database)
        passed, now = shift(connection, passes)
        until, at, number = now + passed, None, 0
        while (at := next_instant(connection, until, after=at)) is not None:
            number += 1
            if number > most:
                raise ValueError(
                    f"span {span!r} holds more than {most} instants of schedules. Travel less far, "
                    "disable the schedule that fires so often, or raise most_instants."
                )
            scheduler.run_once(now=at)
        scheduler.run_once(now=until)
        shift_fired(connection, passed)
