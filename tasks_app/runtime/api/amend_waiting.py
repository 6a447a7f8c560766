"""What operators change in single tasks that wait; nothing here commits.

A change is noted in the audit, in the same transaction: ``by`` is who wanted it, ``why`` is kept
beside. A task that runs or is over stays as it is, which the answer shows.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection

from tasks_app.domain.durations import Duration
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.explain.waiting import needs_of
from tasks_app.domain.operations import (
    DONE,
    Author,
    BulkAction,
    check_author,
    check_patched_payload,
    parse_amendment,
)
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.events import waits_of
from tasks_app.pool.flows import step_of
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.amend import amend, change_payload, lock_waiting, state_of
from tasks_app.runtime.db.connections import Raw, Sync, made_async, on_connection
from tasks_app.runtime.encryption.values import is_secret, must_encrypt, sealed_payload
from tasks_app.runtime.handlers.registry import HANDLERS, Registry
from tasks_app.runtime.large_values import large_values


class Changed(StrEnum):
    """What became of a wish to change how a task waits."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    """It was so already."""
    WAITS = "left as it is: it waits for steps of its flow, or for events"
    RUNNING = "running, left as it is"
    ALREADY_OVER = "already over"
    NOT_FOUND = "not found"


def run_task_now(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Changed:
    """Make a task due that waits for its time, its retry or its release.

    >>> hold_task(session, task_id) and print(run_task_now(session, task_id, by="anna"))
    changed
    """
    return _amended(session, BulkAction.RUN_NOW, task_id, by, why)


def reschedule_task(
    session: Sync | Raw,
    task_id: int,
    *,
    at: datetime | None = None,
    delay: Duration | None = None,
    by: str = "",
    why: str = "",
) -> Changed:
    """Give a waiting task another date: ``at``, or ``delay`` from now. A held one has it then.

    >>> print(reschedule_task(session, task_id, delay="2h", by="anna"))
    changed

    Raises:
        InvalidSelectionError: neither is given, or both, or one is invalid.
    """
    return _amended(session, BulkAction.RESCHEDULE, task_id, by, why, at=at, delay=delay)


def reprioritise_task(
    session: Sync | Raw, task_id: int, to_priority: int, *, by: str = "", why: str = ""
) -> Changed:
    """Give a waiting task another priority, 0 to 9; 0 goes first.

    >>> print(reprioritise_task(session, task_id, 0, by="anna"))
    changed

    Raises:
        InvalidSelectionError: the priority is not 0 to 9.
    """
    action = BulkAction.REPRIORITISE
    return _amended(session, action, task_id, by, why, to_priority=to_priority)


def move_task(
    session: Sync | Raw, task_id: int, to_queue: str, *, by: str = "", why: str = ""
) -> Changed:
    """Put a waiting task into another queue. A message that is out may still start it in its old.

    >>> print(move_task(session, task_id, "slow", by="anna"))
    changed

    Raises:
        InvalidSelectionError: a queue cannot have this name.
    """
    return _amended(session, BulkAction.MOVE, task_id, by, why, to_queue=to_queue)


def hold_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Changed:
    """Keep a waiting task from running until it is released. Its ``expires_at`` still ends it.

    >>> print(hold_task(session, task_id, by="anna", why="the bank asks"))
    changed
    >>> explain_task(session, task_id).findings[0].fact
    'It was put on hold just now (...) by anna: the bank asks'
    """
    return _amended(session, BulkAction.HOLD, task_id, by, why)


def release_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Changed:
    """Give a held task its date back; one that has passed means now.

    >>> hold_task(session, task_id) and print(release_task(session, task_id, by="anna"))
    changed
    """
    return _amended(session, BulkAction.RELEASE, task_id, by, why)


def enable_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Changed:
    """Let a disabled task run when it is due.

    >>> disable_task(session, task_id) and print(enable_task(session, task_id, by="anna"))
    changed
    """
    return _amended(session, BulkAction.ENABLE, task_id, by, why)


def disable_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Changed:
    """Have a waiting task end as SKIPPED when it is due. To keep it, use ``hold_task``.

    >>> print(disable_task(session, task_id, by="anna"))
    changed
    """
    return _amended(session, BulkAction.DISABLE, task_id, by, why)


def _amended(
    session: Sync | Raw, action: BulkAction, task_id: int, by: str, why: str, **words: Any
) -> Changed:
    change, task_id = parse_amendment(action, {**words, "why": why}), check_id(task_id)
    with on_connection(session) as connection:
        while not lock_waiting(connection, task_id):
            match state_of(connection, task_id):
                case None:
                    return Changed.NOT_FOUND
                case State.PENDING:
                    continue  # its run ended between the two statements
                case State.RUNNING:
                    return Changed.RUNNING
                case _:
                    return Changed.ALREADY_OVER
        done = amend(connection, action, [task_id], change, by=Author(by, change.why or ""))
        if not done:
            if action is BulkAction.RUN_NOW and refusal_to_run_now(connection, task_id):
                return Changed.WAITS
            return Changed.UNCHANGED
        note(connection, action, change.plain(), who=by, ids=done, answers={DONE[action]: 1})
        return Changed.CHANGED


def refusal_to_run_now(connection: Connection, task_id: int) -> str | None:
    """Say which steps and events a task waits for, and what to do; None: it waits for none."""
    of = step_of(connection, task_id)
    events = waits_of(connection, [task_id]).get(task_id, ())
    finding = needs_of(of, events, database_now(connection))
    return f"{finding.fact}. {finding.advice}" if finding else None


arun_task_now: Final = made_async(run_task_now)
areschedule_task: Final = made_async(reschedule_task)
areprioritise_task: Final = made_async(reprioritise_task)
amove_task: Final = made_async(move_task)
ahold_task: Final = made_async(hold_task)
arelease_task: Final = made_async(release_task)
aenable_task: Final = made_async(enable_task)
adisable_task: Final = made_async(disable_task)


_EDITABLE = {State.PENDING, State.FAILED}


def check_payload(name: str, payload: dict[str, Any], registry: Registry = HANDLERS) -> str:
    """Return it as JSON text; InvalidSelectionError: its handler isn't known or doesn't take it."""
    spec = registry.get(name)
    if spec is None:
        raise InvalidSelectionError(
            f"The handler of {name} is not known here. Start with TASKS_APP_IMPORTS=its.module."
        )
    return check_patched_payload(name, payload, spec, large_values().row_limit)


def edit_payload(
    connection: Connection,
    task_id: int,
    payload: dict[str, Any],
    *,
    by: str = "",
    why: str = "",
    registry: Registry = HANDLERS,
) -> bool:
    """Replace the payload of a task that waits or has failed; False: it does neither."""
    author = check_author(by, why)
    while (task := browse.get(connection, task_id)) is not None and task.state in _EDITABLE:
        text = check_payload(task.name, payload, registry)
        spec = registry.get(task.name)
        if (
            is_secret(task.payload)
            or (spec and spec.encrypted)
            or must_encrypt(task.name, task.queue)
        ):
            text = sealed_payload(text, task.name)
        if change_payload(connection, Pool(task.pool), task_id, text, by=author):
            what = {"ids": [task_id], **author.reason}
            note(connection, BulkAction.EDIT, what, who=by, ids=[task_id])
            return True
    return False
