"""Collects what hooks tell of runs into the record of a drain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tasks_app.domain.tasks.run import Run
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind
from tasks_app.testing.results import Drained, TaskRun

LED_TO = {
    NoticeKind.SUCCEEDED: State.SUCCEEDED,
    NoticeKind.FAILED: State.FAILED,
    NoticeKind.CANCELLED: State.CANCELLED,
    NoticeKind.SKIPPED: State.SKIPPED,
    NoticeKind.EXPIRED: State.EXPIRED,
    NoticeKind.RETRIED: State.PENDING,
    NoticeKind.SNOOZED: State.PENDING,
    NoticeKind.RESCUED: State.PENDING,
}


class RunCollector:
    """Of one drain."""

    def __init__(self) -> None:
        self.runs: list[TaskRun] = []
        self.raised: dict[Run, BaseException] = {}
        """What handlers raised, where the drain sees it."""

    def __call__(self, notice: Notice) -> None:
        """Note the end of a run."""
        if notice.kind not in LED_TO:
            return
        state, cause = LED_TO[notice.kind], notice.cause
        self.runs.append(
            TaskRun(
                notice.task_id,
                notice.name,
                notice.attempt,
                state,
                None if notice.result is None else json.loads(notice.result),
                f"{cause.kind}: {cause.message}".removesuffix(": ") if cause else None,
                notice.wait if state is State.PENDING else None,
                self.raised.get(Run(notice.task_id, notice.attempt)),
            )
        )

    def drained(self) -> Drained:
        """Return the record."""
        return Drained(tuple(self.runs))


@contextmanager
def collected() -> Iterator[RunCollector]:
    """Collect while the block runs."""
    collector = RunCollector()
    HOOKS.subscribe(collector)
    try:
        yield collector
    finally:
        HOOKS.unsubscribe(collector)
