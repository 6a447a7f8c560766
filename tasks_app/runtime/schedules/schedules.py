"""What operators and applications do with schedules; nothing here commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from random import Random
from typing import Any, Final, Unpack

from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.days_off import CALENDAR, raw_days_off
from tasks_app.domain.schedules.schedule import PLANNED, Schedule, SchedulePlan, plan_of
from tasks_app.domain.schedules.timing import When
from tasks_app.domain.tasks.options import check_name
from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool import scheduling as rows
from tasks_app.pool.flow_control.queue_settings import calendars
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks.create import create_one
from tasks_app.runtime.api.producer import admitted
from tasks_app.runtime.db.connections import Sync, connection_of, made_async
from tasks_app.runtime.encryption.values import sealed_rows
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.schedules.declared import ScheduleOptions, split


def create_schedule(
    session: Sync,
    name: str,
    task: Any,
    payload: Any = None,
    *,
    by: str = "",
    **options: Unpack[ScheduleOptions],
) -> Schedule:
    """Create a schedule in the caller's transaction.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> nightly.next_run_at.hour
    3

    Args:
        session: a Session or Connection.
        name: unique among schedules.
        task: a handler, or a task's name.
        payload: of each of its tasks.
        by: who does it, for the audit.
        options: ``cron=``, ``every=`` or ``at=``, what else ``When`` has, and a task's own.

    Raises:
        InvalidTaskError: an option is invalid, it would never fire, or the name is taken.
    """
    connection = connection_of(session)
    when, new = split(task, payload, options)
    plan = planned_schedule(new, when)
    days_of(connection, plan)
    made = rows.add(connection, check_name(name), plan)
    if made is None:
        raise InvalidScheduleError("name", f"{name!r} is taken", "one that no schedule has")
    if made.enabled and made.next_run_at is None:
        rows.remove(connection, name)
        raise InvalidScheduleError("when", "never comes", "instants of the future")
    note(connection, "schedule add", {"schedule": name}, who=by)
    return made


def change_schedule(
    session: Sync,
    name: str,
    payload: Any = None,
    *,
    by: str = "",
    **options: Unpack[ScheduleOptions],
) -> Schedule | None:
    """Change only the given fields of a schedule. None: there is none of that name.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> change_schedule(session, "nightly", cron="30 4 * * *").expression
    '30 4 * * *'

    Raises:
        InvalidTaskError: an option is invalid, or cannot be changed.
    """
    connection = connection_of(session)
    standing = rows.get(connection, name)
    if standing is None:
        return None
    wanted = changed_schedule(standing, payload, options)
    days_of(connection, wanted)
    kept = {"task"} | ({"payload"} if payload is None else set())
    changes = {
        word: getattr(wanted, word)
        for word in PLANNED
        if word not in kept and getattr(wanted, word) != getattr(standing, word)
    }
    if not changes:
        return standing
    done = rows.change(connection, name, changes)
    if done is not None:
        note(connection, "schedule change", {"schedule": name, "changed": sorted(changes)}, who=by)
    return done


def get_schedule(session: Sync, name: str) -> Schedule | None:
    """Return the schedule of this name, or None.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> get_schedule(session, "nightly").task
    'report.write'
    """
    return rows.get(connection_of(session), name)


def list_schedules(session: Sync) -> list[Schedule]:
    """Return all schedules, by name.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> [schedule.name for schedule in list_schedules(session)]
    ['nightly']
    """
    return rows.find(connection_of(session))


def enable_schedule(session: Sync, name: str, *, by: str = "") -> bool:
    """Let a schedule fire again, from now on. False: there is none of that name.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> disable_schedule(session, "nightly"), enable_schedule(session, "nightly")
    (True, True)
    """
    return _switch(connection_of(session), name, by, enabled=True)


def disable_schedule(session: Sync, name: str, *, by: str = "") -> bool:
    """Stop a schedule until it is enabled again. False: there is none of that name.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> disable_schedule(session, "nightly", by="anna")
    True
    >>> get_schedule(session, "nightly").enabled
    False
    """
    return _switch(connection_of(session), name, by, enabled=False)


def _switch(connection: Connection, name: str, by: str, *, enabled: bool) -> bool:
    done = rows.change(connection, name, {"enabled": enabled}) is not None
    if done:
        verb = "enable" if enabled else "disable"
        note(connection, f"schedule {verb}", {"schedule": name}, who=by)
    return done


def remove_schedule(session: Sync, name: str, *, by: str = "") -> bool:
    """Delete a schedule; its tasks stay. False: there is none of that name.

    One that code declares comes back with the next worker that starts: disable it instead.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> remove_schedule(session, "nightly", by="anna")
    True
    """
    connection = connection_of(session)
    done = rows.remove(connection, name)
    if done:
        note(connection, "schedule remove", {"schedule": name}, who=by)
    return done


def run_schedule(session: Sync, name: str, *, by: str = "") -> TaskId | None:
    """Create a task of a schedule now, enabled or not. None: there is none of that name.

    Its next instants stay as they are, and its overlap policy, delay and jitter do not apply.

    >>> nightly = create_schedule(session, "nightly", "report.write", cron="0 3 * * *")
    >>> task_id = run_schedule(session, "nightly", by="anna")
    >>> get_task(session, task_id).name
    'report.write'
    """
    connection = connection_of(session)
    found = rows.get(connection, name)
    if found is None:
        return None
    row = found.task_row(database_now(connection), Random(0))  # noqa: S311  no jitter, see below
    at_once = row._replace(terms=row.terms._replace(delay=timedelta(0)))
    task_id = create_one(connection, sealed_rows([at_once], HANDLERS.encrypted)[0])
    answers = {str(task_id.outcome): 1}
    note(connection, "schedule run", {"schedule": name}, who=by, ids=[task_id], answers=answers)
    return task_id


def planned_schedule(new: NewTask, when: Any) -> SchedulePlan:
    return plan_of(admitted(new), when)


def days_of(connection: Connection, plan: SchedulePlan) -> list[date]:
    """Return the days of its calendar; InvalidScheduleError: there is no such calendar."""
    off = plan.days_off
    if off is None:
        return []
    known = calendars(connection)
    if off.calendar not in known:
        there = ", ".join(sorted(known)) or "none yet: set_calendar makes one"
        raise InvalidScheduleError("calendar", f"{off.calendar!r} does not exist", there)
    return known[off.calendar]


_WHEN = ("cron", "every", "at")
_CHANGEABLE = frozenset({*When.__annotations__, "queue", "priority"})


def changed_schedule(standing: Schedule, payload: Any, given: Mapping[str, Any]) -> Schedule:
    """Return the schedule as it would be after the change; nothing is written."""
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
    payload = json.loads(standing.payload) if payload is None else payload
    if not when.get("calendar") and "on_day_off" not in given:
        when.pop("on_day_off", None)  # it goes with its calendar
    plan = planned_schedule(NewTask(standing.task, payload, task_options), when)
    fields = {word: getattr(plan, word) for word in PLANNED}
    return replace(standing, **fields | {"options": _kept_options(standing, plan)})


def _kept_options(standing: Schedule, plan: SchedulePlan) -> str:
    there, days_off = json.loads(standing.options), raw_days_off(json.loads(plan.options))
    if not isinstance(there, dict):
        return standing.options
    wanted = {word: value for word, value in there.items() if word not in CALENDAR} | days_off
    return standing.options if wanted == there else json.dumps(wanted, sort_keys=True)


def _when(standing: Schedule) -> dict[str, Any]:
    """Return the options with which the schedule could have been created."""
    at = datetime.fromisoformat(standing.expression) if standing.kind == "once" else None
    word = "at" if at else standing.kind
    return {
        word: at or standing.expression,
        "timezone": standing.zone,
        **{name: getattr(standing, name) for name in ("missed", "overlap", "jitter")},
        **{name: getattr(standing, name) for name in ("starts_at", "ends_at", "enabled")},
        **raw_days_off(json.loads(standing.options)),
    }


acreate_schedule: Final = made_async(create_schedule)
achange_schedule: Final = made_async(change_schedule)
aremove_schedule: Final = made_async(remove_schedule)
aenable_schedule: Final = made_async(enable_schedule)
adisable_schedule: Final = made_async(disable_schedule)
aget_schedule: Final = made_async(get_schedule)
alist_schedules: Final = made_async(list_schedules)
arun_schedule: Final = made_async(run_schedule)
