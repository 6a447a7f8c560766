"""Schedules that code declares are entered into the database when a worker or beat starts."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import HandlerError, InvalidTaskError
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.schedules.schedule import changes_by_code, declare
from tasks_app.domain.schedules.timing import When
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.pool import scheduling as rows
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

log = quiet_logger(__name__)


class ScheduleOptions(When, TaskOptions, total=False):
    """When a schedule fires, and the options of its tasks.

    ``enabled`` is the schedule's; a task's ``run_at``, ``delay`` and ``expires_at`` are refused.
    """


def schedule(
    name: str,
    task: Any,
    payload: Any = None,
    *,
    registry: Registry = HANDLERS,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Declare a schedule: workers and beats enter it into the database when they start.

    There operators can change it, and code does not change that back. If its module does not
    declare it any more, the schedule is switched off, not deleted.

    >>> schedule("mails.daily", send_mail, {"to": "boss@example.org"}, cron="0 7 * * mon-fri")

    Args:
        name: unique among schedules; keep it.
        task: a handler, or a task's name.
        payload: of each of its tasks.
        registry: for tests.
        options: as ``create_schedule`` takes them.

    Raises:
        HandlerError: the declaration cannot work, or another module has one of that name.
    """
    when, new = split(task, payload, options)
    module = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001  the caller's
    try:
        registry.schedule(declare(name, new, when, module))
    except InvalidTaskError as error:
        raise HandlerError(f"Schedule {name!r} is declared wrongly: {error}") from None


def split(task: Any, payload: Any, options: Any) -> tuple[dict[str, Any], NewTask]:
    when = {word: value for word, value in options.items() if word in When.__annotations__}
    rest: Any = {word: value for word, value in options.items() if word not in when}
    name = task.spec.name if isinstance(task, Handler) else task
    return when, NewTask(name, payload, rest)


def synchronise(
    connection: Connection, registry: Registry, *, loaded: Container[str] = sys.modules
) -> None:
    """Enter what this process declares, in one transaction; other processes that do so wait.

    A schedule that its module does not declare any more is switched off if the module is
    ``loaded`` here. Nothing is written where nothing differs.
    """
    if not _differences(connection, registry, loaded):
        return
    rows.lock_declarations(connection)
    for act, name, arguments in _differences(connection, registry, loaded):
        log.info("schedule %s of the code: %s", name, act)
        if act == "new":
            rows.add(connection, name, arguments["plan"], declared_in=arguments["module"])
        else:
            rows.change(connection, name, arguments["changes"], notes=arguments["notes"])


def bring_in_schedules(database: Database, registry: Registry) -> None:
    """Synchronise at a start; if the database is away or refuses, the next start does so."""
    try:
        with database.begin() as connection:
            synchronise(connection, registry)
    except DBAPIError as error:
        log.warning("schedules of the code could not be entered now: %s", first_line(error))


def _differences(
    connection: Connection, registry: Registry, loaded: Container[str]
) -> list[tuple[str, str, dict[str, Any]]]:
    standing = {each.name: each for each in rows.find(connection)}
    found: list[tuple[str, str, dict[str, Any]]] = []
    for declaration in sorted(registry.schedules.values(), key=lambda each: each.name):
        there = standing.get(declaration.name)
        plan = declaration.plan(registry.get(str(declaration.new.task)))
        if there is None:
            found.append(("new", declaration.name, {"plan": plan, "module": declaration.module}))
        elif there.declared is None:
            text = "an operator has created schedule %s: the declaration in %s is ignored"
            log.warning(text, there.name, declaration.module)
        else:
            changes = changes_by_code(there, plan)
            notes = {"declared": plan.plain(), "declared_in": declaration.module, "retired": False}
            if changes or any(getattr(there, name) != value for name, value in notes.items()):
                found.append(("changed", there.name, {"changes": changes, "notes": notes}))
    retirement = {"changes": {"enabled": False}, "notes": {"retired": True}}
    found += [
        ("switched off, as its module does not declare it any more", name, retirement)
        for name, there in standing.items()
        if there.declared_in in loaded and name not in registry.schedules and there.enabled
    ]
    return found
