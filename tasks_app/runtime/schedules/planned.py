"""A schedule as it would be with what is given: checked, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.days_off import CALENDAR, kept_in
from tasks_app.domain.schedules.schedule import PLANNED, Schedule, SchedulePlan, plan_of
from tasks_app.domain.schedules.when import When
from tasks_app.pool.flow_control.queue_settings import calendars
from tasks_app.runtime.api.producer import admitted

_WHEN = ("cron", "every", "at")
_CHANGEABLE = frozenset({*When.__annotations__, "queue", "priority"})


def planned(new: NewTask, when: Any) -> SchedulePlan:
    return plan_of(admitted(new), when)


def changed(standing: Schedule, payload: Any, given: Mapping[str, Any]) -> Schedule:
    """Return the schedule as it would be with what is given; nothing is written.

    Raises:
        InvalidTaskError: an option is invalid, or cannot be changed.
    """
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
    plan = planned(NewTask(standing.task, payload, task_options), when)
    fields = {word: getattr(plan, word) for word in PLANNED}
    return replace(standing, **fields | {"options": _kept_options(standing, plan)})


def _kept_options(standing: Schedule, plan: SchedulePlan) -> str:
    """Return the options as they stand, but for the days off."""
    there, said = json.loads(standing.options), kept_in(json.loads(plan.options))
    if not isinstance(there, dict):
        return standing.options
    wanted = {word: value for word, value in there.items() if word not in CALENDAR} | said
    return standing.options if wanted == there else json.dumps(wanted, sort_keys=True)


def days_of(connection: Connection, plan: SchedulePlan) -> list[date]:
    """Return the days of its calendar.

    Raises:
        InvalidScheduleError: there is no such calendar.
    """
    off = plan.days_off
    if off is None:
        return []
    known = calendars(connection)
    if off.calendar not in known:
        there = ", ".join(sorted(known)) or "none yet: set_calendar makes one"
        raise InvalidScheduleError("calendar", f"{off.calendar!r} does not exist", there)
    return known[off.calendar]


def _when(standing: Schedule) -> dict[str, Any]:
    """Return the options with which the schedule could have been created."""
    at = datetime.fromisoformat(standing.expression) if standing.kind == "once" else None
    word = "at" if at else standing.kind
    return {
        word: at or standing.expression,
        "timezone": standing.zone,
        **{name: getattr(standing, name) for name in ("missed", "overlap", "jitter")},
        **{name: getattr(standing, name) for name in ("starts_at", "ends_at", "enabled")},
        **kept_in(json.loads(standing.options)),
    }
