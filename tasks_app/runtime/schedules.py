"""What operators and applications do with schedules; nothing here commits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedule import PLANNED, Plan, Schedule, When, check_schedule_name, plan_of
from tasks_app.domain.task import NewTask
from tasks_app.pool import schedules as rows
from tasks_app.runtime.callers import Sync, connection_of
from tasks_app.runtime.declared import ScheduleOptions, split
from tasks_app.runtime.producer import admitted

_WHEN = ("cron", "every", "at")
_CHANGEABLE = frozenset({*When.__annotations__, "queue", "priority"})


def create_schedule(
    session: Sync,
    name: str,
    task: Any,
    payload: Any = None,
    **options: Unpack[ScheduleOptions],
) -> Schedule:
    """Create a schedule in the caller's transaction.

    Args:
        session: a Session or Connection.
        name: unique among schedules.
        task: a handler, or a task's name.
        payload: of each of its tasks.
        options: ``cron=``, ``every=`` or ``at=``, what else ``When`` has, and a task's own.

    Raises:
        InvalidTaskError: something is wrong with it, it would never fire, or the name is taken.
    """
    connection = connection_of(session)
    when, new = split(task, payload, options)
    plan = _plan(new, when)
    made = rows.add(connection, check_schedule_name(name), plan)
    if made is None:
        raise InvalidScheduleError("name", f"{name!r} is taken", "one that no schedule has")
    if made.enabled and made.next_run_at is None:
        rows.remove(connection, name)
        raise InvalidScheduleError("when", "never comes", "instants of the future")
    return made


def change_schedule(
    session: Sync, name: str, payload: Any = None, **options: Unpack[ScheduleOptions]
) -> Schedule | None:
    """Change what is given of a schedule, and nothing else; None: there is none of that name.

    Raises:
        InvalidTaskError: something is wrong with it, or cannot be changed.
    """
    connection = connection_of(session)
    standing = rows.get(connection, name)
    if standing is None:
        return None
    given: dict[str, Any] = {**options}
    for word in given.keys() - _CHANGEABLE:
        raise InvalidScheduleError(f"options.{word}", "stays", ", ".join(sorted(_CHANGEABLE)))
    when = {word: value for word, value in _when(standing).items() if word not in _WHEN}
    if not given.keys() & set(_WHEN):
        when = _when(standing)
    when |= {word: value for word, value in given.items() if word in When.__annotations__}
    task_options: Any = {
        word: getattr(standing, word) if given.get(word) is None else given[word]
        for word in ("queue", "priority")
    }
    plan = _plan(NewTask(standing.task, payload or {}, task_options), when)
    kept = {"task", "options"} | ({"payload"} if payload is None else set())
    changes = {
        word: getattr(plan, word)
        for word in PLANNED
        if word not in kept and getattr(plan, word) != getattr(standing, word)
    }
    return rows.change(connection, name, changes) if changes else standing


def get_schedule(session: Sync, name: str) -> Schedule | None:
    """Return the schedule of this name, or None."""
    return rows.get(connection_of(session), name)


def list_schedules(session: Sync) -> list[Schedule]:
    """Return all schedules, by name."""
    return rows.find(connection_of(session))


def enable_schedule(session: Sync, name: str) -> bool:
    """Let a schedule fire again, from now on; False: there is none of that name."""
    return rows.change(connection_of(session), name, {"enabled": True}) is not None


def disable_schedule(session: Sync, name: str) -> bool:
    """Let a schedule fire no more until it is enabled; False: there is none of that name."""
    return rows.change(connection_of(session), name, {"enabled": False}) is not None


def remove_schedule(session: Sync, name: str) -> bool:
    """Delete a schedule; its tasks stay. False: there is none of that name.

    One that code declares comes back with the next worker that starts: disable it instead.
    """
    return rows.remove(connection_of(session), name)


def _plan(new: NewTask, when: Any) -> Plan:
    return plan_of(admitted(new), when)


def _when(standing: Schedule) -> dict[str, Any]:
    """Return how a schedule could have been created."""
    at = datetime.fromisoformat(standing.expression) if standing.kind == "once" else None
    word = "at" if at else standing.kind
    return {
        word: at or standing.expression,
        "timezone": standing.zone,
        **{name: getattr(standing, name) for name in ("missed", "overlap", "jitter")},
        **{name: getattr(standing, name) for name in ("starts_at", "ends_at", "enabled")},
    }
