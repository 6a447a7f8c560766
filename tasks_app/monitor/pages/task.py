"""Task: all that is known of one, its payload masked by rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.config.setting_sources import masked
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.events import StoredEvent
from tasks_app.domain.explain.explanation import Explanation
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.tasks.records import Attempt, Task
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.pages.flows import shown_event
from tasks_app.monitor.pages.timeline import Moment, Sources, timeline, transitions
from tasks_app.pool import events
from tasks_app.pool.operations.audit import AuditLine, find_among_newest
from tasks_app.pool.tables import COMPLETED, ERROR, FLOW_STEP, PENDING, SCHEDULE
from tasks_app.pool.task_groups import groups_of
from tasks_app.pool.tasks import browse, run_records
from tasks_app.pool.tasks.run_records import read_lines
from tasks_app.runtime.api.tasks import explain_task
from tasks_app.runtime.encryption import values

MOST_LINES = 50
_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class TaskPage:
    at: datetime
    task: Task
    attempts: tuple[Attempt, ...]  # those that did not succeed, oldest first
    explanation: Explanation
    progress: float | None
    note: str | None
    checkpoint: dict[str, Any] | None
    steps: dict[str, datetime]  # those that ctx.step has kept, and when
    progress_at: datetime | None
    member_of: GroupProgress | None
    step: str | None  # its name in the flow that ``member_of`` is
    events: tuple[StoredEvent, ...]  # that it waits for or has waited for, by key
    open_events: tuple[str, ...]  # keys of those that it waits for
    timeline: tuple[Moment, ...]  # all that is known to have happened to it, oldest first
    audit: tuple[AuditLine, ...]  # what operators did to it, the newest first
    schedule: str | None  # the name of the one that made it
    trace_id: str | None  # of the trace that its producer, or its headers, named
    encrypted: bool  # something of it is stored encrypted

    @property
    def may_requeue(self) -> bool:
        return self.task.pool != Pool.PENDING

    @property
    def may_cancel(self) -> bool:
        return self.task.pool == Pool.PENDING and self.task.cancel_requested_at is None

    @property
    def may_run_now(self) -> bool:
        return (
            self.may_hold
            and not self.task.waits_for
            and (self.task.held or self.task.due_at > self.at)
        )

    @property
    def may_hold(self) -> bool:
        return self.task.state is State.PENDING

    @property
    def may_unblock(self) -> bool:
        return self.task.pool == Pool.ERROR


def task_page(
    connection: Connection, task_id: int, settings: Settings, *, decrypt: bool = False
) -> TaskPage | None:
    """With ``decrypt``, decrypt what this process has the keys of."""
    task = browse.get(connection, task_id)
    if task is None:
        return None
    explanation = explain_task(connection, task_id, settings=settings)
    schedule = schedule_name(connection, task.pool, task_id)
    sources = sources_of(connection, task, schedule)
    encrypted = values.is_encrypted(task, sources.attempts)
    if decrypt:
        attempts = values.opened_attempts(sources.attempts, task.name)
        sources = replace(sources, attempts=attempts)
        task = values.opened_task(task)
    sources = concealed_sources(replace(sources, task=task))
    task = sources.task
    traceparent = task.headers.get("traceparent") if isinstance(task.headers, dict) else None
    trace = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    kept, mask = run_records.read_checkpoint(connection, task_id), values.masks().value
    secret = ("payload", "headers", "result")
    needs = events.waits_of(connection, [task_id]).get(task_id, ())
    waits = task.state is State.PENDING
    needed = events.find_by_key(connection, [need.key for need in needs])
    hidden = {name: masked(values.shown(getattr(task, name))) for name in secret}
    return TaskPage(
        at=explanation.at,
        task=replace(task, **hidden),
        attempts=tuple(sources.attempts),
        explanation=explanation,
        progress=None if kept is None else kept.fraction,
        note=None if kept is None else kept.note,
        checkpoint=None if kept is None else masked(mask(task.name, kept.checkpoint)),
        steps=run_records.step_names(connection, task_id),
        progress_at=None if kept is None else kept.at,
        member_of=groups_of(connection, task_id).member_of,
        step=connection.execute(_STEP, {"id": task_id}).scalar(),
        events=tuple(shown_event(each, [task.name], values.masks()) for each in needed),
        open_events=tuple(need.key for need in needs if waits and need.is_open),
        timeline=timeline(sources),
        audit=tuple(sources.audit),
        schedule=schedule,
        trace_id=trace[1] if trace else None,
        encrypted=encrypted,
    )


_STEP = text(f"SELECT s.step FROM {FLOW_STEP} s WHERE s.task_id = :id")


def sources_of(connection: Connection, task: Task, schedule: str | None) -> Sources:
    """Read what the timeline of a task is made of; ``schedule`` is the one that created it."""
    return Sources(
        task,
        browse.failed_attempts(connection, task.id),
        transitions(connection, task.id),
        read_lines(connection, task.id),
        find_among_newest(connection, task_id=task.id, most=MOST_LINES),
        None if schedule is None else f"schedule {schedule}",
    )


def concealed_sources(of: Sources) -> Sources:
    attempts = values.concealed_attempts(of.attempts, of.task)
    return replace(of, task=values.concealed_task(of.task), attempts=attempts)


_SCHEDULE_NAME = {
    pool: text(f"""
        SELECT s.name FROM {table} t JOIN {SCHEDULE} s ON s.id = t.schedule_id WHERE t.id = :id
    """)
    for pool, table in ((Pool.PENDING, PENDING), (Pool.ERROR, ERROR), (Pool.COMPLETED, COMPLETED))
}


def schedule_name(connection: Connection, pool: str, task_id: int) -> str | None:
    """Return the name of the schedule that created a task, if it still exists."""
    return connection.execute(_SCHEDULE_NAME[Pool(pool)], {"id": task_id}).scalar()
