"""What operators call for single tasks, on a connection or session of theirs; nothing commits.

A change is noted in the audit, in the same transaction: ``by`` is who wanted it, ``why`` is kept
beside.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from tasks_app.domain.explain.explanation import Explanation, explain
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.large_values.reference import PAYLOAD, RESULT, reference_of
from tasks_app.domain.operations.author import Author, author
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.tasks.names import check_id
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.groups.browse import groups_of
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.explain import read_facts
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.tasks.large_values import read
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.db.connections import (
    Raw,
    Sync,
    connection_of,
    made_async,
    on_connection,
)
from tasks_app.runtime.encryption.older_texts import masked_facts
from tasks_app.runtime.encryption.values import opened_task
from tasks_app.runtime.large_values import large_values

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import Settings

LATE_SCANS, PATIENCE = 5, timedelta(minutes=1)
"""No process scans if a row is due for longer than so many scan intervals and PATIENCE on top."""


def get_task(session: Sync | Raw, task_id: int) -> Task | None:
    """Return the task, in any pool, or None.

    Of an encrypted one payload and result are decrypted if this process has the key; else they are
    ``{"$encrypted": …}``.

    >>> task = get_task(session, task_id)
    >>> print(task.name, task.state)
    mail.send PENDING
    """
    task = on_connection(session, partial(browse.get, task_id=check_id(task_id)))
    return None if task is None else opened_task(task)


def load_large_values(session: Sync | Raw, task: Task) -> Task:
    """Return a task that ``get_task`` gave, with its payload and result in full.

    What stands in its row is left as it is; a value whose key is missing stays encrypted.

    >>> task = load_large_values(session, get_task(session, task_id))
    >>> task.payload
    {'to': 'a@example.org'}

    Raises:
        LargeValueLostError: the task has gone meanwhile, or what keeps its values has lost one.
        LargeStoreError: the object store does not answer.
    """
    return on_connection(session, partial(in_full, task=task))


def in_full(connection: Connection, task: Task) -> Task:
    """Do it on a connection; the same errors."""
    full = replace(
        task,
        payload=_value(connection, task.id, task.payload, PAYLOAD),
        result=_value(connection, task.id, task.result, RESULT),
    )
    return opened_task(full)


def _value(connection: Connection, task_id: int, value: Any, kind: str) -> Any:
    reference = reference_of(value)
    if reference is None:
        return value
    stored = read(connection, task_id, reference)
    return decode(large_values().text_of(stored, reference, kind), kind)


def explain_task(
    session: Sync | Raw, task_id: int, *, settings: Settings | None = None
) -> Explanation:
    """Say why a task does not run, or what became of it. It reads little and changes nothing.

    ``settings`` say for how long a silent worker counts as living; by default they come from the
    environment.

    >>> pause_queue(session, "default", "mail server is away")
    True
    >>> explain_task(session, task_id).findings[0].fact
    'Its queue default was paused just now (...): mail server is away'
    """
    verb = partial(_explained, task_id=check_id(task_id), settings=settings)
    return on_connection(session, verb)


def _explained(connection: Connection, task_id: int, settings: Settings | None) -> Explanation:
    if settings is None:
        from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  it costs 50 ms

        settings = load_settings()
    facts = read_facts(
        connection,
        task_id,
        lease=settings.lease,
        late_after=LATE_SCANS * settings.scan_interval + PATIENCE,
        beats_every=settings.renew_every,
    )
    found = groups_of(connection, task_id, exists=facts.row is not None)
    facts = replace(facts, **found._asdict())
    facts = masked_facts(connection, facts)
    if facts.waiting is not None:
        said = {each.queue: each for each in queue_settings.find(connection, now=facts.now)}
        name = facts.waiting.name
        down = [
            standing
            for standing in circuit_breakers.find(connection, now=facts.now)
            if name in standing.names and standing.state is not BreakerState.CLOSED
        ]
        queue = said.get(facts.waiting.queue)
        facts = replace(facts, queue=queue, breaker=down[0] if down else None)
    return explain(facts)


def cancel_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Cancelled:
    """Cancel a pending task at once; tell a running one, which then does not run again.

    >>> print(cancel_task(session, task_id, by="anna", why="ordered twice"))
    cancelled
    """
    verb = partial(_cancelled, task_id=check_id(task_id), by=author(by, why))
    return on_connection(session, verb)


def _cancelled(connection: Connection, task_id: int, by: Author) -> Cancelled:
    answer = cancel(connection, task_id, by=by)
    if answer in {Cancelled.CANCELLED, Cancelled.REQUESTED}:
        _note(connection, BulkAction.CANCEL, task_id, answer, by)
    return answer


def cancel_tasks(
    session: Sync,
    *,
    name: str | None = None,
    biz_key: str | None = None,
    by: str = "",
    why: str = "",
) -> CancelledMany:
    """Cancel all pending and running tasks with this name and biz_key, in this transaction.

    For very many tasks use ``start_bulk``, which takes some at a time.

    >>> cancel_tasks(session, biz_key="order:7", by="anna").cancelled
    1

    Raises:
        ValueError: neither is given, which would cancel everything.
    """
    if name is None and biz_key is None:
        raise ValueError("cancel_tasks needs name= or biz_key=; it never cancels everything.")
    connection = connection_of(session)
    wanted = author(by, why)
    done = cancel_many(connection, name=name, biz_key=biz_key, by=wanted)
    if done.ids:
        chosen = {"name": name, "biz_key": biz_key, **wanted.reason}
        note(
            connection,
            BulkAction.CANCEL,
            {word: value for word, value in chosen.items() if value is not None},
            who=by,
            number=len(done.ids),
            ids=done.ids,
            answers={"cancelled": done.cancelled, "requested": done.requested},
        )
    return done


def requeue_task(session: Sync | Raw, task_id: int, *, by: str = "", why: str = "") -> Requeued:
    """Return a finished task to the pending pool: same id, charges from 0.

    >>> print(requeue_task(session, failed_id, by="anna", why="the bank is back"))
    requeued

    Raises:
        UniqueKeyTakenError: another pending task has its name and unique_key.
    """
    verb = partial(_requeued, task_id=check_id(task_id), by=author(by, why))
    return on_connection(session, verb)


def _requeued(connection: Connection, task_id: int, by: Author) -> Requeued:
    answer = requeue(connection, task_id, by=by)
    if answer is Requeued.REQUEUED:
        _note(connection, BulkAction.REQUEUE, task_id, answer, by)
    return answer


def _note(
    connection: Connection, action: BulkAction, task_id: int, answer: str, by: Author
) -> None:
    note(connection, action, by.reason, who=by.who, ids=[task_id], answers={str(answer): 1})


aload_large_values: Final = made_async(load_large_values)
aget_task: Final = made_async(get_task)
aexplain_task: Final = made_async(explain_task)
acancel_task: Final = made_async(cancel_task)
acancel_tasks: Final = made_async(cancel_tasks)
arequeue_task: Final = made_async(requeue_task)
