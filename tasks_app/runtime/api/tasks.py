"""Reads, explains, cancels, requeues and awaits tasks, and masks their errors; commits nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tasks_app.domain.durations import Duration, format_duration, named_duration
from tasks_app.domain.errors import InvalidConnectionError, UnknownTaskError, WaitTimeoutError
from tasks_app.domain.explain.explanation import Explanation, explain
from tasks_app.domain.explain.facts import TaskFacts
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.large_values.store import PAYLOAD, RESULT, reference_of
from tasks_app.domain.operations import Author, BulkAction, check_author
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import TERMINAL
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.explain import read_facts
from tasks_app.pool.task_groups import groups_of
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.browse import payloads
from tasks_app.pool.tasks.cancel import Cancelled, CancelledMany, cancel, cancel_many
from tasks_app.pool.tasks.large_values import read
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.db.connections import (
    Async,
    AsyncRaw,
    Raw,
    Sync,
    connection_of,
    is_async_engine,
    is_async_raw,
    is_async_session,
    is_raw,
    made_async,
    on_connection,
    shown,
    unwrapped,
)
from tasks_app.runtime.encryption.values import masks, opened_task
from tasks_app.runtime.large_values import large_values

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

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
        heartbeat_every=settings.renew_every,
    )
    found = groups_of(connection, task_id, exists=facts.row is not None)
    facts = replace(facts, **found._asdict())
    facts = masked_facts(connection, facts)
    if facts.waiting is not None:
        said = {each.queue: each for each in queue_settings.find_queues(connection, now=facts.now)}
        name = facts.waiting.name
        down = [
            standing
            for standing in circuit_breakers.find_breakers(connection, now=facts.now)
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
    verb = partial(_cancelled, task_id=check_id(task_id), by=check_author(by, why))
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
    wanted = check_author(by, why)
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
    verb = partial(_requeued, task_id=check_id(task_id), by=check_author(by, why))
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
Row = TypeVar("Row")


def masked_texts(connection: Connection, texts: Mapping[int, str]) -> dict[int, str]:
    """Return texts, by the ids of their tasks, without what rules mask in these tasks' payloads."""
    rules, found = masks(), dict(texts)
    if rules and found:
        for task_id, name, payload in payloads(connection, list(found)):
            found[task_id] = rules.text(name, found[task_id], payload)
    return found


def masked_errors(connection: Connection, rows: Iterable[Row], by: str = "id") -> list[Row]:
    """Return dataclasses with their ``error`` masked; ``by`` is their field with the task's id."""
    some: list[Any] = list(rows)
    texts = masked_texts(connection, {getattr(r, by): r.error for r in some if r.error})
    return [replace(r, error=texts[getattr(r, by)]) if r.error else r for r in some]


def masked_facts(connection: Connection, facts: TaskFacts) -> TaskFacts:
    """Return what is known of a task with the texts of its errors masked."""
    row, last = facts.row, facts.last
    if row is None:
        return facts
    if last is not None:
        message = masked_texts(connection, {row.id: last.message})[row.id]
        last = replace(last, message=message)
    return replace(facts, row=masked_errors(connection, [row])[0], last=last)


aexplain_task: Final = made_async(explain_task)
acancel_task: Final = made_async(cancel_task)
acancel_tasks: Final = made_async(cancel_tasks)
arequeue_task: Final = made_async(requeue_task)
FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 0.05, 1.5, 1.0
"""A task of milliseconds is seen soon; a look a second at one of hours costs nobody anything."""


def wait_task(engine_or_session: Engine | Sync | Raw, task_id: int, timeout: Duration) -> Task:
    """Wait until the task is over, and return it: succeeded, failed, or however it ended.

    A task that waits for a retry is not over. A session or connection must be in no transaction.

    >>> task = wait_task(engine, failed_id, timeout="10s")
    >>> print(task.state, task.error)
    FAILED ConnectionRefusedError: no bank

    Raises:
        WaitTimeoutError: it is not over yet. It goes on, and you may wait again.
        UnknownTaskError: no task has this id: its transaction has not committed, it was pruned, or
            it succeeded and its ``history`` keeps no row.
    """
    caller: Any = unwrapped(engine_or_session)
    if not (isinstance(caller, Engine | Session | Connection) or is_raw(caller)):
        raise InvalidConnectionError(
            f"{shown(caller)} isn't an Engine, Session or Connection. "
            "Pass the Engine of your sessions; async ones go to await_task."
        )
    _check_idle(caller)
    span = named_duration("timeout", timeout)
    task_id = check_id(task_id)
    waits = pauses(span.total_seconds())
    while (task := _known(_look(caller, task_id), task_id)).state not in TERMINAL:
        time.sleep(_next(waits, task, span))
    return task


async def await_task(
    engine_or_session: AsyncEngine | Async | AsyncRaw, task_id: int, timeout: Duration
) -> Task:
    """Wait in an event loop, which is free meanwhile; else as ``wait_task``."""
    caller: Any = unwrapped(engine_or_session)
    if not (is_async_engine(caller) or is_async_session(caller) or is_async_raw(caller)):
        raise InvalidConnectionError(
            f"{shown(caller)} isn't an AsyncEngine, AsyncSession or AsyncConnection. "
            "Pass the AsyncEngine of your sessions; others go to wait_task."
        )
    _check_idle(caller)
    span = named_duration("timeout", timeout)
    task_id = check_id(task_id)
    waits = pauses(span.total_seconds())
    while (task := _known(await _alook(caller, task_id), task_id)).state not in TERMINAL:
        await asyncio.sleep(_next(waits, task, span))
    return task


def pauses(span_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """Yield the pause after each look but the last one, which is at the end of the span."""
    ends, pause = clock() + span_s, FIRST_PAUSE_S
    while (left := ends - clock()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, LONGEST_PAUSE_S)


def _next(waits: Iterator[float], task: Task, span: timedelta) -> float:
    for pause in waits:
        return pause
    raise WaitTimeoutError(task.id, task.name, task.state, format_duration(span))


def _check_idle(caller: Any) -> None:
    """Refuse an open transaction: waiting would keep it open, and what it created cannot start."""
    if is_async_engine(caller) or isinstance(caller, Engine):
        return
    if is_raw(caller) or is_async_raw(caller):
        within = caller.info.transaction_status.name in {"INTRANS", "INERROR"}
    else:
        within = caller.in_transaction()
    if within:
        raise InvalidConnectionError(
            f"{shown(caller)} is in a transaction: a task that it created starts only after the "
            "commit, so this would wait for ever. Commit first, or pass an engine."
        )


def _look(caller: Any, task_id: int) -> Task | None:
    if isinstance(caller, Engine):
        with caller.begin() as connection:
            return get_task(connection, task_id)
    if is_raw(caller):
        with nullcontext() if caller.autocommit else caller.transaction():
            return get_task(caller, task_id)
    with caller.begin():
        return get_task(caller, task_id)


async def _alook(caller: Any, task_id: int) -> Task | None:
    if is_async_engine(caller):
        async with caller.begin() as connection:
            return await aget_task(connection, task_id)
    if is_async_raw(caller):
        async with nullcontext() if caller.autocommit else caller.transaction():
            return await aget_task(caller, task_id)
    async with caller.begin():
        return await aget_task(caller, task_id)


def _known(task: Task | None, task_id: int) -> Task:
    if task is None:
        raise UnknownTaskError(task_id)
    return task
