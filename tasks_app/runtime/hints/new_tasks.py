"""Which tasks are hinted at, and when."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from tasks_app.domain.groups import Called
from tasks_app.domain.tasks.records import RowTemplate, TaskId, TaskRow
from tasks_app.domain.tasks.run import Settlement
from tasks_app.runtime.hints.sender import Hint

NEAR = timedelta(seconds=1.5)
"""The scan finds in time what becomes due later than this: it is more than its usual interval."""
BULK = 1_000
"""Calls that create more tasks than this are left to the scan: nobody waits for the first task."""


def of_new(rows: Sequence[TaskRow], ids: Sequence[TaskId]) -> list[Hint]:
    """Of tasks that one call has created, those that are due soon."""
    if len(rows) > BULK:
        return []
    now = time.monotonic()  # later than the database inserted them: no hint is early
    return [
        Hint(row.terms.queue, int(task_id), now + row.terms.delay.total_seconds())
        for row, task_id in zip(rows, ids, strict=True)
        if task_id.created and is_near(row.terms)
    ]


def of_returned(settlements: Iterable[Settlement]) -> list[Hint]:
    """Of tasks that have just gone back to the pool, those that are due again soon."""
    now = time.monotonic()
    return [
        Hint(s.task.queue, s.fence.task_id, now + s.wait.total_seconds())
        for s in settlements
        if s.wait is not None and s.wait <= NEAR and s.task is not None
    ]


def of_called(callbacks: Iterable[Called]) -> list[Hint]:
    """Of callbacks that were just committed, those that are due soon."""
    now, near = time.monotonic(), NEAR.total_seconds()
    return [
        Hint(each.queue, each.id, now + max(0.0, each.wait_s))
        for each in callbacks
        if each.wait_s <= near
    ]


def is_near(terms: RowTemplate) -> bool:
    """Whether the task may become due before a scan finds it.

    A task with a fair_key is left to the scan: by a hint it would overtake all others.
    """
    near = terms.run_at is None and terms.delay <= NEAR
    return near and terms.enabled and terms.fair_key is None
