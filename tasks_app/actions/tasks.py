"""What operators do to tasks, error causes, groups and batch jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import (
    Action,
    ActionResult,
    Nothing,
    Role,
    Run,
    Short,
    Why,
    action,
    param,
)
from tasks_app.batch.control import abandon_job, get_job, restart_job, stop_job
from tasks_app.domain.config.field_types import Span
from tasks_app.domain.durations import count
from tasks_app.domain.errors import InvalidTaskError, NotThereError
from tasks_app.domain.flows import is_undone
from tasks_app.domain.operations import BulkAction as Word
from tasks_app.pool import task_groups as group_rows
from tasks_app.pool.events import find as find_events
from tasks_app.pool.flows import get_flow
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.pool.tasks.requeue import Requeued
from tasks_app.runtime.api import amend_waiting as amend
from tasks_app.runtime.api.errors import mark_error_known, mark_error_unknown
from tasks_app.runtime.api.events import send_event
from tasks_app.runtime.api.groups import cancel_group
from tasks_app.runtime.api.limits import unblock_task
from tasks_app.runtime.api.tasks import cancel_task, requeue_task
from tasks_app.runtime.api.undo import undo_flow

UNCHANGED = "Nothing was changed: the state of the task does not allow it any more."
CHANGES = frozenset(
    {Cancelled.CANCELLED, Cancelled.REQUESTED, Requeued.REQUEUED, amend.Changed.CHANGED}
)
"""The answers that say that it was done."""


@dataclass(frozen=True, slots=True)
class Grace(Why):
    """Whether the process of a run may be killed."""

    kill_after: Span | None = param(
        "--kill-after",
        "Kill the process of a run that has not ended so long after the request: 5s.",
        label="Kill after",
        hint="5s; empty: never",
        metavar="TIME",
    )


@dataclass(frozen=True, slots=True)
class AnotherDate(Why):
    """Another date: one of the two."""

    at: Short | None = param(
        "--at",
        "ISO 8601 with its zone: 2026-01-31T09:00+01:00.",
        label="Or at",
        hint="2031-01-31T09:00+01:00",
        metavar="INSTANT",
    )
    delay: Short | None = param(
        "--in", "This long from now: 30m, 6h, 2d.", label="In", hint="30m, 6h, 2d", metavar="TIME"
    )


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
    """An action that a bulk can run, too."""

    word: Word
    """The bulk's, and in the audit."""
    verb: Callable[..., Any]
    takes_rate: bool = False
    """In a bulk its tasks become due one after the other."""
    says: str = ""
    """A page adds it to its form."""


_CHOSEN = "By id, or all that the options select."


def _action(
    word: Word, verb: Callable[..., Any], text: str, details: str, **more: Any
) -> TaskAction:
    def run(connection: Connection, task_id: int, given: Any, by: str) -> ActionResult:
        answer = verb(connection, task_id, by=by, **asdict(given))
        if answer in CHANGES:
            return ActionResult(f"Done: {word}.")
        waits = answer is amend.Changed.WAITS and amend.refusal_to_run_now(connection, task_id)
        return ActionResult(waits or UNCHANGED, changed=False)

    run.__doc__ = f"{text}\n\n{details}"
    label, path = word.replace("-", " ").capitalize(), f"/tasks/{{task_id}}/{word}"
    made = {"run": run, "verb": verb, "word": word, "label": label, "role": Role.OPERATOR}
    where = {"path": path, "on": "task_id", "command": str(word)}
    return TaskAction(**{**made, **where, "takes": Why, **more})


OF_TASKS = (
    _action(
        Word.REQUEUE,
        requeue_task,
        "Return finished tasks to the pending pool. Failures begin at 0.",
        "Their ids and idempotency keys stay. By id, from any pool: a task that had SUCCEEDED runs "
        "again, too, and repeats its effects. Or all of the error pool that the options select; "
        "--pool completed selects from that pool.",
    ),
    _action(
        Word.CANCEL,
        cancel_task,
        "Cancel tasks by id, or all that the options select.",
        'Waiting ones are cancelled at once. Running ones ("requested") are interrupted within '
        "2 s; a handler that swallows that, and returns, has still SUCCEEDED.",
        takes=Grace,
    ),
    _action(
        Word.RUN_NOW,
        amend.run_task_now,
        "Make waiting tasks due now.",
        f"{_CHOSEN} It ends the wait for a date, a retry or a release.",
        takes_rate=True,
    ),
    _action(
        Word.HOLD,
        amend.hold_task,
        "Keep waiting tasks from running.",
        f"{_CHOSEN} They wait until you release them; one that has an expires_at still expires.",
    ),
    _action(
        Word.RELEASE,
        amend.release_task,
        "Give held tasks their dates back.",
        f"{_CHOSEN} A date that has passed means now, or with --rate one after the other; a later "
        "one stays.",
        takes_rate=True,
    ),
    _action(
        Word.RESCHEDULE,
        amend.reschedule_task,
        "Give waiting tasks another date.",
        f"{_CHOSEN} A held task stays held, and gets the new date when it is released.",
        takes=AnotherDate,
        says="It runs then, if it waits. A held one gets the date when it is released.",
    ),
    _action(
        Word.REPRIORITISE,
        amend.reprioritise_task,
        "Give waiting tasks another priority.",
        _CHOSEN,
        takes=AnotherPriority,
        says="Lower numbers go first.",
    ),
    _action(
        Word.MOVE,
        amend.move_task,
        "Put waiting tasks into another queue.",
        f"{_CHOSEN} A message that was sent may still start a task in its old queue.",
        takes=AnotherQueue,
        says="A message that was sent may still start it in its old queue.",
    ),
    _action(Word.ENABLE, amend.enable_task, "Let disabled tasks run when they are due.", _CHOSEN),
    _action(
        Word.DISABLE,
        amend.disable_task,
        "Let waiting tasks end as SKIPPED when they are due. To keep them, use hold.",
        _CHOSEN,
    ),
)
BY_WORD = {str(each.word): each for each in OF_TASKS}


@action(Role.OPERATOR, "Unblock", "/tasks/{task_id}/unblock", command="unblock")
def unblock(connection: Connection, task_id: int, _: Nothing, by: str) -> ActionResult:
    """Let the tasks behind a failed one of their order key go on. It stays in the error pool."""
    if unblock_task(connection, task_id, by=by):
        return ActionResult("The tasks behind it go on.", {"id": task_id, "unblocked": True})
    text = f"Task {task_id} holds no order key. Run: tasks-app show {task_id}"
    if browse.get(connection, task_id) is None:
        text = f"There is no task {task_id}. Run: tasks-app list"
    return ActionResult(text, changed=False)


@dataclass(frozen=True, slots=True)
class Known:
    """How long the mark lasts, and a note."""

    until: Span | None = param(label="For", hint="7d; empty: for ever")
    """For how long; None: until an operator removes it."""
    note: Annotated[str, Field(max_length=500)] = param(default="", label="Note")


@action(Role.OPERATOR, "Mark as known", "/errors/{fingerprint}/known", takes=Known)
def mark_known(connection: Connection, fingerprint: str, given: Known, by: str) -> ActionResult:
    """Mark a cause as known."""
    until: timedelta | None = given.until
    if mark_error_known(connection, fingerprint, by=by, until=until, note=given.note):
        return ActionResult("Marked as known.")
    text = f"No failed task has {fingerprint:.40}. Run: tasks-app errors"
    return ActionResult(text, changed=False)


_UNKNOWN = {"command": "errors unknown"}


@action(Role.OPERATOR, "Take the mark back", "/errors/{fingerprint}/unknown", **_UNKNOWN)
def mark_unknown(connection: Connection, fingerprint: str, _: Nothing, by: str) -> ActionResult:
    """Take the mark of a cause back."""
    if mark_error_unknown(connection, fingerprint, by=by):
        fields = {"fingerprint": fingerprint, "known_by": None}
        return ActionResult("It is not marked any more.", fields)
    text = f"{fingerprint:.40} is not marked as known. Run: tasks-app errors"
    return ActionResult(text, changed=False)


@action(Role.OPERATOR, "Cancel", "/groups/{group_id}/cancel", command="groups cancel", takes=Why)
def cancel_members(connection: Connection, group_id: int, given: Why, by: str) -> ActionResult:
    """Cancel the members that have not ended. Running ones are interrupted."""
    if group_rows.get_group(connection, group_id) is None:
        raise NotThereError(f"There is no group {group_id}. Run: tasks-app groups list")
    done = cancel_group(connection, group_id, by=by, why=given.why)
    text = f"{done.cancelled} cancelled, {done.requested} asked to stop."
    fields = {"group": group_id, **asdict(done)}
    return ActionResult(text, fields, changed=bool(done.cancelled or done.requested))


_CANCEL_FLOW: dict[str, Any] = {"on": "flow_id", "command": "flows cancel", "takes": Why}


@action(Role.OPERATOR, "Cancel", **_CANCEL_FLOW)
def cancel_steps(connection: Connection, flow_id: int, given: Why, by: str) -> ActionResult:
    """Cancel the steps that have not ended. Running ones are interrupted."""
    if get_flow(connection, flow_id) is None:
        raise NotThereError(f"There is no flow {flow_id}. Run: tasks-app flows list")
    return cancel_members.run(connection, flow_id, given, by)


@action(Role.OPERATOR, "Undo", "/flows/{flow_id}/undo", takes=Why)
def undo_steps(connection: Connection, flow_id: int, given: Why, by: str) -> ActionResult:
    """Cancel what has not ended, and undo what has succeeded."""
    before = get_flow(connection, flow_id)
    steps = undo_flow(connection, flow_id, by=by, why=given.why)
    if before is not None and is_undone(before.steps):
        return ActionResult("It was undone before; nothing was changed.", changed=False)
    told = f"{count(len(steps), 'step')} will be undone{': ' if steps else ''}{', '.join(steps)}."
    return ActionResult(told, {"steps": steps})


@dataclass(frozen=True, slots=True)
class EventToSend(Why):
    """What is sent, and by whom."""

    payload: Annotated[str, Field(max_length=65_536)] = param(
        "--payload", "A JSON object for the tasks that wait.", "{}", label="Payload", metavar="JSON"
    )
    sender: Short = param("--by", "Who decided. You, unless given.", "", metavar="NAME")
    page: str = ""


def _page(given: EventToSend) -> str:
    """Return the page of the flow or task from which it was sent, or that of all events."""
    return f"/{given.page}" if re.fullmatch(r"(flows|tasks)/\d+", given.page) else "/events"


_SEND = {"command": "events send", "takes": EventToSend, "page": _page}


@action(Role.OPERATOR, "Send", "/events/{key:path}/send", **_SEND)
def send(connection: Connection, key: str, given: EventToSend, by: str) -> ActionResult:
    """Send an event. Tasks that wait for it go on; the first one with a key counts."""
    try:
        payload = json.loads(given.payload)
    except ValueError as error:
        allowed = 'a JSON object, such as {"approved": true}'
        raise InvalidTaskError("payload", f"is no JSON ({error})", allowed) from None
    waited_for = find_events(connection, 1, key=key, waiting=True)
    if not send_event(connection, key, payload, by=given.sender or by, why=given.why):
        return ActionResult("Nothing was changed: it was sent before.", changed=False)
    reason = {"why": given.why} if given.why else {}
    note(connection, "send event", {"event": key, **reason}, who=by, number=1)
    told = "It is sent. Nobody waits for it yet: tasks-app events list --waiting"
    if waited_for:
        number = waited_for[0].waiting
        told = f"It is sent; {count(number, 'task')} {'waits' if number == 1 else 'wait'} for it."
    return ActionResult(told, {"key": key, "sent": True})


def _batch_action(label: str, word: str, **more: Any) -> Callable[[Run], Action]:
    path, command = f"/batches/{{batch_id}}/{word}", f"batch {word}"
    return action(Role.ADMIN, label, path, command=command, needs_handlers=True, **more)


def _check_batch(connection: Connection, batch_id: int) -> None:
    if get_job(connection, batch_id) is None:
        raise NotThereError(f"There is no batch {batch_id}. Run: tasks-app batch list")


@_batch_action("Stop at the next chunks", "stop")
def stop_instance(connection: Connection, batch_id: int, _: Nothing, by: str) -> ActionResult:
    """Stop an instance at the next chunks; a restart goes on there."""
    _check_batch(connection, batch_id)
    left = stop_job(connection, batch_id, by=by)
    text = f"Stopping; {left} tasks still run." if left else "Stopping."
    return ActionResult(text, {"batch_id": batch_id, "running": left})


@dataclass(frozen=True, slots=True)
class Restart:
    """How an instance goes on."""

    divide: Annotated[int, Field(ge=2, le=1000)] | None = param(
        "--divide", "Divide each partition that has not started into this many.", label="Divide by"
    )


@_batch_action("Go on", "restart", takes=Restart)
def restart_instance(
    connection: Connection, batch_id: int, given: Restart, by: str
) -> ActionResult:
    """Let an instance go on that failed or was stopped. Complete partitions are not repeated."""
    _check_batch(connection, batch_id)
    begun = restart_job(connection, batch_id, divide=given.divide, by=by)
    return ActionResult(f"It goes on, run {begun.run}.", begun._asdict())


@_batch_action("Never let it go on", "abandon")
def abandon_instance(connection: Connection, batch_id: int, _: Nothing, by: str) -> ActionResult:
    """Never let an instance go on. What it did stays; its parameters are free again."""
    _check_batch(connection, batch_id)
    abandon_job(connection, batch_id, by=by)
    return ActionResult("Abandoned.", {"batch_id": batch_id, "abandoned": True})
