"""Schedules: the plan and state that are stored, and the declaration in code."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from random import Random
from typing import Any

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.schedules.cron import zone_of
from tasks_app.domain.schedules.days_off import DaysOff, options_of, read_days_off, with_days_off
from tasks_app.domain.schedules.misfire import MisfirePolicy, Overlap, parse_missed
from tasks_app.domain.schedules.timing import (
    UTC_NAME,
    Timing,
    When,
    check_instant,
    timing_of,
    timing_text,
)
from tasks_app.domain.tasks.options import check_name
from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow

LONGEST_JITTER = timedelta(days=1)
_KEPT = (  # columns of a task in a schedule's options, if they are set; besides the keys
    *("retry_level", "max_attempts", "retry", "timeout_ms", "hard_timeout_ms", "order_skips"),
    *("strict_order", "fair_key", "more_limit_keys", "locks", "weight"),
)


@dataclass(frozen=True, kw_only=True)
class SchedulePlan:
    """The definition of a schedule, by code or an operator."""

    task: str
    queue: str
    priority: int
    payload: str  # JSON text of an object
    options: str  # JSON text: its tasks' options other than queue and priority, and its days off
    kind: str
    expression: str
    zone: str
    missed: str
    overlap: str
    jitter: timedelta
    starts_at: datetime | None
    ends_at: datetime | None
    enabled: bool

    @property
    def days_off(self) -> DaysOff | None:
        """Raises InvalidScheduleError if the row bypassed the checks."""
        return read_days_off(json.loads(self.options))

    def timing_from(self, anchor: datetime, days: Collection[date]) -> Timing:
        """Return its timing; ``days`` are those of its calendar."""
        timing = timing_of(self.kind, self.expression, self.zone, anchor)
        off = self.days_off
        return timing if off is None else with_days_off(timing, zone_of(self.zone), off, days)

    def plain(self) -> dict[str, Any]:
        """Return all fields as JSON values, for comparison."""
        plain = {name: getattr(self, name) for name in PLANNED}
        plain |= {"payload": json.loads(self.payload), "options": json.loads(self.options)}
        plain["jitter"] = self.jitter.total_seconds()
        for name in ("starts_at", "ends_at"):
            plain[name] = plain[name] and plain[name].astimezone(UTC).isoformat()
        return plain


PLANNED = tuple(each.name for each in fields(SchedulePlan))


@dataclass(frozen=True, kw_only=True)
class Schedule(SchedulePlan):
    """A schedule as stored in the database."""

    id: int
    name: str
    next_run_at: datetime | None
    queued_at: datetime | None  # the instant whose task is created when the earlier one is over
    last_run_at: datetime | None  # the newest instant for which a task was created
    last_task_id: int | None
    last_outcome: str | None
    remark: str | None  # why it is broken
    forgotten_until: datetime | None
    """What fired before is unknown, so no backfill goes further back."""
    declared: dict[str, Any] | None  # its last declaration in code; None: an operator made it
    declared_in: str | None  # the module that declares it
    retired: bool  # whether that module no longer declares it
    changed_by: str
    created_at: datetime
    holidays: list[date] | None = None  # the days of its calendar; None: there is no calendar

    @cached_property
    def timing(self) -> Timing:
        """Raises InvalidScheduleError if the row bypassed the checks."""
        return self.timing_from(self.starts_at or self.created_at, self.holidays or ())

    def explain(self) -> str:
        words = self.timing.explain()
        if self.starts_at:
            words += f", from {self.starts_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z on"
        if self.ends_at:
            words += f", until {self.ends_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        return words

    def task_row(self, fire_at: datetime, rng: Random) -> TaskRow:
        """Return the task of one instant, which its headers name; raises InvalidScheduleError."""
        try:
            options = json.loads(self.options)
            origin = {"schedule": self.name, "fire_at": fire_at.astimezone(UTC).isoformat()}
            headers = {**options.get("headers", {}), **origin}
            wait = timedelta(seconds=options.get("delay_s", 0)) + self.jitter * rng.random()
            kept, keys = ({name: options.get(name) for name in some} for some in (_KEPT, KEYS))
            kept["retry_level"] = options.get("retry_level", 0)
        except (TypeError, ValueError, AttributeError):
            allowed = "what create_schedule writes"
            raise InvalidScheduleError("options", "cannot be read", allowed) from None
        terms = RowTemplate(
            name=self.task,
            queue=self.queue,
            priority=self.priority,
            headers=json.dumps(headers),
            enabled=True,
            run_at=None,
            delay=wait,
            expires_at=None,
            schedule_id=self.id,
            **kept,
        )
        return TaskRow(self.payload, **keys, terms=terms)


def plan_of(row: TaskRow, when: When) -> SchedulePlan:
    """Return the plan of a schedule; ``row`` is its checked task; raises InvalidScheduleError."""
    for name in ("run_at", "expires_at"):
        if getattr(row.terms, name) is not None:
            raise InvalidScheduleError(f"options.{name}", "is one instant", "cron, every or at")
    zone = when.get("timezone") or UTC_NAME
    kind, expression = timing_text(
        cron=when.get("cron"), every=when.get("every"), at=when.get("at"), zone=zone
    )
    starts_at, ends_at = when.get("starts_at"), when.get("ends_at")
    starts_at = None if starts_at is None else check_instant("starts_at", starts_at)
    ends_at = None if ends_at is None else check_instant("ends_at", ends_at)
    if starts_at and ends_at and starts_at > ends_at:
        raise InvalidScheduleError("ends_at", "is before starts_at", "an instant after it")
    overlap = when.get("overlap") or Overlap.ALLOW
    if overlap not in list(Overlap):
        raise InvalidScheduleError("overlap", f"is {overlap!r:.60}", ", ".join(Overlap))
    enabled: Any = when.get("enabled")
    if not isinstance(enabled, bool | None):
        problem = f"is of type {type(enabled).__name__}"
        raise InvalidScheduleError("enabled", problem, "True or False")
    options = _options(row) | options_of(when, kind)
    return SchedulePlan(
        task=row.name,
        queue=row.terms.queue,
        priority=row.terms.priority,
        payload=row.payload,
        options=json.dumps(options, sort_keys=True),
        kind=str(kind),
        expression=expression,
        zone=zone,
        missed=str(parse_missed(when.get("missed") or MisfirePolicy.FIRE_ONCE)),
        overlap=str(overlap),
        jitter=_jitter(when.get("jitter") or 0),
        starts_at=starts_at,
        ends_at=ends_at,
        enabled=enabled is not False,
    )


def _options(row: TaskRow) -> dict[str, Any]:
    terms = row.terms
    options = {name: value for name in _KEPT if (value := getattr(terms, name))}
    options |= {name: value for name in KEYS if (value := getattr(row, name))}
    if terms.delay:
        options["delay_s"] = terms.delay.total_seconds()
    if terms.headers is not None:
        options["headers"] = json.loads(terms.headers)
    return options


def _jitter(value: Duration) -> timedelta:
    try:
        jitter = parse_duration(value)
    except ValueError as error:
        raise InvalidScheduleError("jitter", str(error), "such as '30s'") from None
    if jitter > LONGEST_JITTER:
        raise InvalidScheduleError("jitter", "is more than a day", "0 .. 1d")
    return jitter


_TIMING = {"kind", "expression", "zone"}  # they only fit together
_LIMIT = 1024 * 1024  # bytes of a payload in code; the producer's limit is for foreign data


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule that a module declares; its task may be declared elsewhere, and later."""

    name: str
    new: NewTask
    when: When
    module: str

    def plan(self, spec: HandlerSpec | None) -> SchedulePlan:
        """Check it; raises InvalidTaskError. ``spec`` is None if the handler is unknown here."""
        return plan_of(validate_task(self.new, spec, _LIMIT), self.when)


def declare(name: str, new: NewTask, when: dict[str, Any], module: str) -> Declaration:
    """Return the declaration, checked as far as possible before all modules are loaded.

    Raises InvalidTaskError: a name, option or time is wrong.
    """
    for word in when:
        if word not in When.__annotations__:
            known = ", ".join(sorted(When.__annotations__))
            raise InvalidScheduleError(f"options.{word}"[:80], "is unknown", known)
    words: Any = {word: value for word, value in when.items() if value is not None}
    declaration = Declaration(check_name(name), new, words, module)
    declaration.plan(None)
    return declaration


def changes_by_code(standing: Schedule, plan: SchedulePlan) -> dict[str, Any]:
    """Return the changes that code makes to a schedule that it declared before.

    Fields that an operator has changed since then stay, even if code changes them, too.
    """
    new, old, now = plan.plain(), standing.declared or {}, standing.plain()
    theirs = {name for name in PLANNED if name in old and now[name] != old[name]}
    if theirs & _TIMING:
        theirs |= _TIMING
    if standing.retired:  # it was disabled because code no longer declared it
        theirs.discard("enabled")
    return {
        name: getattr(plan, name)
        for name in PLANNED
        if name not in theirs and new[name] != now[name]
    }
