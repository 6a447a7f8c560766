"""What a drain did: each run, and how each task stands after it. Hooks report the runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from tasks_app.domain.durations import format_duration
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.run import Run
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind

_COMES_BACK = {NoticeKind.RETRIED, NoticeKind.SNOOZED, NoticeKind.RESCUED}


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of one task, or its end without a run."""

    task_id: int
    """The task's id."""
    name: str
    """The task's name."""
    attempt: int
    """Which claim of the task; 0: it was not claimed."""
    state: State
    """Where the run led; PENDING: the task comes back."""
    result: Any = None
    """What the handler returned, as it is stored."""
    error: str | None = None
    """Class and message of why it did not succeed."""
    wait: timedelta | None = None
    """How long until it is due again."""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """What the handler raised. None after a drain of committed tasks, too."""

    def __str__(self) -> str:
        again = f", due again in {format_duration(self.wait)}" if self.wait is not None else ""
        why = f": {self.error}" if self.error else ""
        return f"{self.name} ({self.task_id}, attempt {self.attempt}) is {self.state}{again}{why}"


@dataclass(frozen=True)
class Drained:
    """All runs of one drain, in the order in which they ended."""

    runs: tuple[TaskRun, ...] = ()
    """A task that came back at once has several."""

    @cached_property
    def tasks(self) -> Mapping[int, TaskRun]:
        """The last run of each task, by its id."""
        return {run.task_id: run for run in self.runs}

    @property
    def succeeded(self) -> list[TaskRun]:
        """Of tasks that are SUCCEEDED."""
        return self._in(State.SUCCEEDED)

    @property
    def failed(self) -> list[TaskRun]:
        """Of tasks that are in the error pool."""
        return self._in(State.FAILED)

    @property
    def waiting(self) -> list[TaskRun]:
        """Of tasks that come back later: retries, snoozes."""
        return self._in(State.PENDING)

    @property
    def set_aside(self) -> list[TaskRun]:
        """Of tasks that are SKIPPED, CANCELLED or EXPIRED."""
        return self._in(State.SKIPPED, State.CANCELLED, State.EXPIRED)

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks are in which state."""
        return dict(Counter(run.state.value for run in self.tasks.values()))

    def of(self, task: Handler[Any, Any] | str | int) -> Drained:
        """Return the runs of one name, handler or id."""
        key = task if isinstance(task, int) else name_of(task)
        return Drained(tuple(run for run in self.runs if key in {run.task_id, run.name}))

    def assert_succeeded(self) -> Drained:
        """Assert that something ran, and that all of it succeeded in the end.

        A step of a flow that is not needed any more counts as no failure.

        Raises:
            AssertionError: it says what did not; its cause is what the handler raised.
        """
        bad = [
            run
            for run in self.tasks.values()
            if run.state is not State.SUCCEEDED and not _is_unneeded(run)
        ]
        if bad:
            lines = "\n".join(f"  {run}" for run in bad)
            raise AssertionError(
                f"{len(bad)} of {len(self.tasks)} tasks did not succeed:\n{lines}"
            ) from bad[0].exception
        if not self.tasks:
            raise AssertionError("Nothing was due: no task ran.")
        return self

    def _in(self, *states: State) -> list[TaskRun]:
        return [run for run in self.tasks.values() if run.state in states]

    def __iter__(self) -> Iterator[TaskRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


def _is_unneeded(run: TaskRun) -> bool:
    return run.state is State.SKIPPED and run.error is None  # other skips say why


@contextmanager
def collected(raised: Mapping[Run, BaseException]) -> Iterator[list[TaskRun]]:
    """Collect the ends of runs while the block runs; ``raised`` knows what handlers raised."""
    runs: list[TaskRun] = []

    def note(notice: Notice) -> None:
        comes_back, cause = notice.kind in _COMES_BACK, notice.cause
        if comes_back or notice.kind.is_final:
            run = TaskRun(
                notice.task_id,
                notice.name,
                notice.attempt,
                State.PENDING if comes_back else State[notice.kind.name],
                None if notice.result is None else json.loads(notice.result),
                f"{cause.kind}: {cause.message}".removesuffix(": ") if cause else None,
                notice.wait if comes_back else None,
                raised.get(Run(notice.task_id, notice.attempt)),
            )
            runs.append(run)

    HOOKS.subscribe(note)
    try:
        yield runs
    finally:
        HOOKS.unsubscribe(note)


def name_of(task: Any) -> str:
    """Return the name of a handler, of a task of ``django.tasks``, or the name as it is given."""
    name = task.spec.name if isinstance(task, Handler) else getattr(task, "module_path", task)
    if not isinstance(name, str):
        raise TypeError(f"{task!r:.80} is no handler. Give the handler, or its name.")
    return name
