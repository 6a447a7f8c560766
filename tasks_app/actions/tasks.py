"""What is done to tasks: to one by its id, and to many in a bulk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import Action, ActionResult, Nothing, Role, Short, Why, action, param
from tasks_app.domain.operations import BulkAction as Word
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.pool.tasks.requeue import Requeued
from tasks_app.runtime.api.amend_waiting import (
    Changed,
    disable_task,
    enable_task,
    hold_task,
    move_task,
    release_task,
    reprioritise_task,
    reschedule_task,
    run_task_now,
)
from tasks_app.runtime.api.limits import unblock_task
from tasks_app.runtime.api.tasks import cancel_task, requeue_task

UNCHANGED = "Nothing was changed: the task is not in a state for that any more."
CHANGES = frozenset({Cancelled.CANCELLED, Cancelled.REQUESTED, Requeued.REQUEUED, Changed.CHANGED})
"""The answers that say that it was done."""


@dataclass(frozen=True, slots=True)
class AnotherDate(Why):
    """Another date: one of both."""

    at: Short | None = param(
        "--at",
        "ISO 8601 with its zone: 2026-01-31T09:00+01:00.",
        label="Or at",
        hint="2031-01-31T09:00+01:00",
        metavar="INSTANT",
    )
    """An ISO 8601 instant with its zone."""
    delay: Short | None = param(
        "--in",
        "So long from now: 30m, 6h, 2d.",
        label="In",
        hint="30m, 6h, 2d",
        metavar="TIME",
    )
    """From now, as `6h`."""


@dataclass(frozen=True, slots=True)
class AnotherPriority(Why):
    """Which priority."""

    to_priority: Annotated[int, Field(ge=0, le=9)] | None = param(
        "--to", "0 goes first, 9 last.", label="Priority", required=True
    )


@dataclass(frozen=True, slots=True)
class AnotherQueue(Why):
    """Which queue."""

    to_queue: Annotated[str, Field(max_length=255)] | None = param(
        "--to", "Their new queue.", label="Queue", metavar="QUEUE", required=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAction(Action):
    """An action that a bulk takes, too."""

    word: Word
    """Of the bulk, and in the audit."""
    verb: Callable[..., Any]
    takes_rate: bool = False
    """In a bulk its tasks become due one after the other."""
    says: str = ""
    """What a page adds to its form."""


_CHOSEN = "By id, or all that the options select."


def _action(
    word: Word, label: str, verb: Callable[..., Any], text: str, rest: str = "", **more: Any
) -> TaskAction:
    def run(connection: Connection, task_id: int, given: Any, by: str) -> ActionResult:
        if verb(connection, task_id, by=by, **asdict(given)) in CHANGES:
            return ActionResult(f"Done: {word}.")
        return ActionResult(UNCHANGED, changed=False)

    run.__doc__ = f"{text}\n\n{rest}"
    made = {"run": run, "verb": verb, "word": word, "label": label, "role": Role.OPERATOR}
    where = {"path": f"/tasks/{{task_id}}/{word}", "on": "task_id", "command": str(word)}
    return TaskAction(**{**made, **where, "takes": Why, **more})


OF_TASKS = (
    _action(
        Word.REQUEUE,
        "Requeue",
        requeue_task,
        "Return finished tasks to the pending pool. Failures begin at 0.",
        "Their ids and idempotency keys stay. By id, or all of the error pool that the options "
        "select; --pool completed: of that one.",
    ),
    _action(
        Word.CANCEL,
        "Cancel",
        cancel_task,
        "Cancel tasks by id, or all that the options select.",
        'Waiting ones are cancelled at once. Running ones are told ("requested") and hear it '
        "within 10 s: a statement that runs goes on, and a normal return is still SUCCEEDED.",
    ),
    _action(
        Word.RUN_NOW,
        "Run now",
        run_task_now,
        "Make waiting tasks due now.",
        f"{_CHOSEN} It ends the wait for a date, for a retry, and for a release.",
        takes_rate=True,
    ),
    _action(
        Word.HOLD,
        "Hold",
        hold_task,
        "Keep waiting tasks from running.",
        f"{_CHOSEN} They wait until they are released; one that has an expires_at still expires.",
    ),
    _action(
        Word.RELEASE,
        "Release",
        release_task,
        "Give held tasks their dates back.",
        f"{_CHOSEN} A date that has passed means now, or with --rate one after the other; a later "
        "one stays.",
        takes_rate=True,
    ),
    _action(
        Word.RESCHEDULE,
        "Reschedule",
        reschedule_task,
        "Give waiting tasks another date.",
        f"{_CHOSEN} A held task stays held, and has the new date when it is released.",
        takes=AnotherDate,
        says="It runs then, if it waits. A held one has the date when it is released.",
    ),
    _action(
        Word.REPRIORITISE,
        "Reprioritise",
        reprioritise_task,
        "Give waiting tasks another priority.",
        _CHOSEN,
        takes=AnotherPriority,
        says="Lower numbers go first.",
    ),
    _action(
        Word.MOVE,
        "Move",
        move_task,
        "Put waiting tasks into another queue.",
        f"{_CHOSEN} A message that is out may still bring a task to a worker of its old queue.",
        takes=AnotherQueue,
        says="A message that is out may still start it in its old queue.",
    ),
    _action(
        Word.ENABLE,
        "Enable",
        enable_task,
        "Let disabled tasks run when they are due.",
        _CHOSEN,
    ),
    _action(
        Word.DISABLE,
        "Disable",
        disable_task,
        "Have waiting tasks end as SKIPPED when they are due. To keep them, use hold.",
        _CHOSEN,
    ),
)
BY_WORD = {str(each.word): each for each in OF_TASKS}


@action(Role.OPERATOR, "Unblock", "/tasks/{task_id}/unblock", command="unblock")
def unblock(connection: Connection, task_id: int, _: Nothing, by: str) -> ActionResult:
    """Let the tasks behind a failed one of their order key go on. It stays in the error pool."""
    if unblock_task(connection, task_id, by=by):
        return ActionResult("The tasks behind it go on.", {"id": task_id, "unblocked": True})
    if browse.get(connection, task_id) is None:
        said = f"There is no task {task_id}. Run: tasks-app list"
    else:
        said = f"Task {task_id} holds no order key. Run: tasks-app show {task_id}"
    return ActionResult(said, changed=False)
