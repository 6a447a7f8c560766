"""Reads, explains, cancels, requeues and awaits tasks, and masks their errors; commits nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
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
    task_id = check_id(task_id)
    with on_connection(session) as connection:
        task = browse.get(connection, task_id)
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
    with on_connection(session) as connection:
        payload = in_full(connection, task.id, task.payload, PAYLOAD)
        result = in_full(connection, task.id, task.result, RESULT)
    return opened_task(replace(task, payload=payload, result=result))


def in_full(connection: Connection, task_id: int, value: Any, kind: str) -> Any:
    """Return a stored value of a task, loaded if it is large; an encrypted one stays so."""
    reference = reference_of(value)
    if reference is None:
        return value
    stored = read(connection, task_id, reference)
    return decode(large_values().text_of(stored, reference, kind), kind)


def explain_task(
    session: Sync | Raw, task_id: int, *, settings: Settings | None = None
) -> Explanation:
    """Say why a task does not run, or what became of it. It reads little and changes nothing.

    ``settings`` hold for how long a silent worker counts as living; by default they come from the
    environment.

    >>> pause_queue(session, "default", "mail server is away")
    True
    >>> explain_task(session, task_id).findings[0].fact
    'Its queue default was paused just now (...): mail server is away'
    """
    task_id = check_id(task_id)
    if settings is None:
        from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  it costs 50 ms

        settings = load_settings()
    with on_connection(session) as connection:
        facts = read_facts(
            connection,
            task_id,
            lease=settings.lease,
            late_after=LATE_SCANS * settings.scan_interval + PATIENCE,
            heartbeat_every=settings.renew_every,
        )
        found = groups_of(connection, task_id, exists=facts.row is not None)
        facts = _masked_facts(connection, replace(facts, **found._asdict()))
        if facts.waiting is not None:
            name, queue = facts.waiting.name, facts.waiting.queue
            queues = queue_settings.find_queues(connection, now=facts.now)
            breakers = circuit_breakers.find_breakers(connection, now=facts.now)
            facts = replace(
                facts,
                queue=next((each for each in queues if each.queue == queue), None),
                breaker=next(
                    (b for b in breakers if name in b.names and b.state != BreakerState.CLOSED),
                    None,
                ),
            )
    return explain(facts)


def cancel_task(
    session: Sync | Raw,
    task_id: int,
    *,
    kill_after: Duration | None = None,
    by: str = "",
    why: str = "",
) -> Cancelled:
    """Cancel a pending task at once; interrupt a running one, and do not run it again.

    Its handler gets ``TaskCancelledError`` within two seconds. See operations/cancel.md for what
    that ends, and what it does not.

    >>> print(cancel_task(session, task_id, by="anna", why="ordered twice"))
    cancelled

    Args:
        session: the caller's; the request stands once that commits.
        task_id: of the task.
        kill_after: kill the process of a run that has not ended so long after the request, where
            its pool can. None: it is not killed.
        by: who asks.
        why: the reason, for the audit log.
    """
    task_id, author = check_id(task_id), check_author(by, why)
    grace = None if kill_after is None else named_duration("kill_after", kill_after)
    with on_connection(session) as connection:
        answer = cancel(connection, task_id, by=author, kill_after=grace)
        if answer in {Cancelled.CANCELLED, Cancelled.REQUESTED}:
            more = {} if grace is None else {"kill_after": format_duration(grace)}
            _note(connection, BulkAction.CANCEL, task_id, answer, author, **more)
    return answer


def cancel_waiting_task(connection: Connection, task_id: int, by: str) -> Cancelled:
    """Cancel a pending task; one that runs goes on."""
    author = Author(by)
    answer = cancel(connection, task_id, by=author, only_waiting=True)
    if answer is Cancelled.CANCELLED:
        _note(connection, BulkAction.CANCEL, task_id, answer, author)
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
    connection, author = connection_of(session), check_author(by, why)
    done = cancel_many(connection, name=name, biz_key=biz_key, by=author)
    if done.ids:
        chosen = {"name": name, "biz_key": biz_key, **author.reason}
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
    task_id, author = check_id(task_id), check_author(by, why)
    with on_connection(session) as connection:
        answer = requeue(connection, task_id, by=author)
        if answer is Requeued.REQUEUED:
            _note(connection, BulkAction.REQUEUE, task_id, answer, author)
    return answer


def _note(
    connection: Connection,
    action: BulkAction,
    task_id: int,
    answer: str,
    by: Author,
    **more: str,
) -> None:
    told = {**more, **by.reason}
    note(connection, action, told, who=by.who, ids=[task_id], answers={str(answer): 1})


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
    waits = _Waits(caller, task_id, timeout)
    while True:
        with _transaction(caller) as begun:
            task = get_task(begun if isinstance(caller, Engine) else caller, task_id)
        if task is not None and task.state in TERMINAL:
            return task
        time.sleep(waits.next_s(task))


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
    waits = _Waits(caller, task_id, timeout)
    while True:
        async with _transaction(caller) as begun:
            task = await aget_task(begun if is_async_engine(caller) else caller, task_id)
        if task is not None and task.state in TERMINAL:
            return task
        await asyncio.sleep(waits.next_s(task))


aget_task: Final = made_async(get_task)
aload_large_values: Final = made_async(load_large_values)
aexplain_task: Final = made_async(explain_task)
acancel_task: Final = made_async(cancel_task)
acancel_tasks: Final = made_async(cancel_tasks)
arequeue_task: Final = made_async(requeue_task)


class _Waits:
    def __init__(self, caller: Any, task_id: int, timeout: Duration) -> None:
        _check_idle(caller)
        self._span = named_duration("timeout", timeout)
        self._task_id = check_id(task_id)
        self._pauses = pauses(self._span.total_seconds())

    def next_s(self, task: Task | None) -> float:
        """Return the seconds until the next read of a task that is not over."""
        if task is None:
            raise UnknownTaskError(self._task_id)
        for pause_s in self._pauses:
            return pause_s
        raise WaitTimeoutError(task.id, task.name, task.state, format_duration(self._span))


FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 0.05, 1.5, 1.0
"""A task of milliseconds is seen soon; one read per second for one of hours costs little."""


def pauses(span_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """Yield the pause after each read but the last one, which is at the end of the span."""
    ends, pause = clock() + span_s, FIRST_PAUSE_S
    while (left := ends - clock()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, LONGEST_PAUSE_S)


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


def _transaction(caller: Any) -> Any:
    """Return a context of one, sync or async as the caller is; an engine's yields a connection."""
    if is_raw(caller) or is_async_raw(caller):
        return nullcontext() if caller.autocommit else caller.transaction()
    return caller.begin()


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


def _masked_facts(connection: Connection, facts: TaskFacts) -> TaskFacts:
    row, last = facts.row, facts.last
    if row is None:
        return facts
    if last is not None:
        last = replace(last, message=masked_texts(connection, {row.id: last.message})[row.id])
    return replace(facts, row=masked_errors(connection, [row])[0], last=last)
