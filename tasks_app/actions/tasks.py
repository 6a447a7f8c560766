"""What is done to tasks: to one by its id, and to many in a bulk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import Action, Because, Done, Nothing, Param, Role, Short, Why
from tasks_app.domain.operations.selection import DONE
from tasks_app.domain.operations.selection import Action as Word
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
class When:
    """Another date: one of both."""

    at: Annotated[
        Short | None,
        Param(
            "--at",
            "ISO 8601 with its zone: 2026-01-31T09:00+01:00.",
            label="Or at",
            hint="2031-01-31T09:00+01:00",
            metavar="INSTANT",
        ),
    ] = None
    """An ISO 8601 instant with its zone."""
    delay: Annotated[
        Short | None,
        Param(
            "--in",
            "So long from now: 30m, 6h, 2d.",
            label="In",
            hint="30m, 6h, 2d",
            metavar="TIME",
        ),
    ] = None
    """From now, as `6h`."""
    why: Because = ""


@dataclass(frozen=True, slots=True)
class Priority:
    """Which priority."""

    to_priority: Annotated[
        int | None,
        Field(ge=0, le=9),
        Param("--to", "0 goes first, 9 last.", label="Priority", required=True),
    ] = None
    why: Because = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Which queue."""

    to_queue: Annotated[
        str | None,
        Field(max_length=255),
        Param("--to", "Their new queue.", label="Queue", metavar="QUEUE", required=True),
    ] = None
    why: Because = ""


@dataclass(frozen=True, slots=True)
class TaskAction(Action):
    """An action that a bulk takes, too."""

    word: Word = field(kw_only=True)
    """Of the bulk, and in the audit."""
    verb: Callable[..., Any] = field(kw_only=True)
    takes_rate: bool = False
    """In a bulk its tasks become due one after the other."""
    says: str = ""
    """What a page adds to its form."""


def _action(word: Word, label: str, verb: Callable[..., Any], **more: Any) -> TaskAction:
    """Return the record; the docstring of ``verb`` stands in the reference."""

    def run(connection: Connection, task_id: int, given: Any, by: str) -> Done:
        answer = verb(connection, task_id, by=by, **asdict(given))
        fields = {"id": task_id, "answer": DONE.get(word, answer) if answer in CHANGES else answer}
        if answer in CHANGES:
            return Done(f"Done: {word}.", fields)
        return Done(UNCHANGED, fields, changed=False)

    run.__doc__ = more.pop("help")
    return TaskAction(
        run=run,
        verb=verb,
        word=word,
        label=label,
        command=str(word),
        path=f"/tasks/{{task_id}}/{word}",
        on="task_id",
        page=lambda task_id, _: f"/tasks/{task_id}",
        **{"role": Role.OPERATOR, "takes": Why, **more},
    )


OF_TASKS = (
    _action(
        Word.REQUEUE,
        "Requeue",
        requeue_task,
        help="""Return finished tasks to the pending pool. Failures begin at 0.

        Their ids and idempotency keys stay. By id, or all of the error pool that the options
        select; --pool completed: of that one.
        """,
    ),
    _action(
        Word.CANCEL,
        "Cancel",
        cancel_task,
        help="""Cancel tasks by id, or all that the options select.

        Waiting ones are cancelled at once. Running ones are told ("requested") and hear it within
        10 s: a statement that runs goes on, and a normal return is still SUCCEEDED.
        """,
    ),
    _action(
        Word.RUN_NOW,
        "Run now",
        run_task_now,
        takes_rate=True,
        help="""Make waiting tasks due now.

        By id, or all that the options select. It ends the wait for a date, for a
        retry, and for a release.
        """,
    ),
    _action(
        Word.HOLD,
        "Hold",
        hold_task,
        help="""Keep waiting tasks from running.

        By id, or all that the options select. They wait until they are released; one
        that has an expires_at still expires.
        """,
    ),
    _action(
        Word.RELEASE,
        "Release",
        release_task,
        takes_rate=True,
        help="""Give held tasks their dates back.

        By id, or all that the options select. A date that has passed means now, or
        with --rate one after the other; a later one stays.
        """,
    ),
    _action(
        Word.RESCHEDULE,
        "Reschedule",
        reschedule_task,
        takes=When,
        says="It runs then, if it waits. A held one has the date when it is released.",
        help="""Give waiting tasks another date.

        By id, or all that the options select. A held task stays held, and has the
        new date when it is released.
        """,
    ),
    _action(
        Word.REPRIORITISE,
        "Reprioritise",
        reprioritise_task,
        takes=Priority,
        says="Lower numbers go first.",
        help="""Give waiting tasks another priority.

        By id, or all that the options select.
        """,
    ),
    _action(
        Word.MOVE,
        "Move",
        move_task,
        takes=Place,
        says="A message that is out may still start it in its old queue.",
        help="""Put waiting tasks into another queue.

        By id, or all that the options select. A message that is out may still
        bring a task to a worker of its old queue.
        """,
    ),
    _action(
        Word.ENABLE,
        "Enable",
        enable_task,
        help="""Let disabled tasks run when they are due.

        By id, or all that the options select.
        """,
    ),
    _action(
        Word.DISABLE,
        "Disable",
        disable_task,
        help="""Have waiting tasks end as SKIPPED when they are due. To keep them, use hold.

        By id, or all that the options select.
        """,
    ),
)
BY_WORD = {str(each.word): each for each in OF_TASKS}


def _unblock(connection: Connection, task_id: int, _: Nothing, by: str) -> Done:
    """Let the tasks behind a failed one of their order key go on. It stays in the error pool."""
    if unblock_task(connection, task_id, by=by):
        return Done("The tasks behind it go on.", {"id": task_id, "unblocked": True})
    if browse.get(connection, task_id) is None:
        said = f"There is no task {task_id}. Run: tasks-app list"
    else:
        said = f"Task {task_id} holds no order key. Run: tasks-app show {task_id}"
    return Done(said, changed=False)


UNBLOCK = Action(
    run=_unblock,
    role=Role.OPERATOR,
    label="Unblock",
    on="task_id",
    path="/tasks/{task_id}/unblock",
    command="unblock",
    page=lambda task_id, _: f"/tasks/{task_id}",
)
